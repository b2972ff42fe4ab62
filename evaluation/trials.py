"""Every trial of the hyper-parameter searches of a run: ``trials.csv``, one row a request, method and trial."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.evidence import SplitName
from evaluation.files import is_file
from evaluation.results import read_table, rewrite_table, with_types

FILE = "trials.csv"
HELD_OUT: tuple[SplitName, ...] = ("forget", "retain", "test")
"""Held-out splits that every trial is scored on, for readers; no rule looks at them."""
COLUMNS = (
    "search",  # id of what was asked: the same for all methods, requests and train seeds that may be compared
    "experiment",
    "task",
    "dataset",
    "partition",
    "alpha",
    "model",
    "request",
    "granularity",
    "method",
    "preset",
    "trial",
    "values",
    "sampler",
    "rule",
    "checkpoint",
    "train_seed",
    "unlearn_seed",
    "search_seed",
    "metric",
    "higher_is_better",
    "score",
    "retain_train",
    "forget_train",
    *(f"{model}{split}" for model in ("", "gold_") for split in HELD_OUT),
    "kl_forget",
    "seconds",
    "chosen",
    "status",
    "reason",
)
KEY = ("experiment", "search", "request", "train_seed", "method", "trial")
"""What a row is about: writing it again replaces it."""
DEFAULT_TRIAL = 0
"""Number of the trial that is the preset itself: there to be compared with, never chosen."""
_NUMBERS = ("alpha", *COLUMNS[COLUMNS.index("score") : COLUMNS.index("chosen")])
_WHOLE = ("trial", "train_seed", "unlearn_seed", "search_seed")
_TRUTH = ("higher_is_better", "chosen")


def write_trials(run_folder: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Merge rows into ``trials.csv`` of a run folder, each with every one of `COLUMNS`; sorted, in one step.

    Safe against other processes doing the same; a reader never sees a half-written file.
    """
    fresh = _typed(pd.DataFrame([dict(row) for row in rows], columns=list(COLUMNS)))

    def merged() -> pd.DataFrame:
        tables = [table for table in (read_trials(run_folder), fresh) if len(table)]
        together = pd.concat(tables, ignore_index=True).drop_duplicates(list(KEY), keep="last")
        return _as_text(together.sort_values(list(KEY), kind="stable", ignore_index=True))

    if len(fresh):
        rewrite_table(run_folder / FILE, merged)


def no_trials() -> pd.DataFrame:
    """Return a table of trials without rows."""
    return _typed(pd.DataFrame(columns=list(COLUMNS)))


def read_trials(path: Path) -> pd.DataFrame:
    """Read the trials of a run folder; without such a file, a table without rows.

    Returns
    -------
    DataFrame
        `COLUMNS`: text as str (``values`` is a JSON object of setting to value), trial and seeds as nullable integers,
        scores as float64 in the task's metric (kl_forget in nats, seconds of all rounds), chosen and higher_is_better
        as bool.

    Raises
    ------
    BadInput
        When the file cannot be read, or is damaged.
    """
    file = path / FILE
    if not is_file(file):
        return no_trials()

    def check(columns: list[str]) -> None:
        if columns != list(COLUMNS):
            raise ValueError("other columns")

    return read_table(file, "trials", check, "status", _typed)


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    typed = with_types(frame, COLUMNS, whole=_WHOLE, numbers=_NUMBERS)
    return typed.assign(**{name: typed[name].str.lower() == "true" for name in _TRUTH})


def _as_text(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(**{name: frame[name].map({True: "true", False: "false"}) for name in _TRUTH})
