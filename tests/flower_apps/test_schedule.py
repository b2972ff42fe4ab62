"""Facts about the order in which groups run, and what each is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_apps.schedule import (
    CELL_KEYS,
    SWITCH,
    Backlog,
    Slot,
    Work,
    at_once,
    expected_work,
    federation,
    fitting,
    gpu_part,
    side_by_side,
    sites_at_once,
    slots,
    workers_at_once,
    works_of,
)
from flower_apps.settings import GroupSettings


def group(**values) -> GroupSettings:
    return GroupSettings.parse({"dataset": "digits", "home": "/nowhere", **values})


def backlog(*works: tuple[str, str, float]) -> Backlog:
    """Make a backlog of works given as original, place and seconds."""
    return Backlog([Work(group(name=f"{o}{s:g}"), o, p, s) for o, p, s in works])


def drain(waiting: Backlog, lane: Work | None = None) -> list[str]:
    order = []
    while (work := waiting.take(lane)) is not None:
        order.append(work.group.name)
        waiting.end(work)
        lane = work
    return order


def test_groups_that_differ_in_what_is_done_to_an_original_share_it():
    same = {
        "requests": "class:5",
        "methods": "ga",
        "unlearn-epochs": 9,
        "recovery-rounds": 1,
        "name": "x",
        "shadows": 2,
    }
    works = works_of([group(), group(**same), group(**{"gpu-share": 0.5, "workers": 3, "timeout": 9.0})], lambda g: 1.0)
    assert len({work.original for work in works}) == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train-seed", 1), ("lr", 0.5), ("cap", 9), ("split", "iid"), ("model", "resnet18"), ("rounds", 3),
        ("precision", "bf16-mixed"), ("backdoor-site", "site-0"), ("history-every", 2), ("history-half", True),
        ("original", "/a"), ("threads", 2), ("failure-policy", "continue"), ("fresh", True), ("split-seed", 4),
    ],
)  # fmt: skip
def test_groups_that_differ_in_what_makes_an_original_do_not_share_one(key, value):
    works = works_of([group(), group(**{key: value})], lambda g: 1.0)
    assert works[0].original != works[1].original


def test_one_flower_run_takes_other_seeds_but_not_other_sites():
    places = [work.place for work in works_of([group(), group(**{"train-seed": 1}), group(cap=9)], lambda g: 1.0)]
    assert places[0] == places[1] != places[2]


def test_the_longest_original_begins_and_its_groups_follow_one_another():
    assert drain(backlog(("a", "p", 10), ("b", "p", 8), ("b", "p", 6), ("a", "p", 1))) == ["b8", "b6", "a10", "a1"]


def test_a_lane_prefers_what_it_can_go_on_with_unless_something_longer_waits():
    near = backlog(("a", "p", 1), ("b", "p", 10), ("c", "q", 10 + SWITCH / 2))
    lane = near.take()
    assert lane is not None and lane.group.name == "c17.5"
    near = backlog(("a", "p", 30), ("b", "p", 10), ("c", "q", 10 + SWITCH / 2))
    first = near.take()
    near.end(first)
    assert near.take(first).group.name == "b10"
    far = backlog(("a", "p", 90), ("b", "p", 10), ("c", "q", 10 + 2 * SWITCH))
    first = far.take()
    far.end(first)
    assert far.take(first) is None, "the lane ends, since the longest needs another"
    assert far.take().group.name == "c40"


def test_the_last_original_is_split_over_jobs_that_would_be_idle_only_where_that_is_wanted():
    waiting = backlog(("a", "p", 9), ("a", "p", 8))
    first = waiting.take()
    assert waiting.take(split=False) is None
    assert waiting.take().group.name == "a8"
    assert first.group.name == "a9" and waiting.take() is None


def test_work_that_was_given_back_is_next():
    waiting = backlog(("a", "p", 9), ("b", "p", 8))
    work = waiting.take()
    waiting.give_back(work)
    assert len(waiting) == 2
    assert waiting.take() == work


def test_longer_groups_are_expected_to_take_longer():
    base = expected_work(group(), 1000)
    for longer in ({"rounds": 40}, {"methods": "ga,pga,ssd,prune,not"}, {"shadows": 2}, {"model": "resnet18"},
                   {"unlearn-seeds": "0,1"}, {"requests": "class:5;class:6"}):  # fmt: skip
        assert expected_work(group(**longer), 1000) > base
    assert expected_work(group(), 2000) == pytest.approx(2 * base)
    assert expected_work(group(original="/a"), 1000) < base


@pytest.mark.parametrize(
    ("jobs", "gpus", "expected"),
    [
        (2, 0, [((), 1), ((), 1)]),
        (1, 2, [((0, 1), 1)]),
        (2, 2, [((0,), 1), ((1,), 1)]),
        (2, 3, [((0,), 1), ((1, 2), 1)]),
        (3, 2, [((0,), 2), ((1,), 1), ((0,), 2)]),
    ],
)
def test_gpus_are_shared_out_to_jobs(jobs, gpus, expected):
    assert [(slot.gpus, slot.sharing) for slot in slots(jobs, gpus)] == expected


@pytest.mark.parametrize(
    ("asked", "cores", "jobs", "expected"),
    [
        (None, 8, 2, 4),
        (None, 8, 1, 5),  # five sites
        (None, 1, 2, 1),
        (3, 8, 6, 3),
        (9, 2, 1, 5),
    ],
)
def test_jobs_share_the_cores(asked, cores, jobs, expected):
    assert workers_at_once(group(), 5, asked=asked, cores=cores, jobs=jobs) == expected


def test_a_group_limits_its_own_workers_and_threads_count():
    assert workers_at_once(group(workers=2), 5, asked=4, cores=8, jobs=1) == 2
    assert workers_at_once(group(threads=4), 5, asked=None, cores=8, jobs=1) == 2


def test_cores_are_shared_among_the_originals_of_the_whole_command():
    groups = [group(), group(methods="ga"), group(**{"train-seed": 1})]
    assert [side_by_side(groups, jobs, None) for jobs in (1, 2, 4)] == [1, 2, 2]
    assert side_by_side(groups, 4, 1) == 3, "with workers given, an idle job takes over half an original"


ORIGINAL_KEYS = """
    home depot out dataset cap split split_seed sites alpha sole_holder holdout task model original train_seed lr
    momentum strategy server_lr prox_mu
    weight_decay batch_size last_batch local_epochs rounds fraction_train precision channels_last threads device
    failure_policy history_every history_half fresh backdoor_site backdoor_target backdoor_fraction backdoor_size
    backdoor_seed
