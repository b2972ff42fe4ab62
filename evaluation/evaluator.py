"""Who scores: the evaluator in this process, or (`evaluation.service.remote`) one that is asked over HTTP."""

from __future__ import annotations

import math
import time
from pathlib import Path
from threading import Thread
from typing import Protocol, Self

from evaluation.curves import write_curves
from evaluation.panel import Row
from evaluation.results import write_results
from evaluation.submission import Submission

WRITING = 0.05
"""Share of the time that an evaluator with patience spends on writing tables, at most: they grow with every model."""
HURRY = 1.0
"""Seconds that scoring may still take once the command is interrupted; a resumed run scores what is left out."""


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
        self._scoring: _Scoring | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        if error is None or isinstance(error, Exception):
            self.finish()
        elif self._scoring is None or self._scoring.ended(HURRY):  # who interrupts waits for no attack to be computed
            self._evaluator.finish()

    def submit(self, submission: Submission) -> None:
        """Have a submission scored once the last one is."""
        self._wait()
        self._scoring = _Scoring(self._evaluator, submission)

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


class _Scoring(Thread):
    """Scores one submission; ends with the process, whatever it is at."""

    def __init__(self, evaluator: Evaluator, submission: Submission) -> None:
        super().__init__(name="evaluator", daemon=True)
        self._evaluator, self._submission = evaluator, submission
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._evaluator.submit(self._submission)
        except BaseException as error:
            self._error = error

    def ended(self, patience: float) -> bool:
        """Wait some seconds; tell whether it has ended."""
        self.join(patience)
        return not self.is_alive()

    def result(self) -> None:
        """Wait, and raise what it raised."""
        self.join()
        if self._error is not None:
            raise self._error
