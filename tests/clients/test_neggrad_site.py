"""NegGrad at a site, and what every method inside a site takes from the message (METHODS 2, 2.8)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_operations import ask

from clients.site import Site
from unlearning.state import State

MakeSite = Callable[..., Site]
Initial = Callable[..., State]
CALL = {"seed": 3, "lr": 0.05, "epochs": 2, "round": 1, "request": "class:1", "request_seed": 0, "records": "forget"}
CALL = {**CALL, "bn_mode": "eval"}


def negated(site: Site, state: State, **changes: object) -> State:
    after = ask(site, "negate", state, **{**CALL, **changes}).state
    assert after is not None
    return after


def test_with_the_training_s_optimiser_it_is_gradient_ascent(make_site: MakeSite, initial: Initial) -> None:
    site = make_site(momentum=0.9)
    ascended = ask(site, "ascend", initial(), **CALL).state
    assert ascended is not None and negated(site, initial()).sha256() == ascended.sha256()


def test_weight_decay_is_part_of_the_step(make_site: MakeSite, initial: Initial) -> None:
    plain, decayed = (negated(make_site(weight_decay=d), initial()) for d in (0.0, 0.1))
    assert plain.sha256() != decayed.sha256()


def test_the_message_s_settings_stand_in_for_the_site_s(make_site: MakeSite, initial: Initial) -> None:
    own = make_site(momentum=0.9, weight_decay=0.01, batch_size=4)
    told = negated(make_site(), initial(), momentum=0.9, weight_decay=0.01, batch_size=4)
    assert negated(own, initial()).sha256() == told.sha256() != negated(make_site(), initial()).sha256()
    assert negated(own, initial(), momentum=0.0, weight_decay=0.0, batch_size=8).sha256() == (
        negated(make_site(), initial()).sha256()
    )
    assert negated(make_site(), initial(), optimizer="adam", lr=1e-4).sha256() != (
        negated(make_site(), initial(), lr=1e-4).sha256()
    )


@pytest.mark.parametrize("paced_by", ["forget", "retain"])
def test_no_retain_record_is_read(make_site: MakeSite, initial: Initial, paced_by: str) -> None:
    site, spied = make_site(), make_site()
    spied.train.inputs[spied.records("retain", "class:1", 0)] = 255
    a, b = (negated(s, initial(), paced_by=paced_by, lr=1e-3) for s in (site, spied))
    assert a.sha256() == b.sha256() != initial().sha256()


def test_paced_by_retain_records_there_are_as_many_steps_as_retain_batches(
    make_site: MakeSite, initial: Initial
) -> None:
    site = make_site(train=60)
    retain, forget = (len(site.records(which, "class:1", 0)) for which in ("retain", "forget"))
    reply = ask(site, "negate", initial(), paced_by="retain", **{**CALL, "lr": 1e-4})
    assert reply.metrics["num-batches"] == 2 * -(-retain // 8) != 2 * -(-forget // 8)
    whole = ask(site, "negate", initial(), **{**CALL, "request": "client:site-0", "lr": 1e-4, "paced_by": "retain"})
    assert whole.metrics["num-batches"] == 2 * -(-60 // 8), "a site that keeps nothing counts its forget batches"


def test_the_loss_reported_is_the_task_s_and_rises(make_site: MakeSite, initial: Initial) -> None:
    first = ask(make_site(), "negate", initial(), **CALL)
    later = ask(make_site(), "negate", first.state, **CALL)
    assert 0 < first.metrics["loss"] < later.metrics["loss"]


@pytest.mark.parametrize(("bn_mode", "moves"), [("eval", False), ("train", True)])
def test_statistics_are_kept_in_eval_mode(make_site: MakeSite, initial: Initial, bn_mode: str, moves: bool) -> None:
    state = initial("resnet18")
    after = negated(make_site(train=12, model="resnet18"), state, bn_mode=bn_mode, lr=1e-4, epochs=1)
    name = "bn1.running_mean"
    assert torch.equal(after.float_buffers[name], state.float_buffers[name]) != moves


def test_without_a_clip_it_diverges_to_a_usable_state(make_site: MakeSite, initial: Initial) -> None:
    reply = ask(make_site(), "negate", initial(), **{**CALL, "lr": 50.0, "epochs": 5})
    assert reply.config["status"] == "diverged"
    assert reply.state is not None and reply.state.is_finite()
