"""Several sources of runs as one: a server's store, and the run folders beside it."""

from __future__ import annotations

import math

from evaluation.service.sources import OpenRun, RunInfo, Runs
from partitions.errors import BadInput


class Together:
    """Runs of several sources; one that several have is the first one's.

    Parameters
    ----------
    *sources : Runs
    """

    def __init__(self, *sources: Runs) -> None:
        self._sources = sources

    def runs(self) -> list[RunInfo]:
        """Return all runs, newest first."""
        found: dict[str, RunInfo] = {}
        for source in self._sources:
            for run in source.runs():
                found.setdefault(run.id, run)
        return sorted(
            found.values(), key=lambda run: -math.inf if math.isnan(run.created) else run.created, reverse=True
        )

    def open(self, id: str) -> OpenRun:
        """Return a run; raises `BadInput` when no source has one of that id."""
        for source in self._sources:
            try:
                return source.open(id)
            except BadInput:
                continue
        raise BadInput("run", id, "a run of this server", "see the list of runs")
