"""PUF at the server: whom it asks, how it weighs them, and the formula of METHODS 1.6 over unequal sites."""

from __future__ import annotations

import math

import pytest
from fake_sites import Hospitals, counts, federation, plan, pulled, schedule, start_state

from strategies.base import Needs
from strategies.history import History, HistoryWriter
from strategies.registry import METHODS
from unlearning.puf import signed_model
from unlearning.state import State, distance, update_of

HELD = {"site-a": (10, 30), "site-b": (20, 0), "site-c": (0, 40)}


class Signing(Hospitals):
    """Sites that answer the operation: each pulls towards its target, once for each kind of record."""

    def _train(self, site, call):
        forget, retain = self.counts[site]
        if call.config["records"] == "forget":
            retain = 0
        n = forget + retain
        metrics = {"num-examples": n, "num-forget": forget, "num-retain": self.counts[site][1]}
        config = {"site": site, "device": "cpu", "gpu": "", "status": "ok", "reason": ""}
        if not n:
            return {"metrics": {**metrics, "num-batches": 0, "loss": math.nan}, "config": config}
        pull = update_of(pulled(call.state, site, call.config), call.state)
        signed = signed_model(
            call.state, pull if retain else None, pull if forget else None, retain, forget, call.config["eta"]
        )
        return {"state": signed, "metrics": {**metrics, "num-batches": 1, "loss": 0.5}, "config": config}


def puf(held=None, *, preset="lethe", departed=(), work=None, fed=None, sched=None, **overrides):
    cls = METHODS.get("puf")
    config = cls.resolve_config(preset, {key.replace("_", "-"): value for key, value in overrides.items()})
    held = held or HELD
    fed = fed or federation(Signing(held))
    request = plan(held, departed, text="" if departed else "class:5")
    return cls(fed, sched or schedule(), request, seed=7, config=config, work=work)


def pulls(config, held=None):
    return {site: update_of(pulled(start_state(), site, config), start_state()) for site in held or HELD}


def expected(weights, config) -> State:
    start, by_site = start_state(), pulls(config)
    params = {n: t + sum(w * by_site[s].params[n] for s, w in weights.items()) for n, t in start.params.items()}
    return State(params, start.float_buffers, start.int_buffers)


def config_of(strategy) -> dict:
    return strategy.federation.grid.calls()[0][2].config


def test_special_asks_the_forget_holders_only_and_negates_their_mean(tmp_path):
    strategy = puf(eta=2.0, epochs=1, work=HistoryWriter(tmp_path))
    outcome = strategy.run(start_state())
    asked = [(site, kind, call.config["records"]) for site, kind, call in strategy.federation.grid.calls()]
    assert asked == [("site-a", "train.pseudo_gradient", "forget"), ("site-b", "train.pseudo_gradient", "forget")]
    record = History(tmp_path).record(1)
    assert [record.sites[s].weight for s in ("site-a", "site-b")] == pytest.approx([1 / 3, 2 / 3])
    assert distance(outcome.state, expected({"site-a": -2 / 3, "site-b": -4 / 3}, config_of(strategy))) < 1e-5


def test_regular_counts_every_record_and_does_not_renormalise():
    strategy = puf(mode="regular", eta=1.5, epochs=1)
    outcome = strategy.run(start_state())
    weights = {"site-a": (30 - 1.5 * 10) / 100, "site-b": -1.5 * 20 / 100, "site-c": 40 / 100}
    assert distance(outcome.state, expected(weights, config_of(strategy))) < 1e-5
    assert config_of(strategy)["records"] == "both"


def test_regular_without_strength_is_fedavg_over_the_retained_with_weights_below_one():
    strategy = puf(mode="regular", eta=0.0, epochs=1)
    outcome = strategy.run(start_state())
    assert distance(outcome.state, expected({"site-a": 0.3, "site-c": 0.4}, config_of(strategy))) < 1e-5


def test_special_without_strength_is_the_identity():
    assert puf(eta=0.0).run(start_state()).state.sha256() == start_state().sha256()


def test_the_strength_is_divided_by_the_epochs():
    for preset, eta, epochs in (("lethe", 0.4, 5), ("original", 2.0, 1), ("original-regular", 20.0, 1)):
        strategy = puf(preset=preset)
        strategy.run(start_state())
        config = config_of(strategy)
        assert (config["eta"], config["epochs"]) == (pytest.approx(eta), epochs)


def test_departing_sites_are_asked_and_several_are_averaged():
    held = {"site-a": (10, 0), "site-b": (30, 0), "site-c": (0, 40), "site-d": (0, 20)}
    strategy = puf(held, departed=("site-a", "site-b"), mode="regular", epochs=1)
    strategy.run(start_state())
    assert [site for site, _, _ in strategy.federation.grid.calls()] == ["site-a", "site-b", "site-c", "site-d"]
    strategy = puf(held, departed=("site-a", "site-b"))
    strategy.run(start_state())
    assert [site for site, _, _ in strategy.federation.grid.calls()] == ["site-a", "site-b"]


def test_regular_samples_the_retained_sites_and_always_asks_the_forget_holders():
    held = {"site-a": (10, 0), **{f"site-{i}": (0, 10) for i in range(12)}}
    strategy = puf(held, departed=("site-a",), mode="regular", sched=schedule(fraction_train=0.3))
    strategy.run(start_state())
    asked = [site for site, _, _ in strategy.federation.grid.calls()]
    assert "site-a" in asked and 1 < len(asked) < 13


def test_buffers_stay_those_of_the_model():
    outcome = puf(mode="regular").run(start_state())
    start = start_state()
    assert all((outcome.state.float_buffers[n] == t).all() for n, t in start.float_buffers.items())
    assert outcome.state.int_buffers["bn.num_batches_tracked"] == 3


def test_the_step_can_be_capped_and_its_norm_is_told():
    outcome = puf(update_max_norm=0.01).run(start_state())
    assert distance(outcome.state, start_state()) == pytest.approx(0.01, rel=1e-3)
    assert outcome.notes == (f"a step of norm 0.01 on a model of norm {start_state().norm():.3g}",)


def test_a_step_that_is_too_long_is_a_divergence_at_the_model_before():
    outcome = puf(counts(), departed=("site-a",), eta=1e4, fed=federation(Signing(counts()))).run(start_state())
    assert outcome.status == "diverged" and "norm" in outcome.reason
    assert outcome.state.sha256() == start_state().sha256()


def test_only_the_regular_mode_opens_retained_records():
    cls = METHODS.get("puf")
    special, regular = (cls.resolve_config("lethe", {"mode": mode}) for mode in ("special", "regular"))
    assert cls.needs_of(special) == Needs(forget_data=True, departed_online=True)
    assert cls.needs_of(regular) == Needs(forget_data=True, retain_data=True, departed_online=True)
