"""The wrapper of methods that run inside a site (METHODS 2): one round, or forget and retain rounds in turns."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from fake_sites import SITES, Hospitals, counts, federation, plan, schedule, spread, start_state
from test_methods import Dying, stopped

from strategies.base import Needs
from strategies.history import HistoryWriter
from strategies.inside import AlternatingConfig, AlternatingSite, InsideConfig, InsideSite, without_retain
from strategies.plans import RequestPlan
from unlearning.state import State


class Once(InsideSite):
    """Needs both kinds of record in the same place."""

    name = title = citation = provenance = family = "once"
    granularities: ClassVar[tuple[str, ...]] = ("class", "patient", "sample")
    needs = Needs(forget_data=True, retain_data=True)
    Config = InsideConfig
    op = "toy"

    def own_settings(self):
        return {"own": 3}


class Turns(AlternatingSite):
    """Takes turns with plain training, and sends what it remembers of its start."""

    name = title = citation = provenance = family = "turns"
    granularities: ClassVar[tuple[str, ...]] = ("client", "class", "patient", "sample")
    needs = Needs(forget_data=True, retain_data=True, departed_online=True)
    Config = AlternatingConfig
    op = "toy"

    def turn_states(self, turn, round_):
        return {"teacher": self.original}


def request(held, departed=(), granularity="class") -> RequestPlan:
    text = "client:site-a" if granularity == "client" else f"{granularity}:5"
    return replace(plan(held, departed, text=text), granularity=granularity)


CLIENT = request(counts(), ("site-a",), "client")
CLASS = request(spread())


def strategy(cls, fed, what, *, work=None, plan_=None, **overrides):
    config = cls.resolve_config("lethe", {key.replace("_", "-"): value for key, value in overrides.items()})
    return cls(fed, plan_ or schedule(unlearn_epochs=2), what, seed=7, config=config, work=work)


def asked(cls, what, **overrides):
    """Return (site, op, config, states) of every call, and the outcome."""
    fed = federation(Hospitals({site: (c.num_forget, c.num_retain) for site, c in what.counts.items()}))
    outcome = strategy(cls, fed, what, **overrides).run(start_state())
    return [(site, call.op, call.config, call.states) for site, _, call in fed.grid.calls()], outcome


# ---------------------------------------------------------------------- one round
@pytest.mark.parametrize("cls", [Once, Turns])
def test_where_every_holder_keeps_retain_records_one_round_asks_the_holders(cls):
    calls, outcome = asked(cls, CLASS)
    assert [site for site, *_ in calls] == ["site-a", "site-b", "site-c"] and outcome.rounds == 1
    assert all(op == "toy" and config["records"] == "both" and config["epochs"] == 2 for _, op, config, _ in calls)
    assert outcome.notes == ()


@pytest.mark.parametrize(
    ("driven_by", "wanted"), [("num-forget", [0.75, 0.25]), ("num-retain", [0.25, 0.75]), ("num-examples", [0.5, 0.5])]
)
def test_the_class_says_which_records_weigh(driven_by, wanted, tmp_path):
    held = {"site-a": (30, 10), "site-b": (10, 30), "site-c": (0, 5)}
    driven = type("Driven", (Once,), {"driven_by": driven_by})
    work = HistoryWriter(tmp_path)
    strategy(driven, federation(Hospitals(held)), request(held), work=work).run(start_state())
    record = work.read().record(1)
    assert [record.sites[site].weight for site in ("site-a", "site-b")] == pytest.approx(wanted)


def test_the_settings_are_the_training_s_unless_they_say_otherwise():
    ((_, _, config, _), *_), _ = asked(Once, CLASS)
    assert {
        "lr": 0.1,
        "optimizer": "sgd",
        "max-norm": 0.0,
        "bn-mode": "train",
        "own": 3,
        "epochs": 2,
    }.items() <= config.items()
    assert not {"momentum", "weight-decay", "batch-size"} & config.keys()
    own = {"momentum": 0.0, "weight_decay": 0.1, "batch_size": 9, "lr": 0.5, "epochs": 7, "optimizer": "adam"}
    ((_, _, config, _), *_), _ = asked(Once, CLASS, **own)
    assert {key.replace("_", "-"): value for key, value in own.items()}.items() <= config.items()


# ---------------------------------------------------------------------- not applicable
def test_a_holder_without_retain_records_is_named_by_a_method_that_needs_both():
    assert Once.unfit_for(CLASS) == ""
    why = Once.unfit_for(request({**spread(), "site-b": (10, 0)}))
    assert "not applicable to class:5" in why and "site-b has forget records only" in why
    assert Turns.unfit_for(CLIENT) == ""


def test_a_method_that_opens_forget_records_alone_is_never_unfit():
    assert type("Alone", (Once,), {"opens": "forget"}).unfit_for(CLIENT) == ""


def test_those_without_retain_records_are_the_departing_and_the_whole():
    assert without_retain(CLIENT) == ("site-a",)
    assert without_retain(request({"site-a": (5, 0), "site-b": (5, 5), "site-c": (0, 5)}, granularity="patient")) == (
        "site-a",
    )
    assert without_retain(CLASS) == ()


# ---------------------------------------------------------------------- turns
def test_a_client_s_forget_step_and_the_others_retain_step_take_turns():
    calls, outcome = asked(Turns, CLIENT)
    stay = [(site, "recover", "retain", 1) for site in SITES[1:]]
    pair = [("site-a", "toy", "forget", 1), *stay]
    assert [(site, op, c["records"], c["epochs"]) for site, op, c, _ in calls] == pair + pair
    assert [c["round"] for site, _, c, _ in calls if site in ("site-a", "site-d")] == [1, 2, 3, 4]
    assert outcome.rounds == 4 and outcome.status == "ok"
    assert outcome.notes == ("forget and retain steps take turns over 4 rounds: site-a has forget records only",)


def test_turns_are_weighed_by_their_own_records(tmp_path):
    held = {"site-a": (30, 0), "site-b": (10, 30), "site-c": (0, 10)}
    work = HistoryWriter(tmp_path)
    strategy(Turns, federation(Hospitals(held)), request(held), work=work).run(start_state())
    shares = [{site: one.weight for site, one in work.read().record(r).sites.items()} for r in (1, 2)]
    assert shares == [pytest.approx({"site-a": 0.75, "site-b": 0.25}), pytest.approx({"site-b": 0.75, "site-c": 0.25})]


def test_a_patient_who_is_a_whole_site_makes_turns_though_nobody_leaves():
    what = request({"site-a": (5, 0), "site-b": (0, 5)}, granularity="patient")
    calls, _ = asked(Turns, what, rounds=1)
    assert [(site, c["records"]) for site, _, c, _ in calls] == [("site-a", "forget"), ("site-b", "retain")]


def test_several_that_leave_take_no_retain_step():
    held = {"site-a": (5, 0), "site-b": (7, 0), "site-c": (0, 5), "site-d": (0, 5)}
    what = replace(plan(held, ("site-a", "site-b")), granularity="client")
    calls, _ = asked(Turns, what)
    by_turn = {turn: {site for site, _, c, _ in calls if c["records"] == turn} for turn in ("forget", "retain")}
    assert by_turn == {"forget": {"site-a", "site-b"}, "retain": {"site-c", "site-d"}}


@pytest.mark.parametrize(
    ("overrides", "pairs"), [({}, 2), ({"epochs": 3}, 3), ({"rounds": 1}, 1), ({"epochs": 3, "rounds": 4}, 4)]
)
def test_there_are_as_many_pairs_as_local_epochs_unless_told(overrides, pairs):
    _, outcome = asked(Turns, CLIENT, **overrides)
    assert outcome.rounds == 2 * pairs


def test_the_turns_differ_in_their_random_streams():
    calls, _ = asked(Turns, CLIENT)
    assert len({(c["seed"], c["purpose"], c["round"]) for _, _, c, _ in calls}) == 4


def test_the_model_that_is_to_forget_is_remembered_over_a_resume(tmp_path):
    def run(events=None):
        fed = federation(Hospitals(counts()), events=events)
        return fed, strategy(Turns, fed, CLIENT, work=HistoryWriter(tmp_path))

    _, first = run(Dying(2))
    with pytest.raises(KeyboardInterrupt):
        first.run(start_state())
    fed, again = run()
    outcome = again.run(start_state())
    teachers = {call.states["teacher"].sha256() for _, _, call in fed.grid.calls()}
    assert len(fed.grid.calls()) == 4 and teachers == {start_state().sha256()}
    assert outcome.state.sha256() == asked(Turns, CLIENT)[1].state.sha256()


def test_a_forget_step_that_diverged_ends_the_turns_at_its_last_usable_state():
    fed = federation(Hospitals(counts(), stopped("site-a", "diverged")))
    outcome = strategy(Turns, fed, CLIENT).run(start_state())
    assert (outcome.status, outcome.reason, outcome.rounds) == ("diverged", "site-a: the loss is not finite", 1)
    assert outcome.state.is_finite() and {site for site, _, _ in fed.grid.calls()} == {"site-a"}


def grown(site, op, call):
    """Let the retain step return a model a hundred times as large."""

    def change(parts):
        params = {n: 100 * t for n, t in call.state.params.items()}
        return {**parts, "state": State(params, call.state.float_buffers, call.state.int_buffers)}

    return change if op == "recover" else None


def test_turns_that_lead_too_far_end_at_the_state_before():
    outcome = strategy(Turns, federation(Hospitals(counts(), grown)), CLIENT).run(start_state())
    assert outcome.status == "diverged" and "norm" in outcome.reason and outcome.rounds == 2
    forgot = strategy(Turns, federation(Hospitals(counts(), stopped("site-a", "diverged"))), CLIENT).run(start_state())
    assert outcome.state.sha256() == forgot.state.sha256()
    assert torch.isfinite(outcome.state.params["w"]).all()
