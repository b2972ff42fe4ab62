"""What a figure needs beyond single numbers: ``curves.csv`` of a run, one row a point, tidy like ``results.csv``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.evidence import Evidence
from evaluation.failures import named_failure
from evaluation.files import is_file
from evaluation.results import SEEDS, read_table, rewrite_table, with_types
from partitions.registry import Registry

ABOUT = ("cell", "request", "method", "preset", "checkpoint", "train_seed", "unlearn_seed", "evaluate_seed")
"""Which model a point is of, and with which seeds; columns of ``results.csv``."""
COLUMNS = (*ABOUT, "kind", "series", "label", "x", "y")
FILE = "curves.csv"


@dataclass(frozen=True)
class Point:
    """One point.

    Attributes
    ----------
    series : str
        The line, bar group or cloud it belongs to.
    x, y : float
        Where it lies; NaN where the curve has no such axis.
    label : str
        What it is called, such as the site of a bar; empty where it has no name.
    """

    series: str
    x: float
    y: float
    label: str = ""


@dataclass(frozen=True)
class Curve:
    """A kind of curve. A module of `evaluation.metrics` takes part by binding ``CURVE``.

    Attributes
    ----------
    name : str
        Kind, such as ``site`` or ``roc``.
    points : callable
        From `Evidence` to its points, in order; none where there is nothing to show. Never raises for a model that
        cannot be scored.
    """

    name: str
    points: Callable[[Evidence], Iterable[Point]]


CURVES: Registry[Curve] = Registry("curve", "evaluation.metrics", "CURVE", "lethe.curves")
"""This package's own curves and those of the entry-point group ``lethe.curves``."""


def curves_of(evidence: Evidence) -> Iterator[dict[str, Any]]:
    """Yield kind, series, label, x and y of every point of every registered curve of one model."""
    for kind in CURVES.names():
        with named_failure("curve", kind):
            points = [*CURVES.get(kind).points(evidence)]
        for point in points:
            yield {"kind": kind, "series": point.series, "label": point.label, "x": point.x, "y": point.y}


def write_curves(run_folder: Path, *writes: Iterable[Mapping[str, Any]]) -> None:
    """Merge points into ``curves.csv`` of a run folder; those of a model and kind replace what was there of both.

    Safe against other processes doing the same; a reader never sees a half-written file.

    Parameters
    ----------
    run_folder : Path
        Created when missing.
    *writes : iterables of mappings
        One write after the other, each row with every one of `COLUMNS`. Without any row, nothing is written.
    """
    fresh = [rows for rows in ([dict(row) for row in write] for write in writes) if rows]
    if fresh:
        rewrite_table(run_folder / FILE, lambda: merge_curves(fresh, read_curves(run_folder)))


def merge_curves(writes: Iterable[Iterable[Mapping[str, Any]]], known: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return the `known` points and those of several writes, sorted; a model's points of a kind are its last write's.

    Parameters
    ----------
    writes : iterable of iterables of mappings
        Points in the order of writing, each with every one of `COLUMNS`.
    known : DataFrame, optional
        As `read_curves` returns it.
    """
    tables = [] if known is None else [known]
    tables += [_typed(pd.DataFrame([dict(row) for row in rows], columns=list(COLUMNS))) for rows in writes]
    about = [*ABOUT, "kind"]
    last: dict[tuple[str, ...], int] = {}
    keys = [list(table[about].astype(str).itertuples(index=False, name=None)) for table in tables]
    for number, names in enumerate(keys):
        last |= dict.fromkeys(names, number)
    stays = [last[key] == number for number, names in enumerate(keys) for key in names]
    if not tables:
        return _typed(pd.DataFrame(columns=list(COLUMNS)))
    merged = pd.concat(tables, ignore_index=True)
    return merged[pd.Series(stays, index=merged.index, dtype=bool)].sort_values(about, kind="stable", ignore_index=True)


def read_curves(path: Path) -> pd.DataFrame:
    """Read the curves of a run folder; without such a file, a table without rows.

    Raises
    ------
    BadInput
        When the file cannot be read, or is damaged.
    """
    file = path / FILE
    if not is_file(file):
        return _typed(pd.DataFrame(columns=list(COLUMNS)))

    def check(columns: list[str]) -> None:
        if columns != list(COLUMNS):
            raise ValueError("other columns")

    return read_table(file, "curves", check, "kind", _typed)


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    return with_types(frame, COLUMNS, whole=SEEDS, numbers=("x", "y"))
