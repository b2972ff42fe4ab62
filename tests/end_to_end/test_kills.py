"""Real processes killed, stopped, put to sleep or left without room, each in its own moment: `lethe resume` ends the
run with the files of one that was never interrupted, and nothing is left running.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest
from commands import LIMIT, Command, Home, Traces, hitch, replies, untimed, wait_for
from in_process import run_group

from flower_apps.manifest import load_manifest

pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.timeout(1800)]
PATIENT = ("--set", "timeout=600")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of the lean cell that nothing happened to."""
    home = Home(tmp_path_factory.mktemp("whole"))
    (group,) = load_manifest(home.manifest).groups(["lean"])
    run_group(group, home.path, home.out())
    return home.out()


def check_whole(home: Home, whole: Path) -> None:
    pd.testing.assert_frame_equal(untimed(home.out() / "results.csv"), untimed(whole / "results.csv"))
    assert (home.out() / "curves.csv").read_bytes() == (whole / "curves.csv").read_bytes()
    assert (home.record()["status"], home.record()["exit_code"]) == ("completed", 0)


def reached(home: Home, label: str) -> bool:
    return any(event.get("label", "").startswith(label) for event in home.events())


def named(command: Command, name: str) -> psutil.Process:
    """Return a process below a command, by a part of its command line."""
    found = [p for p in psutil.Process(command.process.pid).children(recursive=True) if name in " ".join(p.cmdline())]
    assert found, f"no {name} below the command"
    return found[0]


@pytest.mark.parametrize("label", ["original", "retrain", "ga", "recover", "score"])
def test_the_command_is_killed(tmp_path: Path, whole: Path, label: str) -> None:
    home = Home(tmp_path)
    with home.start("lean", "--workers", "2", *PATIENT) as command:
        wait_for(lambda: reached(home, label), LIMIT, command)
        traces = Traces(command.process.pid)
        command.process.kill()
        command.process.wait()
        wait_for(lambda: not traces.left(), 15, traces)
    resumed = home.ask("resume")
    assert resumed.process.returncode == 0, resumed.errors
    check_whole(home, whole)


@pytest.mark.parametrize("name", ["flower-superlink", "ray::", "flwr-simulation"])
def test_what_the_command_started_is_killed_and_it_goes_on_by_itself(tmp_path: Path, whole: Path, name: str) -> None:
    home = Home(tmp_path)
    with home.start("lean", "--workers", "2", *PATIENT) as command:
        wait_for(lambda: reached(home, "retrain"), LIMIT, command)
        named(command, name).kill()
        code = command.wait()
    if code:
        assert home.record()["status"] == "failed" and home.record()["failures"], command.errors
        assert home.ask("resume").process.returncode == 0
    check_whole(home, whole)


def test_all_sleep_for_a_while(tmp_path: Path, whole: Path) -> None:
    home = Home(tmp_path)
    with home.start("lean", "--workers", "2", "--set", "timeout=100") as command:
        wait_for(lambda: reached(home, "original"), LIMIT, command)
        asleep = [psutil.Process(command.process.pid), *psutil.Process(command.process.pid).children(recursive=True)]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for process in asleep:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)
            if number == signal.SIGSTOP:
                time.sleep(110)  # longer than a round may take
        assert command.wait() == 0, command.errors
    check_whole(home, whole)


def test_it_is_stopped_from_another_terminal(tmp_path: Path, whole: Path) -> None:
    home = Home(tmp_path)
    with home.start("lean", "--workers", "2", *PATIENT, env=hitch(tmp_path / "hitch", "stall")) as command:
        wait_for(lambda: bool(replies(home.events(), "original", 2)), LIMIT, command)
        traces = Traces(command.process.pid)
        second = home.run("lean")
        assert second.process.returncode == 1 and f"process {command.process.pid}" in second.errors
        stopped = home.ask("stop")
        assert stopped.process.returncode == 0, stopped.errors
        assert command.wait() == 130
        assert not traces.left()
    assert (home.record()["status"], home.record()["exit_code"]) == ("stopped", 130)
    assert home.ask("resume").process.returncode == 0
    check_whole(home, whole)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount 300 MB of memory as the home, which a plan takes to be enough; only root may."""
    disk = tmp_path / "home"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", str(disk)], capture_output=True)
    if os.geteuid() or mounted.returncode:
        pytest.skip("no disk can be mounted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)
    shutil.rmtree(disk, ignore_errors=True)


def test_the_disk_is_full_and_then_has_room_again(tmp_path: Path, whole: Path, small_disk: Path) -> None:
    home = Home(tmp_path)
    with home.start("lean", "--workers", "1", *PATIENT) as command:
        wait_for(lambda: reached(home, "original"), 240, command)
        filler = small_disk / "another program's"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(2**16))
        assert command.wait() == 1, command.output
    (said,) = [line for line in command.errors.splitlines() if line.startswith("lethe:")]
    assert "no space left on the disk" in said
    filler.unlink()
    assert home.ask("resume").process.returncode == 0
    check_whole(home, whole)
