"""Facts about lanes: which groups a Flower run is given, what becomes of each, and what a full GPU changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flower_apps import lanes
from flower_apps.lane import NO_MORE, Lane, LaneSink
from flower_apps.lanes import Lanes, Means
from flower_apps.launcher import RunResult
from flower_apps.runs import group_id
from flower_apps.settings import GroupSettings
from flower_apps.watch import Ending
from partitions.errors import BadInput
from strategies.events import EventSink

SITES = 4
Execute = Callable[[str], str | None]


class FakeLauncher:
    """Plays launcher and ServerApp: executes the groups that a lane names, in the calling thread.

    `execute` gets a group's id and returns why it failed; "lost" loses a site, and ends the Flower run.
    """

    opened: list[FakeLauncher]
    execute: Execute
    full: list[int]

    def __init__(self, home, gpus=None, cluster=""):
        self.gpus, self.cluster, self.runs = gpus, cluster, []
        FakeLauncher.opened.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, config, federation, events_path, on_event, cancel, log_path, relieve):
        lane = Lane(Path(str(config["lane"])))
        groups: list[str] = []
        self.runs.append((config, dict(federation), groups))
        on_event({"kind": "run-started"})
        while FakeLauncher.full:  # sites at once on a GPU that this machine has no room for
            reason = "site-0 raised in round 2 of original: OutOfMemoryError: CUDA out of memory"
            relief, text = relieve(Ending("failed", reason, True, error="OutOfMemory"))
            if relief is None:
                return RunResult("failed", text, 1.0, log_path)
            FakeLauncher.full.pop()
            on_event({"kind": "note", "text": text})
            config, federation = {**config, **relief.run_config}, {**federation, **relief.federation}
            self.runs.append((config, federation, groups))
        for name in lane.groups():
            groups.append(name)
            on_event({"kind": "group-started", "group": name})
            why = FakeLauncher.execute(name)
            if why == "lost":
                on_event({"kind": "group-failed", "group": name, "reason": "a site is gone", "resumable": True})
                on_event({"kind": "failed", "reason": "a site is gone", "resumable": True})
                return RunResult("failed", "a site is gone", 1.0, log_path)
            kind = "group-failed" if why else "group-finished"
            on_event({"kind": kind, "group": name, "reason": why, "resumable": False})
        on_event({"kind": "finished"})
        return RunResult("completed", "", 1.0, log_path)


@pytest.fixture
def fake(monkeypatch):
    FakeLauncher.opened, FakeLauncher.full = [], []
    FakeLauncher.execute = staticmethod(lambda name: None)
    monkeypatch.setattr(lanes, "Launcher", FakeLauncher)

    class Split:
        sites = tuple(f"site-{number}" for number in range(SITES))

    monkeypatch.setattr(lanes, "partition_of", lambda group, home: Split())
    return FakeLauncher


class Outcome:
    """Runs groups and keeps all that is told of it."""

    def __init__(self, tmp_path: Path, *groups: dict, means: Means | None = None, command: list | None = None) -> None:
        places = {"home": str(tmp_path / "home"), "out": str(tmp_path / "run"), "dataset": "digits"}
        self.groups = [GroupSettings.parse({**places, **group}) for group in groups]
        self.ended: dict[str, str] = {}
        self.said: list[str] = []
        self.events: list[tuple[str, dict]] = []
        Lanes(
            self.groups,
            (means or Means(cores=8)).sharing(self.groups if command is None else command),
            lambda group: float(group.unlearn_epochs),
            lambda group: lambda event: self.events.append((group.name, event)),
            lambda group, reason, log: self.ended.__setitem__(group.name, reason),
            self.said.append,
        ).run(tmp_path / "home")

    def names(self, ids: list[str]) -> list[str]:
        by_id = {group_id(group): group.name for group in self.groups}
        return [by_id[one] for one in ids]

    def kinds(self, name: str) -> list[str]:
        return [event["kind"] for other, event in self.events if other == name]


def runs() -> list[tuple[dict, dict, list[str]]]:
    return [run for launcher in FakeLauncher.opened for run in launcher.runs]


ONE, TWO = {"name": "one", "unlearn-epochs": 9}, {"name": "two", "unlearn-epochs": 3}


def test_groups_of_one_original_are_one_flower_run_and_each_is_told_for_itself(tmp_path, fake):
    outcome = Outcome(tmp_path, TWO, ONE, {"name": "other", "train-seed": 1, "unlearn-epochs": 5})
    ((config, federation, groups),) = runs()
    assert outcome.names(groups) == ["one", "two", "other"]
    assert outcome.ended == {"one": "", "two": "", "other": ""}
    assert (config["workers"], federation["num-supernodes"], federation["init-args-num-cpus"]) == (SITES, SITES, SITES)
    assert outcome.kinds("two") == ["run-started", "group-finished"]
    assert Lane(Path(str(config["lane"]))).named() == NO_MORE


def test_a_group_that_fails_for_a_reason_of_its_own_lets_the_next_go_on(tmp_path, fake):
    outcome = None

    def execute(name):
        return "its retraining\ndiverged" if name == group_id(first) else None

    first = GroupSettings.parse({**ONE, "dataset": "digits"})
    fake.execute = staticmethod(execute)
    outcome = Outcome(tmp_path, ONE, TWO)
    assert outcome.ended == {"one": "its retraining diverged", "two": ""}
    assert len(runs()) == 1
    assert outcome.kinds("one") == ["run-started", "run-started", "failed"], "a lane and its group begin, one fails"


def test_a_lane_that_lost_a_site_for_good_costs_its_group_and_another_lane_takes_the_rest(tmp_path, fake):
    first = GroupSettings.parse({**ONE, "dataset": "digits"})
    fake.execute = staticmethod(lambda name: "lost" if name == group_id(first) else None)
    outcome = Outcome(tmp_path, ONE, TWO)
    assert outcome.ended == {"one": "a site is gone", "two": ""}
    assert [outcome.names(groups) for _, _, groups in runs()] == [["one"], ["two"]]
    assert outcome.kinds("one").count("failed") == 1


def test_other_sites_are_another_flower_run(tmp_path, fake):
    outcome = Outcome(tmp_path, {**ONE, "cap": 5}, {**TWO, "cap": 9})
    assert [outcome.names(groups) for _, _, groups in runs()] == [["one"], ["two"]]
    assert outcome.ended == {"one": "", "two": ""}


def test_jobs_run_side_by_side_within_the_cores(tmp_path, fake):
    both = threading.Barrier(2, timeout=20)
    fake.execute = staticmethod(lambda name: both.wait() and None)
    outcome = Outcome(tmp_path, ONE, {**TWO, "train-seed": 1}, means=Means(jobs=2, cores=6))
    assert outcome.ended == {"one": "", "two": ""}
    assert sorted(config["workers"] for config, _, _ in runs()) == [3, 3]
    assert len(FakeLauncher.opened) == 1, "one SuperLink for both"


def test_jobs_that_the_machine_has_no_cores_for_wait_and_say_so_once(tmp_path, fake):
    working = []

    def execute(name):
        working.append(1)
        assert sum(working) == 1
        time.sleep(0.05)
        working.append(-1)

    fake.execute = staticmethod(execute)
    groups = [{"name": str(seed), "train-seed": seed, "cap": seed + 1} for seed in range(3)]
    outcome = Outcome(tmp_path, *groups, means=Means(jobs=3, workers=2, cores=3))
    assert set(outcome.ended.values()) == {""} and len(outcome.ended) == 3
    assert len(outcome.said) == 1 and "3 cores" in outcome.said[0]


def test_an_idle_job_takes_over_half_of_the_last_original_where_the_workers_are_given(tmp_path, fake):
    both = threading.Barrier(2, timeout=20)
    fake.execute = staticmethod(lambda name: both.wait() and None)
    outcome = Outcome(tmp_path, ONE, TWO, means=Means(jobs=2, workers=1, cores=2))
    assert outcome.ended == {"one": "", "two": ""} and len(runs()) == 2


def test_an_original_alone_gets_the_cores_of_idle_jobs_where_they_are_not(tmp_path, fake):
    Outcome(tmp_path, ONE, TWO, means=Means(jobs=2, cores=4))
    ((config, _, groups),) = runs()
    assert (config["workers"], len(groups)) == (4, 2)


def test_each_job_sees_gpus_of_its_own(tmp_path, fake, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 7")
    both = threading.Barrier(2, timeout=20)
    fake.execute = staticmethod(lambda name: both.wait() and None)
    Outcome(tmp_path, ONE, {**TWO, "train-seed": 1}, means=Means(jobs=2, gpus=2, cores=2))
    assert [launcher.gpus for launcher in FakeLauncher.opened] == [["4"], ["7"]]
    assert [federation["init-args-num-gpus"] for _, federation, _ in runs()] == [1, 1]


def test_more_gpus_than_are_visible_are_refused(tmp_path, fake, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    with pytest.raises(BadInput, match="--gpus=2: allowed is up to 1"):
        Outcome(tmp_path, ONE, means=Means(gpus=2, cores=2))


def test_one_job_sees_all_gpus(tmp_path, fake):
    Outcome(tmp_path, ONE, means=Means(gpus=2, cores=2))
    assert [launcher.gpus for launcher in FakeLauncher.opened] == [None]
    assert runs()[0][1]["init-args-num-gpus"] == 2


def test_a_full_gpu_halves_the_sites_at_once_for_the_rest_of_the_command(tmp_path, fake):
    fake.full = [1]
    outcome = Outcome(tmp_path, {**ONE, "cap": 5}, {**TWO, "cap": 9}, means=Means(gpus=1, cores=4))
    parts = [federation["client-resources-num-gpus"] for _, federation, _ in runs()]
    assert parts == [0.25, 0.5, 0.5]
    assert [config["workers"] for config, _, _ in runs()] == [4, 2, 2], "timings tell how many were at once"
    (note,) = [event["text"] for _, event in outcome.events if event["kind"] == "note"]
    for fact in ("site-0", "batch-size 64", "4 sites at once", "with 2 at once"):
        assert fact in note
    assert outcome.ended == {"one": "", "two": ""}


def test_a_gpu_too_small_for_one_site_fails_in_one_line_with_the_remedy(tmp_path, fake):
    fake.full = [1, 1, 1]
    outcome = Outcome(tmp_path, ONE, means=Means(gpus=1, cores=4))
    reason = outcome.ended["one"]
    assert "one site at a time" in reason and "lower batch-size" in reason and "precision" in reason
    assert "\n" not in reason and len(runs()) == 3


def test_sites_that_an_estimate_leaves_out_are_left_out_from_the_start(tmp_path, fake):
    one = GroupSettings.parse({**ONE, "dataset": "digits"})
    Outcome(tmp_path, ONE, means=Means(gpus=1, cores=4, at_once={group_id(one): 3}))
    assert runs()[0][1]["client-resources-num-gpus"] == 0.3333
    assert runs()[0][0]["workers"] == 3


def test_workers_do_not_depend_on_what_the_cache_has(tmp_path, fake):
    other = GroupSettings.parse({**TWO, "dataset": "digits", "train-seed": 1})
    one = GroupSettings.parse({**ONE, "dataset": "digits"})
    Outcome(tmp_path, ONE, means=Means(jobs=2, cores=4), command=[one, other])
    assert runs()[0][0]["workers"] == 2


def test_jobs_that_share_a_full_gpu_end_at_one_in_total(tmp_path, fake):
    fake.full = [1] * 6
    outcome = Outcome(tmp_path, ONE, {**TWO, "train-seed": 1}, means=Means(jobs=2, gpus=1, workers=1, cores=2))
    notes = [event["text"] for _, event in outcome.events if event["kind"] == "note"]
    assert len(notes) <= 2 and all("with 1 at once" in note for note in notes)
    for reason in outcome.ended.values():
        assert "one site at a time" in reason
    assert len(outcome.ended) == 2


def test_bad_input_of_one_lane_ends_all(tmp_path, fake, monkeypatch):
    def refuse(self, *args, **more):
        raise BadInput("threads", 9, "up to 2")

    monkeypatch.setattr(FakeLauncher, "run", refuse)
    with pytest.raises(BadInput, match="threads=9"):
        Outcome(tmp_path, ONE)


def test_a_server_app_yields_what_is_named_then_and_starts_again_with_the_last(tmp_path):
    lane = Lane.new(tmp_path)
    assert lane.folder == tmp_path / "lanes" / "1" and Lane.new(tmp_path).folder.name == "2"
    named = iter(["a", "b", NO_MORE])
    seen = []
    for name in lane.groups(wait=lambda _: lane.name(next(named))):
        seen.append(name)
    assert seen == ["a", "b"]
    lane.name("b")
    assert next(lane.groups()) == "b", "a run that was submitted again goes on with it"


def test_a_groups_events_are_its_own_and_the_lanes(tmp_path):
    own, lane = tmp_path / "own.jsonl", EventSink(tmp_path / "lane.jsonl")
    sink = LaneSink(own, lane, "abc")
    sink.emit("run-started")
    sink.emit("stage-started", label="original")
    sink.emit("failed", reason="x", resumable=False)
    kinds = [line.split('"')[3] for line in own.read_text().splitlines()]
    assert kinds == ["run-started", "stage-started", "failed"]
    text = (tmp_path / "lane.jsonl").read_text()
    assert [line.split('"')[3] for line in text.splitlines()] == ["group-started", "stage-started", "group-failed"]
    assert text.count('"group": "abc"') == 3


def test_what_a_stage_was_timed_with_is_never_more_sites_than_there_are(tmp_path):
    from flower_apps.scoring import _spent
    from flower_apps.stages import Stage

    old = Stage(tmp_path, {"cost": {"seconds": 1.0}, "conditions": {"host": "h", "workers": 8, "jobs": 1}})
    new = Stage(tmp_path, {"cost": {"seconds": 2.0}, "conditions": {"host": "h", "workers": 4, "jobs": 1}})
    spent = _spent(old, new, 4)
    assert (spent["workers"], spent["recovery_workers"]) == (4, 4)
    assert _spent(old, None, 6)["workers"] == 6
    assert "workers" not in _spent(Stage(tmp_path, {"cost": {}, "conditions": {}}), None, 6)
