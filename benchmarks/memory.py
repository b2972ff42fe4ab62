"""Peak memory of a process and everything that it started, sampled from outside."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass

import psutil

EVERY = 0.5
"""Seconds between two samples."""


@dataclass(frozen=True)
class Peak:
    """Largest sums over all processes, in bytes.

    Attributes
    ----------
    rss : int
        Counts a page that processes share once for each of them.
    pss : int
        Counts it once; 0 where the system does not tell.
    processes : int
        At the peak of `rss`.
    largest : int
        RSS of the largest single process seen.
    """

    rss: int = 0
    pss: int = 0
    processes: int = 0
    largest: int = 0


class MemoryWatch:
    """Samples while it is open as a context manager; then `peak` is final.

    Parameters
    ----------
    pid : int
        The process; its descendants count too.
    """

    def __init__(self, pid: int) -> None:
        self.peak = Peak()
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.peak = _larger(self.peak, sample(self._pid))
            if self._done.wait(EVERY):
                return


def sample(pid: int) -> Peak:
    """Return the sums over a process and its descendants now; zeros when it is gone."""
    rss, pss = [], []
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                found = process.memory_full_info()
                rss.append(int(found.rss))
                pss.append(int(getattr(found, "pss", 0)))
    return Peak(sum(rss), sum(pss), len(rss), max(rss, default=0))


def _larger(a: Peak, b: Peak) -> Peak:
    more = max(a, b, key=lambda peak: peak.rss)
    return Peak(more.rss, max(a.pss, b.pss), more.processes, max(a.largest, b.largest))
