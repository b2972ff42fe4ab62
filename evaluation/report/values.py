"""The tables of a report as CSV, with every value as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from evaluation.report.grid import Grid


def values(grids: Sequence[Grid]) -> str:
    """Return the tables as one CSV, a line each: table, what the line is about, every number.

    A column of differences follows each column that shows some. An empty field is a value that there is none of.
    """
    lines = [
        {"table": grid.slug, grid.subject: line.name} | dict(_fields(grid, line.cells))
        for grid in grids
        for line in grid.lines
    ]
    return pd.DataFrame(lines).to_csv(index=False, lineterminator="\n")


def _fields(grid: Grid, cells: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for column, cell in zip(grid.columns, cells, strict=True):
        yield column.head, cell.value.text if cell.value.value is None else cell.value.value
        if any(line.cells[grid.columns.index(column)].delta.text for line in grid.lines):
            yield f"{column.head} difference", cell.delta.value
