"""SCRUB at a site (METHODS 2.10)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from test_operations import ask

from clients.site import Site
from unlearning.state import State, distance

MakeSite = Callable[..., Site]
Initial = Callable[..., State]
CALL = {"seed": 3, "lr": 0.02, "epochs": 2, "round": 1, "request": "class:1", "request_seed": 0, "records": "both"}
CALL = {**CALL, "max_norm": 5.0}


def run(site: Site, state: State, states: dict[str, State] | None = None, **changes: object) -> State:
    after = ask(site, "scrub", state, states, **{**CALL, **changes}).state
    assert after is not None
    return after


@pytest.mark.parametrize(("records", "unread"), [("forget", "retain"), ("retain", "forget")])
def test_a_turn_reads_its_own_records_only(make_site: MakeSite, initial: Initial, records: str, unread: str) -> None:
    site, spied, teacher = make_site(), make_site(), {"teacher": initial(seed=5)}
    spied.train.inputs[spied.records(unread, "class:1", 0)] = 255  # type: ignore[arg-type]
    a, b = (run(s, initial(), teacher, records=records) for s in (site, spied))
    assert a.sha256() == b.sha256() != initial().sha256()


@pytest.mark.parametrize(("records", "epochs"), [("forget", 1), ("retain", 2), ("both", 3)])
def test_max_epochs_are_the_first_ones_and_min_epochs_all(
    make_site: MakeSite, initial: Initial, records: str, epochs: int
) -> None:
    site = make_site(train=60)
    n = {which: len(site.records(which, "class:1", 0)) for which in ("forget", "retain")}  # type: ignore[arg-type]
    reply = ask(
        site, "scrub", initial(), records=records, msteps=1, **{k: v for k, v in CALL.items() if k != "records"}
    )
    wanted = {"forget": n["forget"], "retain": 2 * n["retain"], "both": n["forget"] + 2 * n["retain"]}
    assert reply.metrics["examples"] == wanted[records]


def test_the_first_max_turn_of_a_model_without_batch_norm_hardly_moves_it(
    make_site: MakeSite, initial: Initial
) -> None:
    still = run(make_site(), initial(), records="forget")
    other = run(make_site(), initial(), {"teacher": initial(seed=5)}, records="forget")
    assert distance(still, initial()) < 1e-3 < distance(other, initial())


def test_the_teacher_is_the_one_sent_or_the_model_received(make_site: MakeSite, initial: Initial) -> None:
    plain = run(make_site(), initial())
    assert run(make_site(), initial(), {"teacher": initial()}).sha256() == plain.sha256()
    assert run(make_site(), initial(), {"teacher": initial(seed=5)}).sha256() != plain.sha256()


def test_settings_reach_the_method(make_site: MakeSite, initial: Initial) -> None:
    state, teacher = initial(), {"teacher": initial(seed=5)}

    def result(**own: object) -> str:
        return run(make_site(), state, teacher, **own).sha256()

    defaults = {"temperature": 2.0, "gamma": 1.0, "alpha": 0.5, "smoothing": 0.0, "msteps": 3, "order": "max-first"}
    assert result() == result(**defaults, decay_after="")
    changed: list[dict[str, object]] = [
        {"temperature": 4.0},
        {"gamma": 0.5},
        {"alpha": 1.0},
        {"smoothing": 0.5},
        {"msteps": 1},
        {"order": "min-first"},
        {"decay_after": "1"},
    ]
    assert len({result(), *(result(**own) for own in changed)}) == 1 + len(changed)


def test_the_clip_holds_the_max_steps(make_site: MakeSite, initial: Initial) -> None:
    site, state, teacher = make_site(), initial(), {"teacher": initial(seed=5)}
    reply = ask(site, "scrub", state, teacher, **{**CALL, "records": "forget", "max_norm": 1e-3, "lr": 1.0})
    assert reply.state is not None
    assert distance(reply.state, state) <= reply.metrics["num-batches"] * 1e-3 * 1.001


def test_it_forgets_a_class_and_keeps_the_others(make_site: MakeSite, initial: Initial) -> None:
    site = make_site(train=60)
    learnt = ask(site, "train", initial(), seed=3, lr=0.05, epochs=10, round=1).state
    assert learnt is not None
    after = run(site, learnt, epochs=8, msteps=5, order="min-first", lr=0.05)
    tables = [
        ask(site, "scorecard", state, request="class:1", request_seed=0).tables["scorecard"]
        for state in (learnt, after)
    ]
    trained = [table[table["split"] == "train"].groupby("selected")["loss"].mean() for table in tables]
    assert trained[1][True] > trained[0][True] + 0.5
    assert trained[1][False] < trained[0][False] + 0.2