"""


def test_every_setting_either_makes_another_original_or_may_differ_in_one():
    assert CELL_KEYS.isdisjoint(ORIGINAL_KEYS.split())
    assert CELL_KEYS | set(ORIGINAL_KEYS.split()) == set(GroupSettings.model_fields)


def test_groups_that_differ_in_their_search_only_share_an_original():
    several = [group(), group(**{"search": '{"ga": {"lr": [1, 2]}}', "search-seed": 3, "search-sampler": "random"})]
    assert len({work.original for work in works_of(several, lambda _: 1.0)}) == 1


def test_what_ray_is_asked_for_holds_just_the_sites_at_once():
    assert federation(group(threads=2), 5, 3, Slot(0)) == {
        "num-supernodes": 5, "client-resources-num-cpus": 2, "init-args-num-cpus": 6,
    }  # fmt: skip
    asked = federation(group(), 9, 5, Slot(0, (0, 1)))
    assert (asked["client-resources-num-gpus"], asked["init-args-num-gpus"], asked["init-args-num-cpus"]) == (
        0.3333,
        2,
        5,
    )


def test_a_share_or_a_limit_takes_sites_off_a_gpu():
    two = Slot(0, (0, 1))
    assert federation(group(**{"gpu-share": 0.5}), 9, 8, two)["init-args-num-cpus"] == 4
    assert federation(group(), 9, 8, two, limit=1) == {
        "num-supernodes": 9, "client-resources-num-cpus": 1, "client-resources-num-gpus": 1.0, "init-args-num-gpus": 2,
        "init-args-num-cpus": 2,
    }  # fmt: skip
    assert at_once(group(), 8, Slot(0, (0,), sharing=2)) == 16
    assert at_once(group(), 8, Slot(0, (0,), sharing=2), limit=6) == 6
    assert federation(group(), 9, 4, Slot(0), limit=2)["init-args-num-cpus"] == 2, "without a GPU it limits the sites"


@pytest.mark.parametrize("each", range(1, 101))
def test_just_so_many_sites_fit_with_their_part_of_a_gpu(each):
    part = gpu_part(each)
    assert each * round(part * 10_000) <= 10_000 < (each + 1) * round(part * 10_000)
    assert int(1 / part) == each


def test_shares_people_write_fit_as_often_as_they_mean():
    assert [fitting(share) for share in (1.0, 0.5, 0.34, 0.3333333334, 0.25, 0.1, 0.04)] == [1, 2, 2, 3, 4, 10, 25]


def test_the_home_is_that_of_the_group():
    assert works_of([group()], lambda g: 1.0)[0].place[0].home == Path("/nowhere")


def test_a_limit_below_the_jobs_of_a_gpu_is_their_total():
    shared = Slot(0, (0,), sharing=2)
    assert [at_once(group(), 4, shared, limit) for limit in (None, 4, 2, 1)] == [8, 4, 2, 1]


def test_the_sites_really_at_once_are_those_that_are_asked_for():
    asked = federation(group(threads=2), 8, 8, Slot(0, (0, 1)), limit=2)
    assert sites_at_once(asked) == 4
