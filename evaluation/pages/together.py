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
        told: set[tuple[str, float]] = set()
        for source in self._sources:
            new = [run for run in source.runs() if run.id not in found and (run.name, run.created) not in told]
            found |= {run.id: run for run in new}
            told |= {(run.name, run.created) for run in new}  # a run that was posted, and whose folder is here as well
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
