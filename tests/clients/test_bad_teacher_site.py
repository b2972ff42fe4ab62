"""Bad Teacher at a site (METHODS 2.3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from test_operations import ask

from clients.forgetting import Records
from clients.site import Site
from partitions.seeds import derive_seed
from unlearning.state import State, distance

MakeSite = Callable[..., Site]
Initial = Callable[..., State]
CALL = {"seed": 3, "lr": 0.05, "epochs": 2, "round": 1, "request": "class:1", "request_seed": 0, "records": "both"}
CALL = {**CALL, "teacher_seed": 11}


def run(site: Site, state: State, states: dict[str, State] | None = None, **changes: object) -> State:
    after = ask(site, "two_teachers", state, states, **{**CALL, **changes}).state
    assert after is not None
    return after


def test_it_sees_all_forget_records_and_a_share_of_the_others(make_site: MakeSite, initial: Initial) -> None:
    site = make_site(train=60)
    forget, retain = (len(site.records(which, "class:1", 0)) for which in ("forget", "retain"))
    for share in (0.3, 1.0):
        reply = ask(site, "two_teachers", initial(), retain_share=share, **CALL)
        assert reply.metrics["examples"] == 2 * (forget + round(share * retain))


def test_the_share_is_of_the_same_records_in_every_round_and_no_other_is_read(
    make_site: MakeSite, initial: Initial
) -> None:
    site, spied = make_site(), make_site()
    retain = Records(site, site.records("retain", "class:1", 0), "retain")
    used = retain.sample(0.3, derive_seed(3, "bad-teacher-retain", "site-0"))
    spied.train.inputs[[i for i in retain.indices if i not in used.indices]] = 255
    for round_ in (1, 2):
        a, b = (run(s, initial(), round=round_) for s in (site, spied))
        assert a.sha256() == b.sha256() != initial().sha256()


@pytest.mark.parametrize(("records", "unread"), [("forget", "retain"), ("retain", "forget")])
def test_a_turn_reads_its_own_records_only(make_site: MakeSite, initial: Initial, records: str, unread: str) -> None:
    site, spied, teacher = make_site(), make_site(), {"teacher": initial(seed=5)}
    spied.train.inputs[spied.records(unread, "class:1", 0)] = 255  # type: ignore[arg-type]
    a, b = (run(s, initial(), teacher, records=records) for s in (site, spied))
    assert a.sha256() == b.sha256() != initial().sha256()


def test_a_retain_turn_leaves_the_good_teacher_where_it_is(make_site: MakeSite, initial: Initial) -> None:
    assert distance(run(make_site(), initial(), records="retain"), initial()) < 1e-5
    assert distance(run(make_site(), initial(), {"teacher": initial(seed=5)}, records="retain"), initial()) > 1e-3


def test_the_bad_teacher_is_the_fresh_model_of_its_seed(make_site: MakeSite, initial: Initial) -> None:
    site = make_site()
    bad = initial(seed=11)
    after = run(site, initial(seed=5), records="forget", epochs=30, max_norm=5.0)
    other = initial(seed=12)

    def gap(state: State, teacher: State) -> float:
        table = ask(site, "scorecard", state, {"other": teacher}, request="class:1", request_seed=0).tables[
            "comparison"
        ]
        return float(table["kl"].mean())

    assert gap(after, bad) < gap(initial(seed=5), bad) / 2
    assert gap(after, bad) < gap(after, other)


def test_settings_reach_the_method(make_site: MakeSite, initial: Initial) -> None:
    def result(**own: object) -> str:
        return run(make_site(), initial(), **own).sha256()

    assert result() == result(temperature=1.0, retain_share=0.3, reduction="batchmean")
    changed: list[dict[str, object]] = [
        {"temperature": 2.0},
        {"retain_share": 0.9},
        {"reduction": "mean"},
        {"teacher_seed": 12},
        {"optimizer": "adam"},
    ]
    assert len({result(), *(result(**own) for own in changed)}) == 1 + len(changed)


def test_it_runs_with_batch_norm(make_site: MakeSite, initial: Initial) -> None:
    reply = ask(make_site(train=12, model="resnet18"), "two_teachers", initial("resnet18"), **{**CALL, "epochs": 1})
    assert reply.config["status"] == "ok" and reply.state is not None and reply.state.is_finite()
