"""Where pages find runs: a server's store (`evaluation.service.store_runs`) or run folders offer the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pandas as pd


@dataclass(frozen=True)
class RunInfo:
    """One line of a list of runs.

    Attributes
    ----------
    id : str
        What `Runs.open` takes; letters, digits, ``.``, ``_`` and ``-`` only.
    name : str
        What people call it: the name of the run folder.
    created : float
        When it was first started, in seconds since the epoch; NaN where unknown.
    experiments : tuple of str
        Names of the experiments in its results, sorted.
    models : int
        Scored models: one a cell and checkpoint.
    status : str
        ``done`` when every model is scored, ``scoring`` while some wait, ``failed`` when some never will be, ``empty``
        without any; a run folder that cannot be read is ``damaged``.
    datasets, requests, methods : tuple of str
        What it is about, in the order of its results; empty where unknown.
    """

    id: str
    name: str
    created: float
    experiments: tuple[str, ...]
    models: int
    status: str
    datasets: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()


class OpenRun(Protocol):
    """One run."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def results(self) -> pd.DataFrame:
        """The results table, as `evaluation.results.read_results` returns it; without rows when nothing is scored."""

    @property
    def curves(self) -> pd.DataFrame:
        """The points of figures, as `evaluation.curves.read_curves` returns them."""

    @property
    def trials(self) -> pd.DataFrame:
        """Every trial of its searches, as `evaluation.trials.read_trials` returns them; may be empty."""

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The contents of ``run.json``; empty where none was given."""

    @property
    def rounds(self) -> pd.DataFrame:
        """The recorded rounds of every training, as `evaluation.runs.Run.rounds`; may be empty."""


class Runs(Protocol):
    """All runs that pages may show."""

    def runs(self) -> list[RunInfo]:
        """Return the runs, newest first."""

    def open(self, id: str) -> OpenRun:
        """Return one of them; raises `BadInput` when there is none of that id."""
