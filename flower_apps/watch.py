"""One run, watched: its processes, its event file, what the SuperLink says, and what all three mean together."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import psutil

from flower_apps.control import Control, RunStatus
from partitions.errors import OutOfMemory, RunFailed
from partitions.patience import Patience

Event = dict[str, Any]
NUMBERS = ("time", "round", "rounds", "sites", "loss", "metric")
"""Fields of an event that are numbers where they are there."""
MOST = 1e15
OnEvent = Callable[[Event], None]
Outcome = Literal["completed", "failed", "cancelled"]

POLL = 0.1
"""Seconds between two looks at the event file and the process."""
STATUS_EVERY = 2.0
"""Seconds between two questions to the SuperLink (20 ms of CPU each) while the run is on."""
FIRST_EVENT_LIMIT = 180.0
"""Seconds that the ServerApp may take to its first event."""
VERDICT_LIMIT = 120.0
"""Seconds between the ServerApp's last event, or its process's end, and Flower's verdict."""
GONE_LIMIT = 3.0
"""Seconds that Flower's verdict may take once the process is gone."""
LONGEST_LOOK = 10.0
"""Seconds that one look counts at most: a command that was stopped (Ctrl-Z), or slept, has not waited meanwhile."""
LOG_DELAY = 0.8
"""Seconds that a line of the run's log takes to arrive here (Flower uploads every 0.2 s and streams every 0.5 s)."""
SLEPT = "No heartbeat received"
"""What Flower says of a run that was silent by the calendar: the machine slept, and nothing is wrong with the run."""
ERROR_LINE = re.compile(r"^(?:[\w]+\.)*\w*(?:Error|Exception|Died\w*|Failure): .+$", re.MULTILINE)
"""A line of a traceback that names what was raised."""
GRACE = 1.0
"""Seconds between TERM and KILL for the processes of one run."""


@dataclass(frozen=True)
class Ending:
    """How one attempt ended.

    Parameters
    ----------
    status, reason : str
        As in `RunResult`.
    resumable : bool
        Whether another attempt goes on where this one stopped.
    traceback : str
        Where the ServerApp failed, when it said so.
    error : str
        Name of what it raised, when it said so.
    progressed : bool
        Whether a group of the run, which had several, ended before.
    """

    status: Outcome
    reason: str = ""
    resumable: bool = False
    traceback: str = field(default="", compare=False)
    error: str = ""
    progressed: bool = False

    @property
    def out_of_memory(self) -> bool:
        """Return whether a site found no room on its GPU."""
        return self.error == OutOfMemory.__name__


