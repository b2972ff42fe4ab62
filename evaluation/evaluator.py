"""Who scores: the evaluator in this process, or (`evaluation.service.remote`) one that is asked over HTTP."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Protocol

from evaluation.curves import write_curves
from evaluation.panel import Row
from evaluation.results import write_results
from evaluation.submission import Submission


class Evaluator(Protocol):
    """Turns submissions into rows of a run's ``results.csv`` and ``curves.csv``."""

    def submit(self, submission: Submission) -> None:
        """Score a submission, now or later."""

    def finish(self) -> None:
        """Return when the rows of every submission are in the run folder; raises `RunFailed` when one never will."""


class InProcess:
    """Scores at once, in this process.

    Parameters
    ----------
    run_folder : Path
        Where the tables lie.
    patience : float
        Seconds that must be over since the tables were written before they are written again: with every model they
        are read and written as a whole. What waits is written by `finish`; who is killed before scores it again.
    """

    def __init__(self, run_folder: Path, patience: float = 0.0) -> None:
        self._run_folder, self._patience = run_folder, patience
        self._rows: list[Row] = []
        self._curves: list[list[Row]] = []
        self._written = -math.inf

    def submit(self, submission: Submission) -> None:
        """Score, and write when it is time."""
        self._rows += submission.rows()
        self._curves.append(list(submission.curves()))
        if time.monotonic() - self._written >= self._patience:
            self.finish()

    def finish(self) -> None:
        """Write what waits."""
        if self._rows:
            write_results(self._run_folder, self._rows)
            write_curves(self._run_folder, *self._curves)
            self._rows, self._curves = [], []
        self._written = time.monotonic()
