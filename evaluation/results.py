"""The one tidy results table of a run: ``results.csv``, one row a cell, checkpoint and metric."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from filelock import FileLock

from evaluation.files import is_file, read_bytes, within
from partitions.errors import BadInput

TEXT = (
    "cell",
    "experiment",
    "task",
    "dataset",
    "partition",
    "model",
    "request",
    "granularity",
    "method",
    "preset",
    "checkpoint",
    "metric",
    "status",
    "reason",
)
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
    run_folder.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock"), mode=0o644):
        write_table(path, merge_results(checked, [read_results(path)] if path.exists() else []))
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
    text = read_bytes(file, "results").decode(errors="replace")
    try:
        frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
        if list(frame.columns) != list(COLUMNS):
            raise BadInput("results", str(file), "a table with the columns " + ", ".join(COLUMNS))
        if not text.endswith("\n") or frame["status"].isna().any() or (frame["status"] == "").any():
            raise ValueError("cut short")
        return _typed(frame.replace("", None))
    except ValueError as error:  # what pandas raises for rows and numbers it cannot read
        if isinstance(error, BadInput):
            raise
        remedy = "remove it and `lethe run --out` that folder again: what is in the cache is not computed again"
        raise BadInput("results", str(file), f"a whole table, and this one is damaged ({error})", remedy) from None


def _checked(row: Mapping[str, Any]) -> Mapping[str, Any]:
    if row.keys() != set(COLUMNS):
        raise ValueError(f"results row: missing or unknown columns {sorted(row.keys() ^ set(COLUMNS))}")
    return row


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    typed: dict[str, pd.Series[Any]] = {
        name: frame[name].astype(object).where(frame[name].notna(), "").astype(str) for name in TEXT
    }
    typed |= {name: whole_numbers(frame[name]) for name in (*SEEDS, "n")}
    typed |= {name: pd.to_numeric(frame[name]).astype("float64") for name in ("alpha", "value", "ci_low", "ci_high")}
    return pd.DataFrame(typed)[list(COLUMNS)]


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


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table as CSV in one step, readable by all and on the disk before it is visible."""
    text = csv_text(table)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
