"""The tables of a report in LaTeX, with the rules of booktabs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from evaluation.report.grid import Grid, Line

SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "∞": r"$\infty$",
    "★": r"$\star$",
    "–": "--",
} | {sign: f"\\{sign}" for sign in "&%$#_{}"}


LONG = 40
"""Characters from which the last column is broken into lines."""


def latex(grids: Sequence[Grid]) -> str:
    r"""Return one ``table*`` each; the preamble needs booktabs and array."""
    return "% Needs \\usepackage{array,booktabs} in the preamble.\n\n" + "\n".join(_table(grid) for grid in grids)


def escape(text: str) -> str:
    """Return text that LaTeX prints as it is, with a minus before a negative number."""
    safe = "".join(SPECIAL.get(sign, sign) for sign in text)
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", safe)


def _table(grid: Grid) -> str:
    heads = ["", *(column.head for column in grid.columns)]
    sides = "".join("l" if column.words else "r" for column in grid.columns[:-1])
    lines = [
        r"\begin{table*}",
        r"\centering\footnotesize",
        rf"\caption{{{escape(grid.caption)}. {escape(' '.join(grid.notes))}}}",
        rf"\label{{tab:{grid.slug}}}",
        rf"\begin{{tabular}}{{l{sides}{_last(grid)}}}",
        r"\toprule",
        _row([escape(head) for head in heads]),
        r"\midrule",
        *(_line(line) for line in grid.lines),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table*}",
        "",
    ]
    return "\n".join(lines)


def _last(grid: Grid) -> str:
    """Return the last column: sentences are broken, words are not."""
    longest = max((len(line.cells[-1].text) for line in grid.lines), default=0)
    return r">{\raggedright\arraybackslash}p{5cm}" if longest > LONG else "l"


def _line(line: Line) -> str:
    name = rf"\textbf{{{escape(line.name)}}}" if line.kind == "gold" else escape(line.name)
    return _row([name, *(escape(cell.text) for cell in line.cells)])


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"
