"""Facts about how a run's end is judged, with a SuperLink that only pretends."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import psutil
import pytest

from flower_apps import watch
from flower_apps.control import RunStatus
from flower_apps.watch import Ending, EventTail, RunProcesses, RunWatch


@dataclass
class FakeLink:
    state: str = "running"
    details: str = ""

    def status(self, run_id: int) -> RunStatus:
        return RunStatus(self.state, self.details)


@dataclass
class FakeProcesses:
    lives: bool = True
    looks: int = field(default=0)

    def alive(self) -> bool:
        return self.lives

    def look(self) -> None:
        self.looks += 1


class Case:
    def __init__(self, folder):
        self.path = folder / "events.jsonl"
        self.link, self.processes, self.seen = FakeLink(), FakeProcesses(), []
        self.watch = RunWatch(self.link, 7, self.processes, EventTail(self.path), self.seen.append)

    def emit(self, kind, **fields):
        with self.path.open("a") as file:
            file.write(json.dumps({"kind": kind, **fields}) + "\n")

    def wait(self, cancel=None) -> Ending:
        return self.watch.wait(cancel or threading.Event())


@pytest.fixture
def case(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "POLL", 0.005)
    monkeypatch.setattr(watch, "STATUS_EVERY", 0.02)
    monkeypatch.setattr(watch, "GONE_LIMIT", 0.1)
    return Case(tmp_path)


def test_success_needs_the_apps_word_and_flowers(case):
    case.emit("finished")
    case.link.state = "finished:completed"
    assert case.wait() == Ending("completed")
    assert [event["kind"] for event in case.seen] == ["finished"]


def test_flowers_word_alone_is_no_success(case):
    case.link.state = "finished:completed"
    assert case.wait().status == "failed"
    assert "did not say that it finished" in case.wait().reason


def test_the_apps_word_alone_is_no_success(case):
    case.emit("finished")
    case.link.state, case.link.details = "finished:failed", "Simulation failed with exception: Ray\n  is gone"
    assert case.wait() == Ending("failed", "Ray is gone")


def test_a_failed_event_ends_the_run_at_once_while_flower_still_calls_it_running(case):
    case.emit("failed", reason="site-3 raised\nValueError", resumable=False)
    assert case.wait() == Ending("failed", "site-3 raised ValueError")
    case.emit("round-started")
    assert case.seen[-1]["kind"] == "failed"


@pytest.mark.parametrize(
    ("begun", "resumable"), [([], True), (["run-started", "note"], True), (["stage-started"], False)]
)
def test_a_run_that_fails_before_its_first_stage_is_tried_again(case, begun, resumable):
    for kind in begun:
        case.emit(kind)
    case.link.state, case.link.details = "finished:failed", "Ray did not start"
    assert case.wait() == Ending("failed", "Ray did not start", resumable)


def test_the_root_of_a_chain_of_exceptions_is_found_in_the_log_of_this_attempt(tmp_path):
    log = tmp_path / "run.log"
    log.write_text("OldError: of an earlier attempt\n")
    start = log.stat().st_size
    chain = (
        "Traceback (most recent call last):\n  File x\nray.exceptions.RaySystemError: no  space\n\nDuring handling\n"
    )
    with log.open("a") as file:
        file.write(f"INFO: fine\n{chain}RuntimeError: Simulation Engine crashed.\n")
    assert watch.first_error(log, start) == "ray.exceptions.RaySystemError: no space"
    assert watch.first_error(log, log.stat().st_size) == ""
    assert watch.first_error(tmp_path / "none", 0) == ""


def test_a_failed_event_may_ask_for_another_attempt(case):
    case.emit("failed", reason="a worker died", resumable=True)
    assert case.wait().resumable


def test_a_failed_event_that_comes_with_the_verdict_gives_the_reason(case):
    case.link.status = lambda run_id: (case.emit("failed", reason="late"), RunStatus("finished:failed", "Flower's"))[1]
    assert case.wait() == Ending("failed", "late")


def test_a_killed_process_is_noticed_without_flowers_heartbeat_and_can_be_resumed(case):
    case.emit("round-started")
    case.processes.lives = False
    begin = time.monotonic()
    ending = case.wait()
    assert ending.status == "failed" and ending.resumable and "killed" in ending.reason
    assert time.monotonic() - begin < 2


def test_a_run_that_never_speaks_fails(case, monkeypatch):
    monkeypatch.setattr(watch, "FIRST_EVENT_LIMIT", 0.1)
    assert "no sign of life" in case.wait().reason


def test_a_run_whose_verdict_never_comes_fails(case, monkeypatch):
    monkeypatch.setattr(watch, "VERDICT_LIMIT", 0.1)
    case.emit("finished")
    assert "did not end" in case.wait().reason


def test_cancel_ends_the_wait(case):
    cancel = threading.Event()
    threading.Timer(0.05, cancel.set).start()
    assert case.wait(cancel) == Ending("cancelled", "cancelled")


def test_the_tail_starts_at_the_present_end_and_waits_for_whole_lines(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"kind": "old"}\n')
    tail = EventTail(path)
    with path.open("a") as file:
        file.write('{"kind": "one"}\nnot json\n["a list"]\n{"kind": "tw')
        file.flush()
        assert [event["kind"] for event in tail.new()] == ["one"]
        file.write('o"}\n')
        file.flush()
    assert [event["kind"] for event in tail.new()] == ["two"]
    assert list(tail.new()) == []


def test_lines_that_no_sink_has_written_are_skipped(tmp_path):
    good = {"kind": "round-finished", "time": 1.0, "round": 2, "loss": None}
    odd = [
        b'{"kind": "round", "time": "x"}',
        b'{"kind": "round-started"}',
        b'{"kind": "round-finished", "round": "two"}',
        b'{"kind": "round-finished", "round": 2, "loss": "low"}',
        b'{"kind": "reply", "time": 1e999}',
        b'{"kind": "stage-started", "time": 1' + b"0" * 400 + b"}",
        b'{"kind": 3}',
        b"[]",
        b"[" * 100_000,
        b"\xff\x00 rubbish",
    ]
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join([*odd, json.dumps(good).encode(), b""]))
    assert list(EventTail(path, from_start=True).new()) == [good]


def test_a_missing_event_file_has_no_events(tmp_path):
    assert list(EventTail(tmp_path / "none.jsonl").new()) == []


def test_ending_a_run_reaches_what_lost_its_parent_and_ignores_term(monkeypatch):
    monkeypatch.setattr(watch, "GRACE", 0.3)
    script = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    )
    root = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(root.stdout.readline()))
    processes = RunProcesses(root.pid)
    processes.look()
    root.kill()
    root.wait()
    assert not processes.alive() and child.is_running()
    processes.end(patience=0.0)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    root.stdout.close()


def test_a_run_that_ends_by_itself_is_given_its_time():
    root = subprocess.Popen(["sleep", "0.3"])
    RunProcesses(root.pid).end(patience=5.0)
    assert root.wait() == 0
