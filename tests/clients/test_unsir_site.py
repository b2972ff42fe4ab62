"""UNSIR at a site: which records each version opens, how much of what it shows the model, and that zero is nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from clients.catalogue import OPERATIONS
from clients.ops import Call, Reply
from clients.site import Site
from unlearning.state import State

MakeSite = Callable[..., Site]
Initial = Callable[..., State]
CONFIG = {
    **{"seed": 3, "lr": 0.05, "epochs": 2, "round": 1, "purpose": "unsir", "request": "class:1", "request-seed": 0},
    **{"impair-lr": 0.05, "repair-lr": 0.05, "impair-epochs": 1, "repair-epochs": 1, "noise-steps": 3},
    **{"noise-lr": 0.1, "noise-weight": 0.1, "noise-repeats": 2, "retain-per-class": 1000, "classes": ["1"]},
}
VERSIONS = ["unsir_class", "unsir_instance"]


def ask(site: Site, op: str, state: State, **config: object) -> Reply:
    given = {**CONFIG, **{key.replace("_", "-"): value for key, value in config.items()}}
    return OPERATIONS.get(op).run(site, Call(op, state, given))


def after(site: Site, op: str, state: State, **config: object) -> str:
    reply = ask(site, op, state, **config)
    assert reply.state is not None and reply.config["status"] == "ok"
    return reply.state.sha256()


@pytest.mark.parametrize("op", VERSIONS)
def test_the_class_version_opens_no_forget_record(make_site: MakeSite, initial: Initial, op: str) -> None:
    site, spied = make_site(), make_site()
    spied.train.inputs[spied.records("forget", "class:1", 0)] = 255
    assert (after(site, op, initial()) == after(spied, op, initial())) == (op == "unsir_class")


def test_the_model_sees_the_noise_so_often_and_each_retained_record_twice(
    make_site: MakeSite, initial: Initial
) -> None:
    found = ask(make_site(), "unsir_class", initial(), noise_repeats=3).metrics
    assert found["num-examples"] == found["num-retain"]
    assert found["examples"] == 2 * found["num-retain"] + 3 * 8
    two = ask(make_site(), "unsir_class", initial(), request="class:0,1", classes=["0", "1"]).metrics
    assert two["examples"] == 2 * two["num-retain"] + 2 * 2 * 8


def test_the_retained_sample_is_limited_class_by_class(make_site: MakeSite, initial: Initial) -> None:
    found = ask(make_site(), "unsir_class", initial(), retain_per_class=4, noise_repeats=0).metrics
    assert found["examples"] == 2 * 2 * 4


def test_noise_makes_the_model_forget_the_class(make_site: MakeSite, initial: Initial) -> None:
    site = make_site(train=60)
    state = OPERATIONS.get("train").run(site, Call("train", initial(), {"seed": 0, "lr": 0.05, "epochs": 10})).state
    assert state is not None
    changed = ask(site, "unsir_class", state, noise_steps=40, noise_repeats=10, repair_epochs=2).state
    before, now = (
        OPERATIONS.get("scorecard").run(site, Call("scorecard", s, CONFIG)).tables["scorecard"]
        for s in (state, changed)
    )
    assert now[now.selected].loss.mean() > before[before.selected].loss.mean() + 0.3
    assert now[~now.selected].metric.mean() > 0.8


@pytest.mark.parametrize("op", VERSIONS)
def test_no_epochs_leave_the_model(make_site: MakeSite, initial: Initial, op: str) -> None:
    state = initial()
    assert after(make_site(), op, state, impair_epochs=0, repair_epochs=0) == state.sha256()


@pytest.mark.parametrize("op", VERSIONS)
def test_settings_and_seed_reach_it(make_site: MakeSite, initial: Initial, op: str) -> None:
    state = initial()
    changes = [{}, {"seed": 4}, {"noise_steps": 30}, {"noise_lr": 0.9}, {"impair_lr": 0.01}, {"repair_lr": 0.01}]
    changes += [{"optimizer": "adam", "impair_lr": 1e-3}, {"repair_epochs": 2}]
    found = [after(make_site(), op, state, **change) for change in changes]
    assert len(set(found)) == len(found)
    assert after(make_site(), op, state) == found[0]


def test_the_instance_version_is_as_long_as_the_shorter_set(make_site: MakeSite, initial: Initial) -> None:
    site = make_site(train=33)
    forget, retain = (len(site.records(which, "class:1", 0)) for which in ("forget", "retain"))
    assert forget < retain
    steps = ask(site, "unsir_instance", initial(), repair_epochs=0).metrics["num-batches"]
    assert steps == -(-forget // 8) - (forget % 8 == 1)


@pytest.mark.parametrize("op", VERSIONS)
@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_it_runs_in_other_precisions(make_site: MakeSite, initial: Initial, op: str, precision: str) -> None:
    dtype = torch.float64 if precision == "64-true" else torch.float32
    assert ask(make_site(precision=precision), op, initial(dtype=dtype)).config["status"] == "ok"


@pytest.mark.parametrize("op", VERSIONS)
@pytest.mark.parametrize(("bn_mode", "moves"), [("eval", False), ("train", True)])
def test_statistics_are_frozen_only_where_asked(
    make_site: MakeSite, initial: Initial, op: str, bn_mode: str, moves: bool
) -> None:
    state = initial("resnet18")
    site = make_site(train=12, model="resnet18")
    reply = ask(site, op, state, bn_mode=bn_mode, noise_steps=1, noise_repeats=1, impair_lr=1e-4, repair_lr=1e-4)
    assert reply.state is not None
    name = "bn1.running_mean"
    assert torch.equal(reply.state.float_buffers[name], state.float_buffers[name]) != moves
