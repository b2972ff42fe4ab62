"""Who scores: the evaluator in this process, or (`evaluation.service.remote`) one that is asked over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from evaluation.curves import write_curves
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
    """

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder

    def submit(self, submission: Submission) -> None:
        """Score and write."""
        write_results(self._run_folder, submission.rows())
        write_curves(self._run_folder, submission.curves())

    def finish(self) -> None:
        """Have nothing left to do."""
