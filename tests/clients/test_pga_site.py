"""PGA's operation at a site: the ball around the model received, and the site's own early stops."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from clients.catalogue import OPERATIONS
from clients.ops import Call, Reply
from clients.pga import fallen_metric, holdout_metric
from clients.scoring import score_records
from clients.site import Site
from unlearning.state import State, distance

MakeSite = Callable[..., Site]
Initial = Callable[..., State]
CONFIG = {
    "seed": 3,
    "lr": 0.1,
    "epochs": 4,
    "round": 1,
    "purpose": "pga",
    "request": "class:1",
    "request-seed": 0,
    "rho": 0.5,
    "momentum": 0.9,
    "max-norm": 5.0,
    "min-val": 0.5,
    "tau": 0.2,
    "early-stop": "none",
}


def ascended(
    site: Site, state: State, states: dict[str, State] | None = None, **changes: object
) -> tuple[Reply, State]:
    config = {**CONFIG, **{key.replace("_", "-"): value for key, value in changes.items()}}
    reply = OPERATIONS.get("ascend_in_ball").run(site, Call("ascend_in_ball", state, config, states or {}))
    assert reply.state is not None
    return reply, reply.state


def trained(site: Site, state: State) -> State:
    reply = OPERATIONS.get("train").run(site, Call("train", state, {**CONFIG, "epochs": 20, "lr": 0.05}))
    assert reply.state is not None
    return reply.state


def test_the_answer_lies_in_the_ball_and_tells_where(make_site: MakeSite, initial: Initial) -> None:
    reply, state = ascended(make_site(), initial())
    assert reply.metrics["rho"] == 0.5
    assert distance(state, initial()) == pytest.approx(reply.metrics["distance"], rel=1e-5)
    assert reply.metrics["distance"] == pytest.approx(0.5, rel=1e-5)
    assert reply.config["status"] == "ok"


def test_no_radius_returns_the_model_received(make_site: MakeSite, initial: Initial) -> None:
    assert ascended(make_site(), initial(), rho=0.0)[1].sha256() == initial().sha256()


def test_the_authors_radius_is_the_same_at_every_site(make_site: MakeSite, initial: Initial) -> None:
    radii = [
        ascended(make_site(name=name), initial(), epochs=1, rho=-1.0, seed=seed)[0].metrics["rho"]
        for name, seed in (("site-0", 3), ("site-1", 3), ("site-0", 4))
    ]
    assert radii[0] == radii[1] != radii[2]
    # Two independent initial models lie sqrt(2) norms apart, and the radius is that over sqrt(3).
    assert radii[0] == pytest.approx(initial().norm() * math.sqrt(2 / 3), rel=0.05)


def test_only_forget_records_are_climbed_on(make_site: MakeSite, initial: Initial) -> None:
    site, spied = make_site(), make_site()
    spied.train.inputs[spied.records("retain", "class:1", 0)] = 255
    states = [ascended(one, initial())[1] for one in (site, spied)]
    assert states[0].sha256() == states[1].sha256()


def test_the_stop_by_distance_measures_from_the_last_model(make_site: MakeSite, initial: Initial) -> None:
    site, start = make_site(batch_size=4), initial()
    far, _ = ascended(site, start, early_stop="distance", tau=0.0)
    assert far.metrics["num-batches"] == 1
    last = State({n: t + 1.0 for n, t in start.params.items()}, start.float_buffers, start.int_buffers)
    gone, _ = ascended(site, start, {"last": last}, early_stop="distance", tau=100.0)
    assert gone.metrics["num-batches"] == 1, "it is already farther than that from the last model"
    whole, _ = ascended(site, start, early_stop="distance", tau=100.0)
    assert whole.metrics["num-batches"] == ascended(site, start)[0].metrics["num-batches"] > 4


def test_the_stop_by_validation_ends_after_the_epoch_in_which_the_metric_fell(
    make_site: MakeSite, initial: Initial
) -> None:
    site = make_site(holdout=40)
    good = trained(site, initial())
    assert holdout_metric(site, site.holdout.indices, good) > 0.6
    steps = ascended(site, good, rho=50.0, lr=0.5)[0].metrics["num-batches"]
    stopped, state = ascended(site, good, rho=50.0, lr=0.5, early_stop="val", min_val=0.9)
    assert stopped.metrics["num-batches"] < steps and stopped.metrics["num-batches"] % (steps // 4) == 0
    assert holdout_metric(site, site.holdout.indices, state) < 0.9 * holdout_metric(site, site.holdout.indices, good)
    lenient, _ = ascended(site, good, rho=50.0, lr=0.5, early_stop="val", min_val=0.0)
    assert lenient.metrics["num-batches"] == steps


def test_the_stop_by_validation_compares_with_the_original(make_site: MakeSite, initial: Initial) -> None:
    site = make_site(holdout=40)
    good, poor = trained(site, initial()), initial()
    assert holdout_metric(site, site.holdout.indices, poor) < 0.9 * holdout_metric(site, site.holdout.indices, good)
    reply, _ = ascended(site, poor, {"original": good}, rho=0.0, early_stop="val", min_val=0.9)
    assert reply.metrics["examples"] == reply.metrics["num-forget"], "one epoch"
    reply, _ = ascended(site, poor, rho=0.0, early_stop="val", min_val=0.9)
    assert reply.metrics["examples"] == 4 * reply.metrics["num-forget"]


def test_the_held_out_metric_is_the_scorecards(make_site: MakeSite, initial: Initial) -> None:
    site, state = make_site(holdout=40, model="resnet18", precision="bf16-mixed"), initial("resnet18")
    table = score_records(site, state)["scorecard"]
    assert holdout_metric(site, site.holdout.indices, state) == pytest.approx(
        float(table[table["split"] == "holdout"]["metric"].mean())
    )


def test_without_held_out_records_validation_never_stops(make_site: MakeSite, initial: Initial) -> None:
    site = make_site(holdout=0)
    assert math.isnan(holdout_metric(site, site.holdout.indices, initial()))
    reply, _ = ascended(site, initial(), early_stop="val", min_val=1.0)
    assert reply.metrics["examples"] == 4 * reply.metrics["num-forget"]


def test_where_lower_is_better_it_ends_when_the_metric_rose(
    make_site: MakeSite, initial: Initial, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site()
    site.worker.load(initial())
    values = iter([2.0, 3.9, 4.1])
    monkeypatch.setattr("clients.pga.holdout_metric", lambda *_: next(values))
    monkeypatch.setattr(type(site.worker.task), "higher_is_better", False)
    fallen = fallen_metric(site, site.holdout.indices, initial(), 0.5)
    assert [fallen(1), fallen(2)] == [False, True]


def test_double_precision_scores_in_single_and_works(make_site: MakeSite, initial: Initial) -> None:
    site = make_site(precision="64-true", holdout=12)
    start = initial(dtype=torch.float64)
    _, state = ascended(site, start, early_stop="val", epochs=1)
    assert distance(state, start) <= 0.5 * (1 + 1e-6)
    assert all(t.dtype == torch.float64 for t in state.params.values())


def test_statistics_stay(make_site: MakeSite, initial: Initial) -> None:
    start = initial("resnet18")
    _, state = ascended(make_site(model="resnet18"), start, epochs=1, early_stop="val")
    assert all(torch.equal(state.float_buffers[n], t) for n, t in start.float_buffers.items())
