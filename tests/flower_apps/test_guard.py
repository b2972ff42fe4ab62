"""Facts about the guard, with plain processes and no Flower."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from flower_apps import guard
from flower_apps.guard import Guard

# what Ray and the SuperLink do: a child in its own session whose parent has gone, and one that ignores TERM
TREE = """
import os, signal, subprocess, sys, time
folder = sys.argv[1]
def note(name, pid):
    with open(os.path.join(folder, name), "w") as file:
        file.write(str(pid))
note("command", os.getpid())
middle = os.fork()
if middle == 0:
    orphan = subprocess.Popen(["sleep", "300"], start_new_session=True)
    note("orphan", orphan.pid)
    os._exit(0)
os.waitpid(middle, 0)
stubborn = os.fork()
if stubborn == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("stubborn", os.getpid())
    time.sleep(300)
    os._exit(0)
time.sleep(300)
"""
OWNER = """
import os, signal, sys, time
from pathlib import Path
from flower_apps.guard import Guard
folder = Path(sys.argv[1])
signal.signal(signal.SIGINT, signal.default_int_handler)
guard = Guard([sys.executable, "-c", Path(sys.argv[2]).read_text(), str(folder)], env=os.environ,
              log=open(os.devnull, "w"), remove=[folder / "scratch"], grace=0.4)
if len(sys.argv) > 3 and os.fork() == 0:  # a worker process that inherits the pipe and outlives its parent
    time.sleep(4)
    os._exit(0)
(folder / "guard").write_text(str(guard.pid))
try:
    time.sleep(300)
finally:
    guard.close()
"""


def started(folder: Path, names: tuple[str, ...]) -> dict[str, psutil.Process]:
    """Wait for the notes of the processes and return these."""
    deadline = time.monotonic() + 10
    while not all((folder / name).exists() and (folder / name).read_text() for name in names):
        assert time.monotonic() < deadline, "the processes did not start"
        time.sleep(0.01)
    return {name: psutil.Process(int((folder / name).read_text())) for name in names}


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def seconds_until_gone(processes: dict[str, psutil.Process], limit: float = 8.0) -> float:
    begin = time.monotonic()
    while not all(gone(process) for process in processes.values()):
        assert time.monotonic() - begin < limit, [n for n, p in processes.items() if not gone(p)]
        time.sleep(0.02)
    return time.monotonic() - begin


NAMES = ("command", "orphan", "stubborn")


@pytest.fixture
def tree(tmp_path: Path) -> tuple[Path, Path]:
    script = tmp_path / "tree.py"
    script.write_text(TREE)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "file").write_text("left by the command")
    return tmp_path, script


def guarded(tree: tuple[Path, Path], remove: Sequence[Path] = (), grace: float = 0.4) -> Guard:
    folder, script = tree
    with Path(os.devnull).open("w") as log:
        return Guard([sys.executable, str(script), str(folder)], env=os.environ, log=log, remove=remove, grace=grace)


def test_closing_ends_orphans_and_those_that_ignore_term_and_removes_the_folder(tree):
    guard_ = guarded(tree, remove=[tree[0] / "scratch"])
    processes = started(tree[0], NAMES)
    assert guard_.alive()
    guard_.close()
    assert all(gone(process) for process in processes.values())
    assert not (tree[0] / "scratch").exists()
    assert not guard_.alive()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("forks", [False, True], ids=["", "pipe-inherited"])
def test_no_process_survives_an_owner_that_gets_the_signal(tree, number, forks):
    folder, script = tree
    command = [sys.executable, "-c", OWNER, str(folder), str(script), *(["forks"] if forks else [])]
    owner = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        processes = started(folder, (*NAMES, "guard"))
        owner.send_signal(number)
        assert seconds_until_gone(processes) < 3
        assert not (folder / "scratch").exists()
    finally:
        owner.kill()
        owner.wait()


def test_the_guard_ends_the_rest_when_the_command_dies(tree):
    guard_ = guarded(tree)
    processes = started(tree[0], NAMES)
    processes["command"].kill()
    seconds_until_gone(processes)
    guard_.close()


def test_term_to_the_guard_itself_ends_everything(tree):
    guard_ = guarded(tree)
    processes = started(tree[0], NAMES)
    os.kill(guard_.pid, signal.SIGTERM)
    seconds_until_gone(processes)
    guard_.close()


def test_a_second_signal_ends_the_grace(tree):
    guard_ = guarded(tree, grace=60.0)
    processes = started(tree[0], NAMES)
    os.kill(guard_.pid, signal.SIGTERM)
    seconds_until_gone({"command": processes["command"]})
    assert not gone(processes["stubborn"])
    os.kill(guard_.pid, signal.SIGTERM)
    assert seconds_until_gone(processes) < 3
    guard_.close()


def test_closing_in_a_hurry_gives_no_grace(tree):
    guard_ = guarded(tree, grace=60.0)
    processes = started(tree[0], NAMES)
    guard_.close(hurry=True)
    assert all(gone(process) for process in processes.values())


def test_closing_twice_is_harmless(tree):
    guard_ = guarded(tree)
    guard_.close()
    guard_.close()


def test_processes_read_from_ps_are_those_of_proc():
    by_proc = {pid: parent for pid, parent, _ in guard._processes()}
    by_ps = {pid: parent for pid, parent, _ in guard._processes_by_ps()}
    assert by_ps[os.getpid()] == by_proc[os.getpid()] == os.getppid()
    assert os.getpid() not in {parent for pid, parent in by_ps.items() if pid not in by_proc}  # ps itself is left out
