"""A plan and the run it predicts are one: the same stages, keys, rounds and records, kind by kind."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from in_process import Killed, kill_at, run_group

from flower_apps.cluster import Cluster, Node
from flower_apps.lanes import Means
from flower_apps.plan import Plan, check_plan, make_plan
from flower_apps.planned import Rehearsed
from flower_apps.rehearsal import rehearse
from flower_apps.runs import stages_of
from flower_apps.settings import GroupSettings
from flower_apps.stages_done import Planned, StagesDone, mark_done
from partitions.depot import Depot, open_depot
from partitions.errors import BadInput, RunFailed

SMALL = {
    "name": "small",
    "dataset": "digits",
    "cap": 30,
    "split": "dirichlet",
    "sites": 3,
    "alpha": 10.0,
    "holdout": 0.4,
    "rounds": 2,
    "local-epochs": 1,
    "batch-size": 16,
    "lr": 0.05,
    "methods": "federaser,fedquit",
    "preset": "safe",
    "unlearn-epochs": 1,
    "recovery-rounds": 1,
    "recovery-epochs": 1,
    "requests": "client:site-1",
    "device": "cpu",
}


def small(home: Path, **changes: object) -> GroupSettings:
    named = {key.replace("_", "-"): value for key, value in changes.items()}
    return GroupSettings.parse({**SMALL, "home": str(home), **named})


@pytest.fixture(scope="module", autouse=True)
def unscored() -> Iterator[None]:
    """Leave out the evaluator, which has no stages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evaluation.evaluator.InProcess.submit", lambda self, submission: None)
        yield


def kinds(found: Rehearsed, *, cached: bool | None = None) -> Counter[str]:
    return Counter(stage.kind for stage in found.stages if cached in (None, stage.cached))


def planned(settings: GroupSettings, home: Path) -> Plan:
    plan = make_plan([settings], home)
    assert plan is not None
    return plan


@pytest.mark.parametrize(
    "changes",
    [
        {"shadows": 2, "relearn_epochs": 1, "features": 4, "methods": "federaser"},
        {
            "requests": "client:site-1 > class:3",
            "methods": "federaser,fused",
            "backdoor_site": "site-1",
            "history_every": 2,
            "fraction_train": 0.7,
        },
        {"methods": "fedquit", "search": '{"fedquit": {"lr": [0.01, 0.02]}}'},
    ],
    ids=["attacks", "sequence", "search"],
)
def test_what_is_planned_is_what_is_computed(tmp_path: Path, changes: dict[str, object]) -> None:
    home, out = tmp_path / "home", tmp_path / "run"
    settings = small(home, **changes)
    before = rehearse(settings, home)
    assert not before.fails
    assert not before.doubts
    assert not kinds(before, cached=True)
    assert not (home / "stages").exists(), "a plan writes nothing"

    grid = run_group(settings, home, out)
    computed = {tuple(line.split("/")) for line in stages_of(out)}
    assert kinds(before) == Counter(kind for kind, _ in computed)
    known = {(stage.kind, stage.key) for stage in before.stages if not stage.is_planned}
    assert known <= computed
    assert {kind for kind, _ in computed - known} <= {"score", "relearn"}, "only what stands on weights has no key yet"

    told = StagesDone(home / "stages")
    for line in (out / "events.jsonl").read_text().splitlines():
        told.take(json.loads(line))
    planned = [
        Planned((stage.kind, stage.label), "" if stage.is_planned else stage.key, ("g",), False, 0.0)
        for stage in before.stages
    ]
    done = mark_done(planned, {"g": told})
    assert [stage.about for stage, is_done in zip(planned, done, strict=True) if not is_done] == []

    sent = sum(count for kind, count in grid.sent.items() if kind.startswith("train."))
    assert sum(stage.work.messages for stage in before.stages if stage.kind != "score") == sent
    for stage in before.stages:
        record = home / "stages" / stage.kind / stage.key / "stage.json"
        if stage.work.rounds and record.exists():
            cost = json.loads(record.read_text())["cost"]
            assert stage.work.examples == cost["client_examples"], stage.label

    after = rehearse(settings, home)
    assert not kinds(after, cached=False)
    assert kinds(after) == kinds(before) - Counter(shadow=settings.shadows), "the rounds of shadows are let go"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    run_group(small(home, methods="fedquit"), home, tmp_path_factory.mktemp("run"))
    return home


