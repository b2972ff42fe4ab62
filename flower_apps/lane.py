"""A lane: one Flower run that executes groups one after the other, as `lethe run` names them.

The command and the ServerApp share a folder below the run folder. The command writes the id of one group, waits for the
event that it has ended, and writes the next; the ServerApp reads. What is named is all there is to agree on: when a run
is submitted again, it begins with the group that is named then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from strategies.events import EventSink

NO_MORE = "-"
"""Named when no group is left."""
POLL = 0.05
"""Seconds between two looks for the next group."""
IN_LANE = {"run-started": "group-started", "finished": "group-finished", "failed": "group-failed"}
"""What a lane's events call a group's beginning and end: a lane has its own."""


class Lane:
    """The folder of a lane.

    Parameters
    ----------
    folder : Path
        Absolute; made when it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    def new(cls, run: Path) -> Lane:
        """Make the next lane below a run folder."""
        below = run / "lanes"
        below.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            try:
                (below / str(number)).mkdir()
            except FileExistsError:
                number += 1
            else:
                return cls(below / str(number))

    @property
    def events_path(self) -> Path:
        """The lane's event file: its own events, and those of its groups with their ``group``."""
        return self.folder / "events.jsonl"

    @property
    def log_path(self) -> Path:
        """The log of the Flower run."""
        return self.folder / "flower.log"

    def name(self, group: str) -> None:
        """Name the group to execute next; `NO_MORE` ends the lane."""
        part = self._next.with_suffix(".part")
        part.write_text(group, encoding="utf-8")
        part.replace(self._next)

    def named(self) -> str:
        """Return what was named last; empty before that."""
        try:
            return self._next.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def groups(self, wait: Callable[[float], None] = time.sleep) -> Iterator[str]:
        """Yield each group as it is named, until no more are."""
        done = ""
        while (name := self.named()) != NO_MORE:
            if name in ("", done):
                wait(POLL)
                continue
            yield name
            done = name

    @property
    def _next(self) -> Path:
        return self.folder / "next"


class LaneSink(EventSink):
    """The events of a group that a lane executes: in the group's own file, and in the lane's with the group's id.

    Parameters
    ----------
    path : Path
        The group's event file.
    lane : EventSink
        The lane's.
    group : str
        The group's id.
    """

    def __init__(self, path: Path, lane: EventSink, group: str) -> None:
        super().__init__(path)
        self._lane, self._group = lane, group

    def emit(self, kind: str, **fields: Any) -> None:
        """See `EventSink.emit`."""
        super().emit(kind, **fields)
        self._lane.emit(IN_LANE.get(kind, kind), group=self._group, **fields)
