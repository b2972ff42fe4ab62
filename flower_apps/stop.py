"""`lethe stop`: ends the command that works on a run folder, from another terminal, and waits until nothing is left."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from filelock import Timeout

from evaluation.runs import read_record
from flower_apps import leftovers
from flower_apps.lifetime import command_lock
from flower_apps.places import run_name
from flower_apps.process_mark import ProcessMark
from flower_apps.run_state import RUNNING, names_no_process, state_of
from flower_apps.runs import RunFolder
from partitions.errors import BadInput, RunFailed

STEPS = ((0.0, signal.SIGINT), (20.0, signal.SIGINT), (30.0, signal.SIGTERM), (40.0, signal.SIGKILL))
"""Seconds after which each signal is sent: a second INT has a command end what it started at once."""
LIMIT = 60.0
"""Seconds after which it is given up."""
LET_GO = 2.0
"""Seconds that a killed process may take to let go of the run folder."""
POLL = 0.1
KILLED = 128 + signal.SIGKILL
"""Exit code of a command that was killed, as a shell gives it."""


def stop_run(folder: Path, home: Path, say: Callable[[str], None]) -> None:
    """End the command of a run and wait until all its processes are gone.

    Parameters
    ----------
    folder, home : Path
        The run folder and LETHE_HOME.
    say : callable
        Gets a line of progress.

    Raises
    ------
    BadInput
        When nothing runs there, it runs on another host, or `flwr run` submitted it.
    RunFailed
        When the process may not be ended, or will not end.
    """
    record = read_record(folder)
    mark = _running(folder, record)
    family = _started(mark)
    say(f"stopping {folder.name}: process {mark.pid}")
    begin, steps = time.monotonic(), list(STEPS)
    while _living(family):
        passed = time.monotonic() - begin
        if steps and passed >= steps[0][0]:
            _send(mark, steps.pop(0)[1])
        if passed > LIMIT:
            raise RunFailed(f"{len(family)} processes of {folder} live on after {LIMIT:.0f} s: see `lethe doctor`")
        for process in list(family):
            with contextlib.suppress(psutil.Error):
                family.update(process.children(recursive=True))
        time.sleep(POLL)
    for flower_home in (home / "flower").glob(f"{mark.pid}-*/"):  # nothing, unless its guard was killed, too
        leftovers.end_processes(flower_home.resolve())
    with contextlib.suppress(Timeout), command_lock(folder).acquire(timeout=LET_GO):  # else somebody goes on with it
        if read_record(folder).get("status") == RUNNING:  # it was killed before it could say so
            RunFolder(folder).end("stopped", KILLED, ["killed by `lethe stop`"])
    say(f"stopped after {time.monotonic() - begin:.0f} s; go on with `lethe resume {run_name(folder, home)}`")


def _running(folder: Path, record: dict[str, Any]) -> ProcessMark:
    """Return the process to end; raises `BadInput` where there is none that can be ended from here."""
    state, command = state_of(folder, record), record.get("command") or {}
    mark = ProcessMark.of(command)
    if state.word != RUNNING or mark is None:
        remedy = state.note if names_no_process(record) else "see `lethe status --all`"
        raise BadInput("run", folder.name, f"a run that is running, and it is {state.word}", remedy)
    if not mark.is_here():
        raise BadInput("run", folder.name, f"a run of this machine, and it runs on {mark.host}", "stop it there")
    if command.get("via") == "flwr run":
        remedy = f"end it with `flwr stop {command.get('run_id', 'RUN_ID')}`"
        raise BadInput("run", folder.name, "a run of `lethe run`, and `flwr run` submitted it", remedy)
    return mark


def _started(mark: ProcessMark) -> set[psutil.Process]:
    """Return the command's process; empty where it has ended meanwhile."""
    try:
        return {psutil.Process(mark.pid)} if mark.lives() else set()
    except psutil.NoSuchProcess:
        return set()


def _send(mark: ProcessMark, number: signal.Signals) -> None:
    """Send a signal to the very process; one that was suspended (Ctrl-Z) goes on to receive it."""
    if not mark.lives():
        return
    try:
        process = psutil.Process(mark.pid)
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied:
        raise RunFailed(f"process {mark.pid} belongs to another user: whoever started it must stop it") from None


def _living(family: set[psutil.Process]) -> bool:
    for process in list(family):
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                continue
        except psutil.Error:
            pass
        family.discard(process)
    return bool(family)
