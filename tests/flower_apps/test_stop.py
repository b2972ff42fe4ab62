"""Facts about ending a run from another terminal; the command that is ended is a stand-in without Flower."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from filelock import FileLock
from runs_made import AWAY, GONE, HERE, make_run

from evaluation.runs import read_record
from flower_apps import stop
from flower_apps.lifetime import LOCK
from flower_apps.run_state import state_of
from flower_apps.stop import stop_run
from partitions.errors import BadInput

COMMAND = """
import signal, subprocess, sys, time
from pathlib import Path
from flower_apps.lifetime import Lifetime
from flower_apps.runs import RunFolder
from flower_apps.settings import GroupSettings

try:
    with Lifetime(RunFolder(Path(sys.argv[1])), {"via": "lethe run"}, [GroupSettings()]):
        if sys.argv[2] == "deaf":
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "600"])
        print(child.pid, flush=True)
        try:
            time.sleep(600)
        finally:
            child.kill()
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.fixture
def command(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-c", COMMAND, str(tmp_path), getattr(request, "param", "")]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    process.child = psutil.Process(int(process.stdout.readline()))
    yield process
    for one in (process, process.child):
        if one.is_running() if isinstance(one, psutil.Process) else one.poll() is None:
            one.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("asleep", [False, True])
def test_it_is_gone_with_all_it_started_and_the_record_says_stopped(tmp_path, command, asleep):
    if asleep:
        psutil.Process(command.pid).suspend()
    said: list[str] = []
    stop_run(tmp_path, tmp_path, said.append)
    assert command.wait(5) == 130
    assert not command.child.is_running()
    record = read_record(tmp_path)
    assert (record["status"], record["exit_code"]) == ("stopped", 130)
    assert str(command.pid) in said[0] and "lethe resume" in said[-1]


@pytest.mark.parametrize("command", ["deaf"], indirect=True)
def test_one_that_does_not_listen_is_killed_and_the_record_says_so(tmp_path, command, monkeypatch):
    monkeypatch.setattr(stop, "STEPS", [(0.2 * number, signal) for number, (_, signal) in enumerate(stop.STEPS)])
    command.child.kill()
    stop_run(tmp_path, tmp_path, lambda text: None)
    assert command.wait(5) == -9
    record = read_record(tmp_path)
    assert (record["status"], record["exit_code"]) == ("stopped", 137)
    assert state_of(tmp_path, record).resumable


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"status": "completed"}, "it is completed"),
        ({"status": "running", "by": GONE}, "it is interrupted"),
        (
            {"status": "running", "command": None},
            "it is interrupted; its record .* damaged or old: `lethe resume .*/runs/run`",
        ),
        ({"status": "banana"}, "it is damaged .status"),
        ({"status": "running", "by": AWAY}, "it runs on elsewhere; stop it there"),
        ({"status": "running", "by": {**HERE, "via": "flwr run", "run_id": "7"}}, "flwr stop 7"),
    ],
)
def test_what_cannot_be_ended_from_here_is_left_alone_and_named(tmp_path, made, says):
    with pytest.raises(BadInput, match=says):
        stop_run(make_run(tmp_path, **made), tmp_path, lambda text: None)


def test_one_that_ends_meanwhile_and_is_gone_on_with_at_once_is_left_to_whoever_does(tmp_path, monkeypatch):
    folder = make_run(tmp_path, status="running", by=HERE)

    def ended(pid: int) -> psutil.Process:
        raise psutil.NoSuchProcess(pid)

    monkeypatch.setattr(psutil, "Process", ended)
    monkeypatch.setattr(stop, "LET_GO", 0.0)
    monkeypatch.setattr(stop.ProcessMark, "lives", lambda mark: True)
    said: list[str] = []
    with FileLock(folder / LOCK):
        stop_run(folder, tmp_path, said.append)
    assert read_record(folder)["status"] == "running" and "stopped after" in said[-1]
    stop_run(folder, tmp_path, said.append)
    assert read_record(folder)["status"] == "stopped"
