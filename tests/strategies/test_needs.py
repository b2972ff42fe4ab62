"""What a method needs may depend on its settings; what it declares holds for its default preset."""

from __future__ import annotations

from typing import Annotated, Literal

from fake_sites import Hospitals, counts, federation, plan, schedule
from pydantic import Field

from strategies.base import MethodConfig, Needs, UnlearningStrategy
from strategies.history import History
from strategies.rounds import Ask


class ToyConfig(MethodConfig):
    mode: Annotated[Literal["blind", "seeing"], Field(description="whether it looks")] = "blind"


class Toy(UnlearningStrategy):
    name, family, granularities, needs = "toy", "toy", ("client",), Needs()
    Config = ToyConfig

    @classmethod
    def needs_of(cls, config):
        return Needs(forget_data=True, logits=True, history_helps=True) if config.mode == "seeing" else cls.needs

    @property
    def rounds(self):
        return 1

    def ask_for(self, round_):
        return Ask("train", self.request.forget_holders, self.step_config(round_, "forget"))


def toy(mode, history=None):
    config = Toy.resolve_config("lethe", {"mode": mode})
    fed = federation(Hospitals(counts()))
    return Toy(fed, schedule(), plan(counts()), seed=0, config=config, history=history)


def test_a_setting_can_ask_for_more():
    given = {"has_history": True, "has_logits": False}
    assert Toy.unfit("client", **given) == Toy.unfit("client", **given, config=Toy.resolve_config()) == ""
    assert "logits" in Toy.unfit("client", **given, config=Toy.resolve_config("lethe", {"mode": "seeing"}))


def test_what_the_strategy_is_given_follows_its_settings(tmp_path):
    history = History(tmp_path)
    assert toy("blind", history).history is None and toy("seeing", history).history is history


def test_how_the_answers_are_weighed_follows_the_settings(tmp_path):
    assert (toy("blind")._weight_key, toy("seeing")._weight_key) == ("num-examples", "num-forget")
