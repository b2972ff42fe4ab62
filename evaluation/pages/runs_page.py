"""The page of all runs: newest first, filtered by words, two of them ticked to be compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from evaluation.pages.frame import address, link, page
from evaluation.report.pieces import facts
from evaluation.report.sections import CONTROL, GOLD, ORIGINAL
from evaluation.service.sources import RunInfo

ON_A_PAGE = 50
FEW = 6
"""Names shown of a list; the others are counted."""
EVERY = (ORIGINAL, GOLD, CONTROL)
"""Models that are in every run, so that they tell none from another."""
STATES = {
    "done": "done",
    "scoring": "scoring: more is to come",
    "failed": "failed: some models could not be scored",
    "empty": "empty: nothing is scored yet",
    "damaged": "damaged: its record cannot be read",
}


def runs_page(runs: Sequence[RunInfo], words: str, ticked: Sequence[str], number: int) -> str:
    """Return the page.

    Parameters
    ----------
    runs : sequence of RunInfo
        All there are, newest first.
    words : str
        Runs shown have every one of these words somewhere.
    ticked : sequence of str
        Ids of runs that stay ticked, and shown, whatever the words.
    number : int
        Which page of them, from 1.
    """
    found = [run for run in runs if _has(run, words)]
    pages = max(1, math.ceil(len(found) / ON_A_PAGE))
    number = min(max(number, 1), pages)
    shown = found[(number - 1) * ON_A_PAGE : number * ON_A_PAGE]
    kept = [run for run in runs if run.id in ticked and run not in shown]
    if not runs:
        nothing = '<p class="lead">There are no runs yet. <code>lethe run</code> makes one, in some four minutes.</p>'
        return page("Runs", nothing, here="Runs")
    how_many = f"{len(found)} of {len(runs)} runs" if words else f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    listed = "".join(_item(run, run.id in ticked) for run in (*kept, *shown))
    return page(
        "Runs",
        '<form action="/" method="get">',
        '<div class="filter" role="search"><label for="q">Filter by name, data set, request, method or status</label>',
        f'<input type="search" id="q" name="q" value="{escape(words)}" autocomplete="off">',
        "<button>Filter</button></div>",
        f'<p class="count" role="status">{how_many}, newest first{_place(number, pages)}.</p>',
        f'<ol class="runs">{listed}</ol>' if listed else "<p>No run has all of these words.</p>",
        _turning(words, ticked, number, pages),
        '<div class="bar"><button class="main" formaction="/compare">Compare two</button>'
        "<p>Tick two runs first.</p></div></form>",
        here="Runs",
    )


def when(created: float) -> str:
    """Say when a run was started."""
    if math.isnan(created):
        return "start unknown"
    moment = datetime.fromtimestamp(created, UTC)
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"


def _has(run: RunInfo, words: str) -> bool:
    text = " ".join((run.name, run.status, *run.experiments, *run.datasets, *run.requests, *run.methods)).casefold()
    return all(word in text for word in words.casefold().split())


def _item(run: RunInfo, ticked: bool) -> str:
    name, tick = escape(run.name), " checked" if ticked else ""
    warn = "" if run.status in ("done", "scoring") else " warn"
    state = f'<span class="state{warn}">{escape(STATES.get(run.status, run.status))}</span>'
    models = f"{run.models} model{'' if run.models == 1 else 's'}"
    methods = [name for name in run.methods if name not in EVERY]
    asked = {"Data sets": run.datasets, "Requests": run.requests, "Methods": methods}
    return (
        f"<li><h2>{link(address('run', run.id), run.name)}</h2>"
        f'<label class="tick"><input type="checkbox" name="run" value="{escape(run.id)}"{tick} '
        f'aria-label="Compare {name}"><span aria-hidden="true">Compare</span></label>'
        f'<p class="when">{when(run.created)} · {models} · {state}</p>'
        f"{facts({what: _few(names) for what, names in asked.items()})}</li>"
    )


def _few(names: Sequence[str]) -> str:
    rest = len(names) - FEW
    return ", ".join(names) if rest <= 1 else f"{', '.join(names[:FEW])} and {rest} more"


def _place(number: int, pages: int) -> str:
    return f", page {number} of {pages}" if pages > 1 else ""


def _turning(words: str, ticked: Sequence[str], number: int, pages: int) -> str:
    if pages == 1:
        return ""
    turns = [("Newer runs", number - 1), ("Older runs", number + 1)]
    links = "".join(
        link("/" + address(q=words, run=list(ticked), page=str(to)).lstrip("/"), text)
        for text, to in turns
        if 1 <= to <= pages
    )
    return f'<nav class="pages" aria-label="Further runs">{links}</nav>'
