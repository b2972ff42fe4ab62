"""Pieces of HTML that the report of a run and the pages of the server are put together from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from evaluation.report.drawing import WIDTH, Plot
from evaluation.report.grid import Cell, Column, Grid, Line, Number
from evaluation.report.sections import slug, visible

PIXELS = 96
"""Of an inch in CSS."""


@dataclass(frozen=True)
class Places:
    """Where what a page shows can be had.

    Attributes
    ----------
    image : callable
        From a figure to the address of its image.
    figure, table : callable
        From a figure or a table to the address of each of its files, by kind; none where there are no files.
    words : str
        What leads these links.
    """

    image: Callable[[Plot], str]
    figure: Callable[[Plot], Mapping[str, str]]
    table: Callable[[Grid], Mapping[str, str]]
    words: str


def document(title: str, head: str, body: Sequence[str]) -> str:
    """Return a whole page; its body has an element with the id ``main``.

    Characters that are not seen, or that turn the direction of what follows, have a mark in their place.
    """
    return visible(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n{head}\n</head>\n<body>\n"
        '<a class="skip" href="#main">To the contents</a>\n' + "\n".join(body) + "\n</body>\n</html>\n"
    )


def contents(links: Iterable[tuple[str, str]]) -> str:
    """Return the navigation within a page: (anchor, words)."""
    items = "".join(f'<li><a href="#{anchor}">{escape(text)}</a></li>' for anchor, text in links)
    return f'<nav class="contents" aria-label="Contents"><ol>{items}</ol></nav>'


def section(anchor: str, title: str, *parts: str) -> str:
    """Return a section with a heading of the second level that names it."""
    inside = "\n".join(part for part in parts if part)
    return (
        f'<section id="{anchor}" aria-labelledby="{anchor}-h"><h2 id="{anchor}-h">{escape(title)}</h2>\n'
        f"{inside}</section>"
    )


def facts(found: Mapping[str, str]) -> str:
    """Return a list of names and facts; empty ones are left out."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(fact)}</dd>" for name, fact in found.items() if fact)
    return f"<dl>{rows}</dl>" if rows else ""


def folded(summary: str, inside: str) -> str:
    """Return something that is shown when asked for."""
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def paragraph(text: str) -> str:
    """Return a paragraph, or nothing."""
    return f"<p>{escape(text)}</p>" if text else ""


def figure(plot: Plot, places: Places) -> str:
    """Return a figure with its caption and its files."""
    title = escape(plot.title)
    files = _files(plot.title, places, places.figure(plot))
    return (
        f'<figure id="{slug(plot.name)}"><div class="picture">'
        f'<img src="{escape(places.image(plot))}" alt="{escape(plot.alt)}" loading="lazy" '
        f'width="{WIDTH * PIXELS:.0f}" height="{plot.height * PIXELS:.0f}"></div>'
        f"<figcaption><b>{title}.</b> {escape(plot.caption)}{files}</figcaption></figure>"
    )


def table(grid: Grid, places: Places) -> str:
    """Return a table with its notes, and what each column means."""
    heads = "".join(f'<th scope="col"{_side(column)}>{escape(column.head)}</th>' for column in grid.columns)
    body = "\n".join(_line(line, grid.columns) for line in grid.lines)
    meanings = "; ".join(f"{column.head}: {column.meaning}" for column in grid.columns)
    found = (
        f'<table id="table-{grid.slug}"><caption>{escape(grid.caption)}</caption>'
        f'<thead><tr><th scope="col">{escape(grid.subject)}</th>{heads}</tr></thead>\n<tbody>{body}</tbody></table>'
    )
    notes = " ".join([*grid.notes, f"{meanings}."])
    files = _files(grid.caption, places, places.table(grid))
    return f"{scroll(grid.caption, found)}<p class=note>{escape(notes)}{files}</p>"


def words(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of text."""
    head = "".join(f'<th scope="col">{escape(one)}</th>' for one in heads)
    body = "\n".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(one)}</td>" for one in rest)}</tr>'
        for first, *rest in rows
    )
    head = f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
    return scroll(caption, f'<table class="words">{head}\n<tbody>{body}</tbody></table>')


def scroll(label: str, inside: str) -> str:
    """Let a wide table scroll by itself, by keyboard too."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">{inside}</div>'


def data(number: Number) -> str:
    """Return a number as shown, with its exact value for whatever reads the page next."""
    if not number.text:
        return '<span role="img" aria-label="no value">–</span>'
    shown = escape(number.text)
    return shown if number.value is None else f'<data value="{number.value!r}">{shown}</data>'


def _line(line: Line, columns: Sequence[Column]) -> str:
    kind = f' class="{line.kind}"' if line.kind else ""
    cells = "".join(_cell(cell, column) for cell, column in zip(line.cells, columns, strict=True))
    return f'<tr{kind}><th scope="row">{escape(line.name)}</th>{cells}</tr>'


def _cell(cell: Cell, column: Column) -> str:
    delta = f' <span class="delta">({data(cell.delta)})</span>' if cell.delta.text else ""
    return f"<td{_side(column)}>{data(cell.value)}{delta}</td>"


def _side(column: Column) -> str:
    return ' class="text"' if column.words else ""


def _files(title: str, places: Places, files: Mapping[str, str]) -> str:
    links = ", ".join(
        f'<a href="{escape(address)}" download aria-label="{escape(title)} as {kind}">{kind}</a>'
        for kind, address in files.items()
    )
    return f' <span class="note files">{escape(places.words)}: {links}.</span>' if links else ""
