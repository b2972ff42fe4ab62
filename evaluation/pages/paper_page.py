"""The page of a run beside the published tables: what has a counterpart, what has none, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import pandas as pd

from evaluation.pages.frame import address, downloads, link, page
from evaluation.pages.shelf import Ready
from evaluation.published.join import join_published
from evaluation.published.tables import SOURCES
from evaluation.report.grid import Number
from evaluation.report.pieces import contents, data, folded, paragraph, scroll, section, words
from evaluation.report.sections import AFTER, GOLD
from evaluation.tables import Row, short

SETTING = ("table", "dataset", "granularity", "alpha", "model")
OF_A_LINE = ("method", "metric", "our_dataset", "request", "preset")
IN_HEADS = ("on ", "before recovery", "the study reports after it")
"""Remarks that the heads of the columns make."""
RECOVERED = AFTER["recovered"]
RECORDS = (
    "<p><b>The studies do not say on which records they report</b> forget and retain accuracy: on those the model was "
    "trained on, or on held-out ones of the same kind. A run has both, and the head of each column says "
    "which. The studies report after recovery; the model before it, and the original, which has none, are in columns "
    "of their own. In brackets is this run minus published. A number from other software, data versions and seeds is "
    "something to look at, not a test to pass: the distance from a model retrained in the same run tells more.</p>"
)


def paper_page(ready: Ready, *, other_datasets: bool = False) -> str:
    """Return the page; `other_datasets` as of `join_published`."""
    rows = join_published(ready.run.results, other_datasets=other_datasets)
    theirs, ours = rows["published"].notna(), rows["ours"].notna() | (rows["our_metric"] != "")
    both, only_theirs, only_ours = rows[theirs & ours], rows[theirs & ~ours], rows[~theirs]
    groups = [
        (_title(key), f"t{number}", group)
        for number, (key, group) in enumerate(both.groupby(list(SETTING), dropna=False, sort=False), start=1)
    ]
    listed = [*((anchor, title) for title, anchor, _ in groups), ("theirs", THEIRS), ("ours", OURS)]
    return page(
        f"{ready.run.name} beside published tables",
        paragraph(_counted(both, only_theirs)),
        RECORDS,
        f"<p>{_other(ready, other_datasets)}</p>",
        downloads({"All of this as CSV": address("run", ready.id, "paper.csv", **_query(other_datasets))}),
        f'<div class="withnav">{contents(listed)}<div>',
        *(section(anchor, title, _beside(title, group)) for title, anchor, group in groups),
        section("theirs", THEIRS, _without(only_theirs, ("table", "dataset", "granularity"), "published numbers")),
        section("ours", OURS, _without(only_ours, ("our_dataset", "request", "method"), "numbers of this run")),
        _sources(),
        "</div></div>",
        crumbs=[("Runs", "/"), (ready.run.name, address("run", ready.id))],
    )


THEIRS, OURS = "Published numbers without one of this run", "Numbers of this run without a published one"


def _counted(both: pd.DataFrame, alone: pd.DataFrame) -> str:
    paired = len(both[[*SETTING, "method", "metric"]].drop_duplicates()) if len(both) else 0
    if not paired:
        return f"None of the {len(alone)} published numbers is about what this run did; why is said below."
    return f"{paired} of {paired + len(alone)} published numbers have a counterpart in this run."


def _other(ready: Ready, other_datasets: bool) -> str:
    where = address("run", ready.id, "paper", **_query(not other_datasets))
    if other_datasets:
        return f"Rows of other data sets are shown too: no reproduction. {link(where, 'Only the same data sets')}"
    return link(where, "Also set beside it what the studies found on other data sets")


def _query(other_datasets: bool) -> dict[str, str]:
    return {"other": "1"} if other_datasets else {}


def _title(key: Sequence[object]) -> str:
    table, dataset, granularity, alpha, model = key
    split = "" if math.isnan(float(str(alpha))) else f", concentration {float(str(alpha)):g}"
    return f"Table {table}: {dataset}, {granularity}{split}" + (f", {model}" if model else "")


def _beside(title: str, group: pd.DataFrame) -> str:
    """Return a line a method and metric: the published number, then ours by checkpoint and records."""
    rows: list[Row] = [{str(name): value for name, value in row.items()} for row in group.to_dict("records")]
    columns = sorted({_column(row) for row in rows}, key=lambda column: (column[0] != RECOVERED, column))
    lines: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        lines.setdefault(tuple(str(row[name]) for name in OF_A_LINE), []).append(row)
    several = [name for name in OF_A_LINE[2:] if group[name].nunique() > 1]
    heads = "".join(
        f'<th scope="col">{escape(", ".join(one for one in (records, after) if one))}</th>'
        for after, records in columns
    )
    body = "".join(_line(line, columns, several) for line in lines.values())
    table = (
        f'<table class="paper"><caption>{escape(title)}</caption>\n<thead><tr><th scope="col">method</th>'
        f'<th scope="col" class="text">metric</th><th scope="col">published</th>{heads}'
        '<th scope="col" class="text">remarks</th></tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )
    return scroll(title, table)


def _column(row: Row) -> tuple[str, str]:
    """Return when and on which records a number of ours was measured."""
    records = next((part.removeprefix("on ") for part in row["note"].split("; ") if part.startswith("on ")), "")
    return AFTER.get(row["checkpoint"], AFTER["unlearned"]), records


def _line(rows: Sequence[Row], columns: Sequence[tuple[str, str]], several: Sequence[str]) -> str:
    first, own = rows[0], {_column(row): row for row in rows}
    gold = ' class="gold"' if first["method"] == GOLD else ""
    name = " ".join(str(one) for one in (first["method"], *(first[name] for name in several)) if one)
    cells = [_published(first), *(_ours(own.get(column)) for column in columns)]
    remarks = dict.fromkeys(part for row in rows for part in row["note"].split("; ") if not part.startswith(IN_HEADS))
    return (
        f'<tr{gold}><th scope="row">{escape(name)}</th><td class="text">{escape(first["metric"])}</td>'
        f"{''.join(f'<td>{cell}</td>' for cell in cells)}"
        f'<td class="remarks">{escape("; ".join(part for part in remarks if part))}</td></tr>'
    )


def _published(row: Row) -> str:
    return f"{data(_number(row['published']))}{_spread(row['published_std'])}"


def _ours(row: Row | None) -> str:
    if row is None:
        return data(_number(math.nan))
    difference = _number(row["difference"], signed=True)
    told = f' <span class="delta">({data(difference)})</span>' if difference.text else ""
    seeds = f' <span class="delta">{row["seeds"]} seeds</span>' if row["seeds"] > 1 else ""
    return f"{data(_number(row['ours']))}{_spread(row['ours_std'])}{told}{seeds}"


def _number(value: float, *, signed: bool = False) -> Number:
    if math.isnan(value):
        return Number("")
    text = f"{abs(value):.3f}" if abs(value) < 10 else short(abs(value))
    plus = "" if float(text) == 0 else "−" if value < 0 else "+" if signed else ""
    return Number(plus + text, value)


def _spread(std: float) -> str:
    return "" if math.isnan(std) else f' <span class="delta">± {std:.3f}</span>'


def _without(rows: pd.DataFrame, about: Sequence[str], what: str) -> str:
    """Count the rows that stand alone, by the reason for it."""
    if rows.empty:
        return paragraph("None.")
    found = []
    for note, group in rows.groupby("note", sort=False):
        named = [", ".join(dict.fromkeys(str(one) for one in group[name] if str(one))) for name in about]
        found.append((str(note), str(len(group)), *named))
    found.sort(key=lambda row: -int(row[1]))
    heads = ("why", what, *(name.replace("our_", "").replace("dataset", "data set") for name in about))
    return folded(f"{len(rows)} {what}, and why", words(f"{len(rows)} {what}, by reason", heads, found))


def _sources() -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in SOURCES.items())
    return section("sources", "Where the published numbers come from", f"<dl>{rows}</dl>")