class EventTail:
    """New events of a JSON-lines file; a line that is still being written waits.

    Parameters
    ----------
    path : Path
        The file; it need not be there yet.
    from_start : bool
        Begin with the events that are there already, rather than at the present end.
    """

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() and not from_start else 0

    def new(self) -> Iterator[Event]:
        """Yield the events written since the last call; lines that are no event are skipped."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                if _is_event(event := json.loads(line)):
                    yield event


def _is_event(event: Any) -> bool:
    """Tell whether that is what an `EventSink` writes, as far as it is read."""
    if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
        return False
    if event["kind"].startswith("round-") and event.get("round") is None:
        return False
    numbers = (event[name] for name in NUMBERS if event.get(name) is not None)
    return all(isinstance(number, int | float) and -MOST < number < MOST for number in numbers)


class RunProcesses:
    """The process of one run (ServerApp and Ray driver) with everything that it started.

    Parameters
    ----------
    pid : int
        The process of the run.
    """

    def __init__(self, pid: int) -> None:
        self._root: psutil.Process | None = None
        self._known: set[psutil.Process] = set()
        with contextlib.suppress(psutil.Error):
            self._root = psutil.Process(pid)
            self._known = {self._root}

    def alive(self) -> bool:
        """Return whether the process of the run lives; what it started may still live when it does not."""
        return self._root is not None and _lives(self._root)

    def look(self) -> None:
        """Remember what the run has started by now: later it may have lost its parent."""
        parents = [self._root] if self._root is not None and _lives(self._root) else list(self._known)
        for process in parents:
            with contextlib.suppress(psutil.Error):
                self._known.update(process.children(recursive=True))

    def end(self, patience: float) -> None:
        """Wait `patience` seconds for all to end, then TERM, then KILL after `GRACE` seconds."""
        if self._gone_within(patience):
            return
        for process in self._known:
            with contextlib.suppress(psutil.Error):
                process.terminate()
        while not self._gone_within(GRACE):
            for process in self._known:
                with contextlib.suppress(psutil.Error):
                    process.kill()

    def _gone_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            self.look()
            self._known = {process for process in self._known if _lives(process)}
            if not self._known or time.monotonic() >= deadline:
                return not self._known
            time.sleep(0.02)


class RunWatch:
    """Waits for the end of one submitted run. Silence is never success.

    Parameters
    ----------
    link : Control
        The SuperLink.
    run_id : int
        The run.
    processes : RunProcesses
        Its processes.
    events : EventTail
        Its event file.
    on_event : callable
        Gets every event.
    """

    def __init__(
        self, link: Control, run_id: int, processes: RunProcesses, events: EventTail, on_event: OnEvent
    ) -> None:
        self._link, self._run_id, self._processes = link, run_id, processes
        self._events, self._on_event = events, on_event
        self._spoke = False
        self._worked = False
        self._finished = False
        self._progressed = False
        self._failure: Ending | None = None

    def wait(self, cancel: threading.Event) -> Ending:
        """Return how the run ended: a ``failed`` event ends it at once, success needs the app's and Flower's word."""
        return replace(self._wait(cancel), progressed=self._progressed)

    def _wait(self, cancel: threading.Event) -> Ending:
        patience, asked = Patience(LONGEST_LOOK), 0.0
        quiet_since: float | None = None
        while not cancel.is_set():
            self._read()
            if self._failure:
                return self._failure
            now = patience.spent()
            gone = not self._processes.alive()
            if gone or self._finished:
                quiet_since = now if quiet_since is None else quiet_since
            if quiet_since is not None or now - asked > STATUS_EVERY:
                asked = now
                self._processes.look()
                status = self._link.status(self._run_id)
                if status.finished:
                    return self._verdict(status)
            if gone and quiet_since is not None and now - quiet_since > GONE_LIMIT:
                return Ending("failed", "the run's process was killed (out of memory?)", resumable=True)
            if quiet_since is not None and now - quiet_since > VERDICT_LIMIT:
                return Ending("failed", f"the run finished its work but did not end within {VERDICT_LIMIT:.0f} s")
            if not self._spoke and now > FIRST_EVENT_LIMIT:
                return Ending("failed", f"the ServerApp gave no sign of life in {FIRST_EVENT_LIMIT:.0f} s")
            cancel.wait(POLL)
        return Ending("cancelled", "cancelled")

    def _read(self) -> None:
        for event in self._events.new():
            self._spoke = True
            self._worked |= event["kind"].startswith("stage-")
            self._finished |= event["kind"] == "finished"
            self._progressed |= ended(event)
            if event["kind"] == "failed":
                reason = _one_line(str(event.get("reason", ""))) or "the ServerApp failed without a reason"
                traceback = str(event.get("traceback", ""))
                error = str(event.get("error", ""))
                self._failure = Ending("failed", reason, bool(event.get("resumable")), traceback, error)
            self._on_event(event)

    def _verdict(self, status: RunStatus) -> Ending:
        self._read()  # the last events may have come after the last look
        if self._failure:
            return self._failure
        if status.completed and self._finished:
            return Ending("completed")
        if status.completed:
            return Ending("failed", "Flower reports success, but the ServerApp did not say that it finished")
        reason = _one_line(status.details.removeprefix("Simulation failed with exception: "))
        # before the first stage nothing of the work can be at fault: Ray or Flower did not come up
        came_up = self._worked or self._finished
        resumable = not came_up or SLEPT in reason
        return Ending("failed", reason or f"Flower reports {status.state} without a reason", resumable)


def ended(event: Mapping[str, Any]) -> bool:
    """Tell whether an event says that a group of a lane has ended for good."""
    kind = event["kind"]
    return kind == "group-finished" or (kind == "group-failed" and not event.get("resumable"))


def follow_log(link: Control, run_id: int, path: Path) -> threading.Thread:
    """Append the run's log to `path` as it comes, in a thread that ends with the run."""

    def follow() -> None:
        import httpx

        with (
            contextlib.suppress(httpx.HTTPError, RunFailed, OSError, ValueError),
            path.open("a", encoding="utf-8") as f,
        ):
            for piece in link.log(run_id):
                f.write(piece)
                f.flush()

    thread = threading.Thread(target=follow, name=f"log of run {run_id}", daemon=True)
    thread.start()
    return thread


def first_error(path: Path, start: int) -> str:
    """Return the first exception that a log names after its first `start` bytes, in one line; empty if none.

    A chain of exceptions begins with its root, which says more than what Flower makes of it.
    """
    try:
        with path.open("rb") as file:
            file.seek(start)
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    found = ERROR_LINE.search(text)
    return _one_line(found[0])[:300] if found else ""


def append_to_log(path: Path, ending: Ending) -> None:
    """Write at the end of a run's log how it ended: its process had no time left to do so."""
    with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.write(f"\n{ending.traceback.rstrip()}\n{ending.status}: {ending.reason}\n")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False
