"""Who scores: the evaluator in this process, or (`evaluation.service.remote`) one that is asked over HTTP."""

from __future__ import annotations

import math
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, Self

from evaluation.curves import write_curves
from evaluation.panel import Row
from evaluation.results import write_results
from evaluation.submission import Submission

WRITING = 0.05
"""Share of the time that an evaluator with patience spends on writing tables, at most: they grow with every model."""


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
        Seconds that must be over since the tables were written before they are written again, and more where writing
        takes long (`WRITING`): each time they are read and written as a whole. What waits is written by `finish`; who
        is killed before scores it again. 0 writes every model at once.
    """

    def __init__(self, run_folder: Path, patience: float = 0.0) -> None:
        self._run_folder, self._patience = run_folder, patience
        self._rows: list[Row] = []
        self._curves: list[list[Row]] = []
        self._next = -math.inf

    def submit(self, submission: Submission) -> None:
        """Score, and write when it is time."""
        self._rows += submission.rows()
        self._curves.append(list(submission.curves()))
        if time.monotonic() >= self._next:
            self.finish()

    def finish(self) -> None:
        """Write what waits."""
        started = time.monotonic()
        if self._rows:
            write_results(self._run_folder, self._rows)
            write_curves(self._run_folder, *self._curves)
            self._rows, self._curves = [], []
        ended = time.monotonic()
        self._next = ended + (max(self._patience, (ended - started) / WRITING) if self._patience else 0.0)


class Beside:
    """Lets another evaluator score in a thread of its own, while who submits goes on; to be used in a ``with`` block.

    One submission is scored at a time, and the next is only taken then: no more models than that are held. What goes
    wrong is raised at the next submission, or at the end.

    Parameters
    ----------
    evaluator : Evaluator
        Who scores.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._thread = ThreadPoolExecutor(1, "evaluator")
        self._scoring: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        with self._thread:
            self.finish()

    def submit(self, submission: Submission) -> None:
        """Have a submission scored once the last one is."""
        self._wait()
        self._scoring = self._thread.submit(self._evaluator.submit, submission)

    def finish(self) -> None:
        """Return when all is scored and written."""
        try:
            self._wait()
        finally:
            self._evaluator.finish()

    def _wait(self) -> None:
        scoring, self._scoring = self._scoring, None
        if scoring is not None:
            scoring.result()
