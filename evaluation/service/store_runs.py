"""The runs of a store, as pages want them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from evaluation.service.formats import TABLE, read_table
from evaluation.service.sources import RunInfo
from evaluation.service.store import Store
from evaluation.trials import no_trials
from partitions.errors import BadInput


class StoreRuns:
    """The runs of a store (`evaluation.service.sources.Runs`).

    Parameters
    ----------
    store : Store
        Where they are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def runs(self) -> list[RunInfo]:
        """Return the runs, newest first."""
        return [
            RunInfo(
                id=one["id"],
                name=one["name"],
                created=one["created"],
                experiments=tuple(one["experiments"]),
                models=sum(one["counts"].values()),
                status=run_status(one["counts"]),
                datasets=tuple(one["datasets"]),
                requests=tuple(one["requests"]),
                methods=tuple(one["methods"]),
            )
            for one in self._store.runs()
        ]

    def open(self, id: str) -> StoredRun:
        """Return one of them; raises `BadInput` when there is none of that id."""
        try:
            found = self._store.run(id)
        except KeyError:
            raise BadInput("run", id, "a run that was posted to this server", "see /api/runs") from None
        return StoredRun(self._store, id, found["name"], found["record"], found["rounds"])


@dataclass(frozen=True)
class StoredRun:
    """One run of a store.

    Attributes
    ----------
    id, name : str
        As in its `RunInfo`.
    manifest : mapping
        The contents of ``run.json``.
    """

    _store: Store
    id: str
    name: str
    manifest: Mapping[str, Any]
    _rounds: str | None

    @cached_property
    def results(self) -> pd.DataFrame:
        """The results table."""
        return self._store.results(self.id)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """The points of figures."""
        return self._store.curves(self.id)

    @property
    def trials(self) -> pd.DataFrame:
        """No trials: they stay in the folder of the run that made them."""
        return no_trials()

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """The recorded rounds of every training; empty where none were given."""
        if self._rounds is None or not self._store.blobs.has(self._rounds, TABLE):
            return pd.DataFrame(columns=["method", "round", "site"])
        return read_table(self._store.blobs.read(self._rounds, TABLE))


def run_status(counts: Mapping[str, int]) -> str:
    """Return a run's status from the number of its submissions by theirs (`RunInfo.status`)."""
    if not sum(counts.values()):
        return "empty"
    if counts.get("queued") or counts.get("scoring"):
        return "scoring"
    return "failed" if counts.get("failed") else "done"
