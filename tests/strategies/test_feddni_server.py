"""FedDNI at the server: weight noise asks nobody, input noise asks the forget holders, and the needs say which."""

import pytest
import torch
from fake_sites import Hospitals, counts, federation, plan, schedule, start_state

from strategies.base import Needs
from strategies.history import History, HistoryWriter
from strategies.registry import METHODS
from unlearning.state import State, distance

HELD = {"site-a": (10, 5), "site-b": (30, 50), "site-c": (0, 20)}


def feddni(fed=None, *, preset="lethe", request=None, seed=7, work=None, **overrides):
    cls = METHODS.get("feddni")
    config = cls.resolve_config(preset, {key.replace("_", "-"): value for key, value in overrides.items()})
    fed = fed or federation(Hospitals(counts()))
    return cls(fed, schedule(), request or plan(counts()), seed=seed, config=config, work=work)


def test_weight_noise_asks_nobody_and_follows_the_seed():
    fed = federation(Hospitals(counts()))
    state = feddni(fed).run(start_state()).state
    assert fed.grid.calls() == []
    assert (
        state.sha256() == feddni().run(start_state()).state.sha256() != feddni(seed=8).run(start_state()).state.sha256()
    )
    assert not torch.equal(state.params["w"], start_state().params["w"])
    assert torch.equal(state.params["scale"], start_state().params["scale"]), "a single element has no deviation"


def test_no_sigma_is_the_identity():
    assert feddni(sigma=0.0).run(start_state()).state.sha256() == start_state().sha256()


def test_noise_that_leaves_nothing_of_the_model_is_a_divergence_at_the_model_before():
    outcome = feddni(sigma=1e6).run(start_state())
    assert outcome.status == "diverged" and "sigma" in outcome.reason
    assert outcome.state.sha256() == start_state().sha256()


def test_input_noise_is_asked_of_the_forget_holders_and_averaged_by_their_forget_records(tmp_path):
    fed = federation(Hospitals(HELD))
    request = plan(HELD, (), text="class:5")
    feddni(fed, preset="original", request=request, work=HistoryWriter(tmp_path)).run(start_state())
    calls = fed.grid.calls()
    assert {(site, kind) for site, kind, _ in calls} == {("site-a", "train.diffuse"), ("site-b", "train.diffuse")}
    wanted = {"records": "forget", "levels": 5, "last-level": 0.05, "bn-mode": "eval", "epochs": 5, "lr": 0.1}
    assert wanted.items() <= calls[0][2].config.items()
    record = History(tmp_path).record(1)
    assert [record.sites[s].weight for s in ("site-a", "site-b")] == pytest.approx([0.25, 0.75])


def test_a_lone_holder_replaces_the_model():
    def returned(site, op, call):
        return lambda parts: {**parts, "state": State({n: t + 1 for n, t in call.state.params.items()}, {}, {})}

    hospitals = Hospitals(counts(), returned)
    bare = State(start_state().params, {}, {})
    state = feddni(federation(hospitals), mode="input").run(bare).state
    assert distance(state, State({n: t + 1 for n, t in bare.params.items()}, {}, {})) < 1e-6


def test_only_input_noise_needs_logits_and_the_departed_site():
    cls = METHODS.get("feddni")
    inputs, weights = (cls.resolve_config("lethe", {"mode": mode}) for mode in ("input", "weight"))
    assert cls.needs_of(weights) == Needs()
    assert cls.needs_of(inputs) == Needs(forget_data=True, logits=True, departed_online=True)
    given = {"has_history": False, "has_logits": False}
    assert cls.unfit("client", **given, config=weights) == "" and "logits" in cls.unfit(
        "client", **given, config=inputs
    )