def test_another_method_finds_everything_that_others_share(done: Path) -> None:
    more = rehearse(small(done, methods="fedquit,ga"), done)
    assert kinds(more, cached=False) == {"unlearn": 1, "recover": 1, "score": 2}


def test_an_interrupted_training_is_planned_from_where_it_stopped(tmp_path: Path) -> None:
    home = tmp_path / "home"
    settings = small(home)
    whole = planned(settings, home)
    with pytest.raises(Killed):
        run_group(settings, home, tmp_path / "run", before=kill_at("train.train", 4))
    rest = planned(settings, home)
    assert [len(plan.steps[0].stage.work.left) for plan in (whole, rest)] == [2, 1]
    assert rest.steps[0].seconds == pytest.approx(whole.steps[0].seconds / 2)
    assert len(rest.steps[0].stage.work.rounds) == 2, "methods that replay it see all of them"


def test_a_sequence_starts_every_step_where_the_last_one_ended(tmp_path: Path) -> None:
    found = rehearse(small(tmp_path, requests="client:site-1 > class:3", methods="fedquit"), tmp_path)
    assert kinds(found) == {"train": 1, "retrain": 2, "unlearn": 4, "recover": 6, "score": 6 + 7}


def test_an_imported_original_is_no_work_and_methods_that_replay_it_are_not_planned(done: Path) -> None:
    (weights,) = (done / "stages" / "train").glob("*/model.safetensors")
    found = rehearse(small(done, original=str(weights), methods="federaser,fedquit"), done)
    original = found.stages[0]
    assert (original.kind, original.cached, original.work.messages) == ("train", False, 0)
    assert [stage.method for stage in found.stages if stage.kind == "unlearn"] == ["fine-tuning", "fedquit"]
    scored = [stage for stage in found.stages if stage.label.startswith("score original ")]
    assert scored[0].cached, "the same weights were scored against the same gold"
    assert not (done / "stages" / "train" / original.key).exists()


def test_groups_that_share_stages_count_them_once(tmp_path: Path) -> None:
    groups = [small(tmp_path, recovery_rounds=count) for count in (1, 2)]
    means = Means(jobs=2, cores=8)
    plan = make_plan(groups, tmp_path, means=means)
    assert plan is not None
    train = plan.steps[0]
    assert train.stage.kind == "train"
    assert len(train.groups) == 2
    needed = plan.needed()
    assert needed.runs == 1, "cells that share an original are one Flower run"
    assert needed.stages == sum(len(found.stages) for found in plan.rehearsed) - needed.shared
    sites = [found.sites for found in plan.rehearsed]
    planned_for = [means.sharing(groups).workers_of(*one) for one in zip(groups, sites, strict=True)]
    assert list(plan.at_work.values()) == planned_for == sites, "as the lanes: one job has all cores"
    assert plan.jobs == 1
    first, second = plan.group_seconds()
    assert first > second, "the training counts for the first that needs it"


def test_a_plan_made_from_measured_stages_says_from_how_many(done: Path, tmp_path: Path) -> None:
    assert "guess" in planned(small(tmp_path), tmp_path).basis[0]
    measured = planned(small(done, methods="fedquit", train_seed=1), done)
    assert measured.basis[0].startswith("cnn in 32-true on cpu: 5 stages measured, the last today")
    assert all(step.seconds > 0 for step in measured.steps if step.stage.work.examples)


