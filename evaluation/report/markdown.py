"""The tables of a report in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from evaluation.report.grid import Grid


def markdown(grids: Sequence[Grid]) -> str:
    """Return the tables one below the other, gold in bold."""
    return "\n".join(_table(grid) for grid in grids)


def _table(grid: Grid) -> str:
    heads = [grid.subject, *(column.head for column in grid.columns)]
    lines = [f"### {_plain(grid.caption)}", "", _row(heads), _rule(grid)]
    for line in grid.lines:
        name = f"**{line.name}**" if line.kind == "gold" else line.name
        lines.append(_row([name, *(cell.text for cell in line.cells)]))
    return "\n".join([*lines, "", *(_plain(note) for note in grid.notes), ""])


def _rule(grid: Grid) -> str:
    """Return the line below the heads: numbers end at the right, the first and the last column begin at the left."""
    sides = ["---" if column.words else "---:" for column in grid.columns[:-1]]
    return f"|{'|'.join(['---', *sides, '---'])}|"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_plain(cell) for cell in cells)} |"


def _plain(text: str) -> str:
    """Return text that does not end a cell or a line."""
    return " ".join(text.replace("|", "\\|").split())
