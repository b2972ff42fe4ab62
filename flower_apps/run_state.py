"""What has become of a run: its record tells, and where a process is gone without a word, that it is gone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.runs import RECORD, read_record
from flower_apps.durations import in_words
from flower_apps.places import run_name
from flower_apps.process_mark import ProcessMark
from flower_apps.runs import run_folders
from partitions.errors import BadInput, RunFailed

RUNNING, INTERRUPTED, UNRECORDED = "running", "interrupted", "unrecorded"
LONGEST_SILENCE = 3600.0
"""Seconds without an event after which a command on another host counts as gone, where no timeout is recorded."""


class Busy(RunFailed):
    """Another command works on the run folder."""


@dataclass(frozen=True)
class RunState:
    """What has become of a run.

    Parameters
    ----------
    word : str
        ``running``, ``completed``, ``failed``, ``stopped`` or ``refused`` as the record says; ``interrupted`` where the
        process is gone without having said how it ended; ``unrecorded`` for a run of before there were such records.
    note : str
        What cannot be known from here; empty otherwise.
    """

    word: str
    note: str = ""

    @property
    def resumable(self) -> bool:
        """Tell whether `lethe resume` has something to go on with."""
        return self.word in (INTERRUPTED, "failed", "stopped")


def state_of(folder: Path, record: Mapping[str, Any]) -> RunState:
    """Judge a run by its record and, where that says that it is running, by its process.

    A process of another host cannot be asked. It counts as gone once its events have been silent for longer than a
    round may take: then it would have ended by itself. A record that names no process was not left by a command that
    runs: it is damaged, or of an older version.
    """
    if not record.get("status"):
        return RunState(UNRECORDED)
    if record["status"] != RUNNING:
        return RunState(str(record["status"]))
    mark = ProcessMark.of(record["command"] or {})
    if mark is None:
        name = run_name(folder)
        remedy = f"`lethe resume {name}` goes on with it, `lethe clean {name}` lists what its removal would free"
        return RunState(INTERRUPTED, f"its record says running but names no process, so it is damaged or old: {remedy}")
    lives = mark.lives()
    if lives is not None:
        return RunState(RUNNING if lives else INTERRUPTED)
    silent, (patience, doubt) = time.time() - last_sign(folder, record), _patience(record)
    note = (
        f"it was started on {mark.host} and cannot be asked from here; its last sign of life is {in_words(silent)} old"
    )
    return RunState(RUNNING if silent <= patience else INTERRUPTED, note + doubt)


def names_no_process(record: Mapping[str, Any]) -> bool:
    """Tell whether a record says that a run is on, but not as which process."""
    return record.get("status") == RUNNING and ProcessMark.of(record.get("command") or {}) is None


def last_sign(folder: Path, record: Mapping[str, Any]) -> float:
    """Return when a run last wrote an event or its record, in Unix seconds."""
    found = [float(record.get("started") or record["created"])]
    for path in (folder / RECORD, *(folder / "events").glob("*.jsonl")):
        try:
            found.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(found)


def refuse_if_running(folder: Path, record: Mapping[str, Any]) -> None:
    """Raise `Busy`, naming process and host, when a command works on a run folder, or may."""
    state = state_of(folder, record)
    if state.word == RUNNING:
        raise busy(folder, record, state)


def busy(folder: Path, record: Mapping[str, Any], state: RunState | None = None) -> Busy:
    """Make the error for a run folder that another command works on."""
    command = record.get("command") or {}
    by = f"process {command['pid']} on {command['host']}" if command.get("pid") else "another command"
    note = f" ({state.note})" if state and state.note else ""
    remedy = f"wait for it, or end it with `lethe stop {run_name(folder)}`"
    return Busy(f"{folder} is being worked on by {by}{note}; {remedy}")


def known_runs(home: Path, say: Callable[[str], None] = lambda text: None) -> list[tuple[Path, dict[str, Any]]]:
    """Return every readable run of a home with its record, the last started first; `say` gets what is damaged."""
    found = []
    for folder in run_folders(home, say):
        try:
            found.append((folder, read_record(folder)))
        except BadInput as error:
            say(str(error))
    return sorted(found, key=lambda one: (one[1].get("started") or one[1]["created"], one[0].name), reverse=True)


def _patience(record: Mapping[str, Any]) -> tuple[float, str]:
    """Return how many seconds of silence a run may have, and what is damaged where its record does not tell."""
    found = [settings.get("timeout") or 0.0 for settings in record["groups"].values()]
    timeouts = [float(one) for one in found if isinstance(one, int | float) and math.isfinite(one)]
    doubt = f"; {RECORD} has a timeout that is no number, as if it had none" if len(timeouts) < len(found) else ""
    return max(timeouts, default=0.0) or LONGEST_SILENCE, doubt