def test_a_cached_original_that_diverged_is_told_before_the_run(tmp_path: Path) -> None:
    home = tmp_path / "home"
    settings = small(home, lr=1e6)
    with pytest.raises(RunFailed):
        run_group(settings, home, tmp_path / "run")
    plan = planned(settings, home)
    assert "diverged" in plan.fails[0]


def test_the_plan_in_a_run_folder_lists_every_stage(tmp_path: Path) -> None:
    plan = planned(small(tmp_path), tmp_path)
    plan.write(tmp_path)
    told = json.loads((tmp_path / "plan.json").read_text())
    assert len(told["stages"]) == told["totals"]["stages"]
    assert {"kind", "label", "key", "group", "cached", "seconds"} <= told["stages"][0].keys()
    scores = [stage for stage in told["stages"] if stage["kind"] == "score"]
    assert scores
    assert all(stage["key"] is None for stage in scores), "the weights are not known yet"
    assert plan.line().startswith(f"{len(plan.steps)} stages, about ")


def test_what_a_depot_has_is_no_work_but_comes_to_the_disk(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    depot = str(tmp_path / "depot")
    opened = open_depot(depot)
    for path in (done / "stages").glob("*/*/stage.json"):
        names = [*json.loads(path.read_text())["files"], "stage.json"]
        opened.push(f"stages/{path.parent.parent.name}/{path.parent.name}", path.parent, names)
    home = tmp_path / "home"
    listed = []
    names_of = Depot.names
    monkeypatch.setattr(Depot, "names", lambda self, path: listed.append(path) or names_of(self, path))
    for methods, left in (("fedquit", {}), ("fedquit,federaser", {"unlearn": 1, "recover": 1, "score": 2})):
        plan = planned(small(home, methods=methods, depot=depot), home)
        (found,) = plan.rehearsed
        assert not found.fails and not found.doubts
        assert kinds(found, cached=False) == left
        train = plan.steps[0].stage
        assert train.cached and train.kept > 0 and not train.work.left
        assert plan.needed().disk_kept >= train.kept
    assert len(listed) == len(set(listed)), "one listing a kind"
    assert not (home / "stages").exists()


def test_a_depot_that_does_not_answer_holds_no_plan_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(Depot, "names", lambda self, path: ended.wait(30))
    monkeypatch.setattr("flower_apps.depot_plan.PATIENCE", 0.01)
    settings = small(tmp_path, methods="fedquit", depot=str(tmp_path / "depot"))
    (found,) = planned(settings, tmp_path).rehearsed
    ended.set()
    assert not kinds(found, cached=True)
    (doubt,) = found.doubts
    assert "depot" in doubt and "no answer" in doubt


def test_a_group_that_takes_too_long_to_plan_is_given_up_within(tmp_path: Path) -> None:
    assert make_plan([small(tmp_path)], tmp_path, limit=-1.0) is None


def test_on_a_cluster_its_workers_count_and_this_machine_is_not_judged(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flower_apps.plan.psutil.virtual_memory", lambda: SimpleNamespace(total=1))
    monkeypatch.setattr("flower_apps.plan.usable_cores", lambda: 1)
    cluster = Cluster("head:6379", (Node("a", 2, 0, {}), Node("b", 1, 0, {})), 3)
    means = Means(jobs=4, cores=1)
    groups = [small(tmp_path, train_seed=seed, methods="fedquit") for seed in (1, 2)]
    plan = make_plan(groups, tmp_path, means=means, join=lambda: cluster)
    assert plan is not None
    assert (plan.jobs, plan.workers, plan.cluster, plan._crowding) == (1, 3, "head:6379", 1.0)
    check_plan(plan)
    with pytest.raises(BadInput, match="memory"):
        check_plan(make_plan(groups, tmp_path, means=means))

    def nobody() -> Cluster:
        raise AssertionError("everything is in the cache")

    assert make_plan([small(done, methods="fedquit")], done, means=means, join=nobody) is not None
