"""The one tidy results table of a run: ``results.csv``, one row a cell, checkpoint and metric."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from filelock import FileLock

from evaluation.files import is_file, read_bytes, within, write_text
from partitions.errors import BadInput

SEEDS = ("train_seed", "unlearn_seed", "evaluate_seed")
COLUMNS = (
    "cell",
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
    "checkpoint",
    "train_seed",
    "unlearn_seed",
    "evaluate_seed",
    "metric",
    "value",
    "n",
    "ci_low",
    "ci_high",
    "status",
    "reason",
)
KEY = ("experiment", "dataset", "partition", "request", "cell", "method", "preset", "checkpoint", *SEEDS, "metric")
"""What a row is about: writing it again replaces it."""
FILE = "results.csv"


def write_results(run_folder: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Merge rows into ``results.csv`` of a run folder.

    Safe against other processes doing the same, and a reader never sees a half-written file. Rows are kept sorted, so
    the file does not depend on which cell finished first.

    Parameters
    ----------
    run_folder : Path
        Created when missing.
    rows : iterable of mappings
        Each with every one of `COLUMNS`; None or NaN where there is no value (an original has no unlearn seed).

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ValueError
        When a row lacks a column or has another one.
    """
    checked = [_checked(row) for row in rows]
    path = run_folder / FILE
    rewrite_table(path, lambda: merge_results(checked, [read_results(path)] if path.exists() else []))
    return path


def merge_results(rows: Iterable[Mapping[str, Any]], known: Sequence[pd.DataFrame] = ()) -> pd.DataFrame:
    """Return `known` tables and rows as one, sorted; of rows about the same the last one stays."""
    fresh = _typed(pd.DataFrame([dict(row) for row in rows], columns=list(COLUMNS)))
    merged = pd.concat([*known, fresh], ignore_index=True).drop_duplicates(list(KEY), keep="last")
    return merged.sort_values(list(KEY), kind="stable", ignore_index=True)


def read_results(path: Path) -> pd.DataFrame:
    """Read a results table.

    Parameters
    ----------
    path : Path
        A run folder or the file itself.

    Returns
    -------
    DataFrame
        `COLUMNS`; text as str (empty, never NaN), seeds and n as nullable integers, numbers as float64.

    Raises
    ------
    BadInput
        When there is no such file, it cannot be read, or it is not a results table.
    """
    file = within(path, FILE)
    if not is_file(file):
        raise BadInput("results", str(file), "a run folder with results.csv, or the file itself")

    def check(columns: list[str]) -> None:
        if columns != list(COLUMNS):
            raise BadInput("results", str(file), "a table with the columns " + ", ".join(COLUMNS))

    return read_table(file, "results", check, "status", _typed)


def read_table(
    file: Path,
    key: str,
    check: Callable[[list[str]], None],
    filled: str,
    typed: Callable[[pd.DataFrame], pd.DataFrame],
) -> pd.DataFrame:
    """Read a table of a run folder, as `write_table` writes it.

    Parameters
    ----------
    file : Path
        The CSV.
    key : str
        What errors call it.
    check : callable
        Raises when the columns are others: `ValueError` for a damaged file.
    filled : str
        A column that is empty in no row: a file that was cut short may lack the end of its last one.
    typed : callable
        Gives the columns their types; raises `ValueError` for what they cannot hold.

    Raises
    ------
    BadInput
        When the file cannot be read, or is damaged.
    """
    text = read_bytes(file, key).decode(errors="replace")
    try:
        frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
        check(list(frame.columns))
        if not text.endswith("\n") or frame[filled].isna().any() or (frame[filled] == "").any():
            raise ValueError("cut short")
        return typed(frame.replace("", None))
    except ValueError as error:  # what pandas raises for rows and numbers it cannot read
        if isinstance(error, BadInput):
            raise
        remedy = "remove it and `lethe run --out` that folder again: what is in the cache is not computed again"
        raise BadInput(key, str(file), f"a whole table, and this one is damaged ({error})", remedy) from None


def _checked(row: Mapping[str, Any]) -> Mapping[str, Any]:
    if row.keys() != set(COLUMNS):
        raise ValueError(f"results row: missing or unknown columns {sorted(row.keys() ^ set(COLUMNS))}")
    return row


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    return with_types(frame, COLUMNS, whole=(*SEEDS, "n"), numbers=("alpha", "value", "ci_low", "ci_high"))


def with_types(
    frame: pd.DataFrame, columns: Sequence[str], *, whole: Sequence[str], numbers: Sequence[str]
) -> pd.DataFrame:
    """Return `columns` as nullable integers, float64, and all others as text, which is empty where there is none."""
    typed: dict[str, pd.Series[Any]] = {}
    for name in columns:
        column = frame[name]
        if name in whole:
            typed[name] = whole_numbers(column)
        elif name in numbers:
            typed[name] = pd.to_numeric(column).astype("float64")
        elif column.dtype == "str":
            typed[name] = column.fillna("")
        else:
            typed[name] = column.astype(object).where(column.notna(), "").astype(str)
    return pd.DataFrame(typed)[list(columns)]


def whole_numbers(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column as nullable 64-bit integers; raises `ValueError` for what is not whole, or too large."""
    try:
        with np.errstate(invalid="ignore"):
            return pd.to_numeric(column).astype("Int64")
    except (TypeError, OverflowError):
        raise ValueError(f"{column.name} has a number that is not whole, or too large") from None


def csv_text(table: pd.DataFrame) -> str:
    """Return a table as the CSV that a run folder holds."""
    return str(table.to_csv(index=False, lineterminator="\n"))


def rewrite_table(path: Path, merged: Callable[[], pd.DataFrame]) -> None:
    """Write what `merged` makes of the table that is there; one process at a time, in a folder made when missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock"), mode=0o644):
        write_table(path, merged())


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table as CSV in one step, readable by all and on the disk before it is visible."""
    write_text(path, csv_text(table))
