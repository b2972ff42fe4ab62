"""Advanced NegGrad at a site (METHODS 2.9)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from test_operations import ask

from clients.site import Site
from unlearning.state import State, distance

MakeSite = Callable[..., Site]
Initial = Callable[..., State]
CALL = {"seed": 3, "lr": 0.02, "epochs": 1, "round": 1, "request": "class:1", "request_seed": 0, "records": "both"}


def run(site: Site, state: State, **changes: object) -> State:
    after = ask(site, "negate_and_train", state, **{**CALL, **changes}).state
    assert after is not None
    return after


@pytest.mark.parametrize("which", ["forget", "retain"])
def test_both_kinds_of_record_are_read(make_site: MakeSite, initial: Initial, which: str) -> None:
    site, spied = make_site(), make_site()
    spied.train.inputs[spied.records(which, "class:1", 0)] = 255  # type: ignore[arg-type]
    assert run(site, initial()).sha256() != run(spied, initial()).sha256()


def test_there_is_a_step_for_each_retain_batch(make_site: MakeSite, initial: Initial) -> None:
    site = make_site(train=60)
    forget, retain = (len(site.records(which, "class:1", 0)) for which in ("forget", "retain"))
    reply = ask(site, "negate_and_train", initial(), **CALL)
    assert reply.metrics["num-batches"] == -(-retain // 8)
    assert (reply.metrics["num-forget"], reply.metrics["num-retain"]) == (forget, retain)


def test_retain_loss_falls_and_forget_loss_rises(make_site: MakeSite, initial: Initial) -> None:
    site = make_site(train=60)
    learnt = ask(site, "train", initial(), seed=3, lr=0.05, epochs=10, round=1).state
    assert learnt is not None
    after = run(site, learnt, epochs=3, max_norm=1.0)
    tables = [
        ask(site, "scorecard", state, request="class:1", request_seed=0).tables["scorecard"]
        for state in (learnt, after)
    ]
    trained = [table[table["split"] == "train"].groupby("selected")["loss"].mean() for table in tables]
    assert trained[1][True] > trained[0][True] + 0.5
    assert trained[1][False] < trained[0][False] + 0.1


def test_settings_reach_the_method(make_site: MakeSite, initial: Initial) -> None:
    plain = run(make_site(), initial())
    assert run(make_site(), initial(), forget_weight=1.0, cap=0.0, bn_mode="train").sha256() == plain.sha256()
    assert run(make_site(), initial(), forget_weight=0.5).sha256() != plain.sha256()
    capped, tuned = run(make_site(), initial(), cap=1e-6), run(make_site(), initial(), forget_weight=0.0)
    assert capped.sha256() == tuned.sha256() != plain.sha256()


@pytest.mark.parametrize(("bn_mode", "passes"), [("train", 2), ("joint", 1), ("eval", 0)])
def test_batch_norm_sees_two_passes_one_or_none(
    make_site: MakeSite, initial: Initial, bn_mode: str, passes: int
) -> None:
    site, state = make_site(train=12, model="resnet18"), initial("resnet18")
    name = "bn1.num_batches_tracked"
    reply = ask(site, "negate_and_train", state, bn_mode=bn_mode, **{**CALL, "lr": 1e-4})
    assert reply.state is not None
    seen = int(reply.state.int_buffers[name]) - int(state.int_buffers[name])
    assert seen == passes * reply.metrics["num-batches"]


def test_a_rate_of_zero_changes_no_parameter(make_site: MakeSite, initial: Initial) -> None:
    assert distance(run(make_site(), initial(), lr=0.0), initial()) == 0.0
