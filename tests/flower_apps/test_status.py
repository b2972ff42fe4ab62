"""Facts about what `lethe status` says of a run folder."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console
from runs_made import AWAY, GONE, HERE, make_events, make_run, make_stage

from evaluation.runs import read_record
from flower_apps import cli, status
from flower_apps.run_state import busy, state_of
from flower_apps.runs import RunFolder, name_run, stages_of
from flower_apps.status import RunWatch, newest_run, overview, show
from partitions.errors import BadInput

PLACE = {"stage": "train", "label": "original"}
GROUP, OTHER = "aaaa11112222", "bbbb11112222"
A, B, C = ("a" * 24, "b" * 24, "c" * 24)


def training(folder: Path, done: int = 2, group: str = GROUP) -> None:
    """Tell of a training of ten rounds that is in the round after `done`, with one of three sites heard."""
    begin = time.time() - 10.0 * done
    make_events(folder, {"kind": "run-started", "time": begin}, group=group)
    make_events(folder, {"kind": "stage-started", "time": begin, "rounds": 10, "round": 0, **PLACE}, group=group)
    for round_ in range(1, done + 2):
        at = begin + 10.0 * (round_ - 1)
        make_events(
            folder,
            {"kind": "round-started", "time": at, "round": round_, "rounds": 10, "sites": 3, **PLACE},
            group=group,
        )
        make_events(folder, {"kind": "reply", "time": at + 1, "round": round_, "site": "site-0", **PLACE}, group=group)
        if round_ <= done:
            make_events(
                folder, {"kind": "round-finished", "time": at + 10, "round": round_, "loss": 0.5, **PLACE}, group=group
            )


def shown(folder: Path, home: Path, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    show(folder, home, console, once=True)
    return console.file.getvalue()


def test_a_running_group_tells_round_sites_loss_and_time_left(tmp_path):
    folder = make_run(tmp_path, status="running", cells=False)
    training(folder)
    told = RunWatch(folder, tmp_path).summary()
    (group,) = told["groups"]
    assert (told["state"], group["state"]) == ("running", "running")
    (stage,) = group["stage"]
    assert (stage["label"], stage["round"], stage["rounds"]) == ("original", 3, 10)
    assert (stage["replied"], stage["sites"], stage["loss"]) == (1, 3, 0.5)
    assert stage["left"] == pytest.approx(80.0, abs=5.0)
    text = shown(folder, tmp_path)
    assert "original" in text and "3/10" in text and "1/3 sites" in text and "loss 0.500" in text and "left" in text
    assert max(map(len, text.splitlines())) <= 80


def test_what_a_command_does_beside_its_groups_is_told_while_it_runs(tmp_path):
    folder = make_run(tmp_path, status="running")
    RunFolder(folder).doing("writing the report")
    assert RunWatch(folder, tmp_path).summary()["doing"] == "writing the report"
    assert "writing the report" in shown(folder, tmp_path, 200)
    RunFolder(folder).end("completed", 0, [])
    assert RunWatch(folder, tmp_path).summary()["doing"] == ""
    assert "writing the report" not in shown(folder, tmp_path, 200)


def test_what_an_attempt_had_begun_that_was_killed_is_not_shown_beside_the_next_one(tmp_path):
    folder = make_run(tmp_path, status="running")
    training(folder, done=1)
    make_events(folder, {"kind": "run-started"})
    assert RunWatch(folder, tmp_path).summary()["groups"][0]["stage"] == []


def test_a_killed_run_is_interrupted_where_it_was_and_says_how_to_go_on(tmp_path):
    folder = make_run(tmp_path, status="running", by=GONE)
    training(folder)
    text = shown(folder, tmp_path)
    assert "interrupted" in text and "original 3/10" in text
    assert f"lethe resume {folder.name}" in text


def test_a_run_elsewhere_is_called_by_its_path_in_all_that_is_said_of_it(tmp_path, monkeypatch, capsys):
    home, out = tmp_path / "home", tmp_path / ("o" * 60) / "xo"
    monkeypatch.setenv("LETHE_HOME", str(home))
    out.parent.mkdir()
    make_run(tmp_path, "made", status="running", by=GONE).rename(out)
    name_run(home, out)
    assert f"go on with `lethe resume {out}`" in shown(out, home, 300)
    damaged = {"status": "running", "command": None}
    assert f"`lethe resume {out}`" in state_of(out, read_record(out) | damaged).note
    assert f"`lethe stop {out}`" in str(busy(out, read_record(out)))
    monkeypatch.setenv("COLUMNS", "300")
    assert cli.main(["status", "--all"]) == 0
    assert str(out) in capsys.readouterr().out
    (out / "run.json").write_text(json.dumps(read_record(out) | {"command": {**HERE, "groups": [GROUP]}}))
    with pytest.raises(BadInput, match=f"{out} is running"):
        newest_run(home, resumable=True)
    (out / "stages.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match=f"`lethe resume {out}`"):
        stages_of(out)


def test_what_failed_because_the_command_was_killed_is_not_told(tmp_path):
    folder = make_run(tmp_path, status="running", by=GONE)
    training(folder)
    make_events(folder, {"kind": "failed", "reason": "site-2 failed: its worker process died"})
    told = RunWatch(folder, tmp_path).summary()
    assert (told["state"], told["failure"], told["log"]) == ("interrupted", "", "")
    assert "site-2" not in shown(folder, tmp_path)


def test_damaged_runs_are_named_and_the_others_listed(tmp_path, capsys):
    make_run(tmp_path, "good", started=1000.0)
    make_run(tmp_path, "banana", status="banana")
    (make_run(tmp_path, "binary") / "stages.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "runs" / "elsewhere.txt").write_bytes(b"\xff\xfe")
    slow = {GROUP: {"name": "small", "timeout": "abc"}}
    make_run(tmp_path, "timeout", status="running", by=AWAY, groups=slow)
    assert cli.main(["status", "--all", "--json", "--home", str(tmp_path)]) == 0
    told = capsys.readouterr()
    rows = {row["name"]: row for row in json.loads(told.out)}
    assert set(rows) == {"good", "binary", "timeout"}
    assert "timeout that is no number" in rows["timeout"]["note"]
    assert "banana/run.json" in told.err and "elsewhere.txt" in told.err
    assert "stages.txt" in shown(tmp_path / "runs" / "binary", tmp_path, width=300)


def test_a_failure_is_told_with_its_log(tmp_path):
    outcome = {GROUP: {"status": "failed", "reason": "site-1 raised", "log": "/x/run.log", "ended": 1.0}}
    folder = make_run(tmp_path, status="failed", outcomes=outcome, failures=["site-1 raised; log: /x/run.log"])
    told = RunWatch(folder, tmp_path).summary()
    assert (told["failure"], told["log"]) == ("site-1 raised; log: /x/run.log", "/x/run.log")
    assert "site-1 raised; log: /x/run.log" in shown(folder, tmp_path)


def make_plan(folder: Path, *stages: tuple[str, str, str | None], groups: tuple[str, ...] = (GROUP,)) -> None:
    """Write a plan of stages (kind, label, key) of 60 s each; one whose label begins with ``cached`` is there."""
    found = [
        {"kind": kind, "label": label, "key": key, "group": groups[0], "groups": groups, "seconds": 60.0}
        | {"cached": label.startswith("cached")}
        for kind, label, key in stages
    ]
    (folder / "plan.json").write_text(json.dumps({"created": time.time() - 50.0, "stages": found}))


def counted(folder: Path, home: Path) -> tuple[int, int | None, float | None]:
    told = RunWatch(folder, home).summary()
    return told["stages_done"], told["stages_planned"], told["seconds_left"]


def claimed(kind: str, label: str, key: str) -> dict[str, str]:
    return {"kind": "claimed", "stage": kind, "name": label, "key": key}


def finished(kind: str, label: str, **more: str) -> dict[str, str]:
    return {"kind": "stage-finished", "stage": kind, "label": label, **more}


def test_a_plan_says_how_much_is_left(tmp_path):
    folder = make_run(tmp_path, status="running", by=AWAY, cells=False)
    make_plan(folder, ("train", "cached x", A), ("retrain", "y", B), ("retrain", "z", C))
    told = RunWatch(folder, tmp_path).summary()
    assert (told["stages_done"], told["stages_planned"], told["seconds_left"]) == (1, 3, 120.0)
    assert (told["groups"][0]["stages_done"], told["groups"][0]["stages_planned"]) == (1, 3)
    assert "1 of 3, about 2:00 left" in shown(folder, tmp_path)
    assert "cannot be asked from here" in shown(folder, tmp_path)
    make_events(folder, claimed("retrain", "y", B), finished("retrain", "y"))
    assert counted(folder, tmp_path) == (2, 3, 60.0)
    (folder / "plan.json").write_text("{}")
    assert RunWatch(folder, tmp_path).summary()["stages_planned"] is None


def test_scores_of_models_that_a_plan_could_not_know_count_once_each(tmp_path):
    folder = make_run(tmp_path, status="running", cells=False)
    make_plan(folder, *[("score", "score ga unlearned", None)] * 3, ("score", "score ga recovered", None))
    score = finished("score", "score ga unlearned", key=A)
    make_events(folder, score, {**score, "kind": "stage-cached"})
    assert counted(folder, tmp_path) == (1, 4, 180.0)
    make_events(folder, {**score, "key": B})
    assert counted(folder, tmp_path) == (2, 4, 120.0)


def test_one_training_makes_a_shadow_and_its_rounds_which_are_let_go_and_an_import_trains_nothing(tmp_path):
    folder = make_run(tmp_path, status="running", cells=False)
    make_plan(folder, ("train", "original", C), ("shadow", "shadow:1/2", A), ("shadow", "shadow:1/2", B))
    make_events(folder, claimed("train", "original", C), claimed("shadow", "shadow:1/2", A))
    make_stage(tmp_path, "train", C)
    make_events(folder, claimed("shadow", "shadow:1/2", B))
    assert counted(folder, tmp_path) == (1, 3, 120.0)
    make_events(folder, finished("shadow", "shadow:1/2"))
    assert counted(folder, tmp_path) == (3, 3, 0.0)


def test_what_was_there_before_is_not_done_by_a_command_that_computes_it_again(tmp_path):
    folder = make_run(tmp_path, status="running", cells=False)
    make_plan(folder, ("train", "original", A))
    old = make_stage(tmp_path, "train", A) / "stage.json"
    os.utime(old, (time.time() - 1000, time.time() - 1000))
    make_events(folder, {"time": time.time() - 1000, **finished("train", "original")})
    assert counted(folder, tmp_path) == (0, 1, 60.0)
    make_events(folder, claimed("train", "original", A))
    assert counted(folder, tmp_path) == (0, 1, 60.0)


def test_a_group_that_is_completed_has_all_its_stages_and_another_only_those_they_share(tmp_path):
    groups = {id: {"name": "small", "dataset": "digits"} for id in (GROUP, OTHER)}
    folder = make_run(tmp_path, status="running", cells=False, groups=groups)
    record = json.loads((folder / "run.json").read_text())
    record["command"]["groups"] = [GROUP, OTHER]
    record["outcomes"] = {GROUP: {"status": "completed", "reason": "", "log": "", "ended": 1.0}}
    (folder / "run.json").write_text(json.dumps(record))
    make_plan(folder, ("train", "original", A), groups=(GROUP, OTHER))
    plan = json.loads((folder / "plan.json").read_text())
    for group in groups:
        plan["stages"].append({**plan["stages"][0], "label": "score", "key": None, "group": group, "groups": [group]})
    (folder / "plan.json").write_text(json.dumps(plan))
    told = RunWatch(folder, tmp_path).summary()
    assert (told["stages_done"], told["stages_planned"], told["seconds_left"]) == (2, 3, 60.0)
    assert [(one["stages_done"], one["stages_planned"]) for one in told["groups"]] == [(2, 2), (1, 2)]


def test_a_plan_of_an_earlier_command_counts_for_nothing(tmp_path):
    folder = make_run(tmp_path, status="running", cells=False)
    make_plan(folder, ("train", "original", A))
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, "started": time.time()}))
    assert counted(folder, tmp_path) == (0, None, None)


def test_after_a_resume_nothing_is_told_of_what_the_command_before_it_began_or_failed_in(tmp_path):
    folder, begun = make_run(tmp_path, status="running", by=GONE, cells=False), {"rounds": 10, "round": 0, **PLACE}
    make_events(folder, {"kind": "stage-started", "time": time.time() - 20, **begun})
    watch = RunWatch(folder, tmp_path)
    assert watch.summary()["groups"][0]["stage"]
    make_events(folder, {"kind": "failed", "reason": "site-1 raised", "time": time.time() - 19})
    record = json.loads((folder / "run.json").read_text())
    record |= {"command": {**record["command"], **HERE}, "started": time.time() - 10}
    (folder / "run.json").write_text(json.dumps(record))
    watch.look()
    for told in (watch.summary(), RunWatch(folder, tmp_path).summary()):
        (group,) = told["groups"]
        assert (told["state"], told["failure"], told["log"], told["stages_done"]) == ("running", "", "", 0)
        assert (group["state"], group["stage"]) == ("waiting", [])
    make_events(folder, {"kind": "stage-started", **begun})
    watch.look()
    assert watch.summary()["groups"][0]["state"] == "running"


def test_a_terminal_is_kept_up_to_date_until_the_run_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(status, "EVERY", 0.01)
    folder = make_run(tmp_path, status="running")
    record = json.loads((folder / "run.json").read_text())

    def end() -> None:
        text = json.dumps({**record, "status": "completed", "exit_code": 0})
        (folder / "new").write_text(text)
        (folder / "new").replace(folder / "run.json")

    threading.Timer(0.3, end).start()
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    show(folder, tmp_path, console, once=False)
    assert "running" in console.file.getvalue() and "completed" in console.file.getvalue()


def test_runs_are_listed_the_last_started_first_with_their_state(tmp_path):
    make_run(tmp_path, "a-done", started=1000.0)
    make_run(tmp_path, "b-killed", status="running", by=GONE, started=3000.0)
    make_run(tmp_path, "c-older", status="", started=2000.0)
    rows = overview(tmp_path, 20)
    assert [(row["name"], row["state"]) for row in rows] == [
        ("b-killed", "interrupted"),
        ("c-older", "unrecorded"),
        ("a-done", "completed"),
    ]
    assert newest_run(tmp_path, resumable=True).name == "b-killed"
    with pytest.raises(BadInput, match="running"):
        newest_run(tmp_path, running=True)


def test_the_command_takes_the_last_run_also_without_a_finished_cell(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    make_run(tmp_path, "old", started=1000.0)
    make_run(tmp_path, "new", status="running", by=GONE, cells=False)
    for arguments in (["status"], ["status", "latest"]):
        assert cli.main([*arguments, "--json", "--home", str(tmp_path)]) == 0
        assert json.loads(capsys.readouterr().out)["name"] == "new"
    assert cli.main(["status", "--all", "--home", str(tmp_path)]) == 0
    assert "old" in capsys.readouterr().out
    assert cli.main(["status", "none", "--home", str(tmp_path)]) == 2
    assert cli.main(["status", "--home", str(tmp_path / "empty")]) == 2


def test_of_a_command_that_was_killed_the_stage_is_told_that_was_on_though_its_end_says_failed(tmp_path):
    folder, begun = make_run(tmp_path, status="running", by=GONE, cells=False), {"rounds": 10, "round": 0, **PLACE}
    make_events(folder, {"kind": "stage-started", **begun})
    make_events(folder, {"kind": "failed", "reason": "site-2 failed: its worker process died"})
    told = RunWatch(folder, tmp_path).summary()
    assert told["state"] == "interrupted" and told["failure"] == ""
    assert [stage["rounds"] for stage in told["groups"][0]["stage"]] == [10]
