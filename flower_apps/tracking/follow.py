"""Follows a run folder while the run is on and passes what is new on to the writers that were asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from flower_apps.tracking.base import WRITERS, Session
from flower_apps.tracking.feed import Feed

EVERY = 5.0
"""Seconds between two looks."""
PATIENCE = 60.0
"""Seconds that a look may still take when the run has ended."""


@contextmanager
def tracked(names: Sequence[str], run_folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Follow a run for as long as this is open, and once more at its end; without names nothing happens.

    A writer that fails never fails the run: one note, and it is left alone from then on.

    Parameters
    ----------
    names : sequence of str
        Of writers, checked before (`flower_apps.tracking.base.check_tracking`).
    run_folder : Path
        With its record.
    say : callable
        Gets the notes, from another thread too.
    """
    if not names:
        yield
        return
    follower = Follower(names, run_folder, say)
    follower.start()
    try:
        yield
    finally:
        follower.close()


class Follower:
    """See `tracked`."""

    def __init__(self, names: Sequence[str], run_folder: Path, say: Callable[[str], None]) -> None:
        self._say = say
        self._names = list(names)
        self._feeds = {name: Feed(run_folder) for name in names}
        self._sessions: dict[str, Session] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="tracking", daemon=True)

    def start(self) -> None:
        """Begin to look, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Look once more and close the writers; one that is stuck is left behind with a note."""
        self._ended.set()
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self._say(f"tracking with {', '.join(self._names)} did not end within {PATIENCE:.0f} s: it is incomplete")
            return
        self._look()
        for name in list(self._names):
            self._tried(name, self._close)

    def _follow(self) -> None:
        while not self._ended.wait(EVERY):
            self._look()

    def _look(self) -> None:
        for name in list(self._names):
            self._tried(name, self._pass_on)

    def _pass_on(self, name: str) -> None:
        feed = self._feeds[name]
        if name not in self._sessions:
            self._sessions[name] = WRITERS.get(name).open(feed.facts())
        session = self._sessions[name]
        if points := feed.rounds():
            session.rounds(points)
        kept, cells = feed.cells()
        if kept:
            session.rounds(kept)
        for cell in cells:
            session.cell(cell)

    def _close(self, name: str) -> None:
        if name in self._sessions:
            self._sessions[name].close()

    def _tried(self, name: str, work: Callable[[str], None]) -> None:
        try:
            work(name)
        except Exception as error:  # another tool's trouble is none of the run's
            self._names.remove(name)
            why = " ".join(str(error).split())[:200] or type(error).__name__
            self._say(f"tracking with {name} stopped, the run goes on: {why}")
