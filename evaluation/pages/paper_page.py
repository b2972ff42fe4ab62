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
from evaluation.tables import short

SETTING = ("table", "dataset", "granularity", "alpha", "model")
RECORDS = (
    "<p><b>The studies do not say on which records they report</b> forget and retain accuracy: on those the model was "
    "trained on, or on held-out ones of the same kind. A run has both, so that one published number may stand beside "
    "two of this run; the remark of each row says which it is. The studies report after recovery; rows of this run "
    "before recovery are marked. A number from other software, data versions and seeds is something to look at, not a "
    "test to pass: the distance from a model retrained in the same run tells more.</p>"
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
    heads = ("method", "metric", "published", "this run", "difference", "checkpoint", "our metric", "remark")
    head = "".join(f'<th scope="col">{one}</th>' for one in heads)
    body = "".join(_row(row) for row in group.to_dict("records"))
    table = (
        f'<table class="paper"><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )
    return scroll(title, table)


def _row(row: dict[object, object]) -> str:
    gold = ' class="gold"' if row["method"] == "retrain" else ""
    seeds = f" ({row['seeds']} seeds)" if int(str(row["seeds"])) > 1 else ""
    numbers = (
        f"{data(_number(row['published']))}{_spread(row['published_std'])}",
        f"{data(_number(row['ours']))}{_spread(row['ours_std'])}{seeds}",
        data(_number(row["difference"], signed=True)),
    )
    told = [str(row[name]) for name in ("checkpoint", "our_metric", "note")]
    return (
        f'<tr{gold}><th scope="row">{escape(str(row["method"]))}</th><td>{escape(str(row["metric"]))}</td>'
        + "".join(f'<td class="number">{one}</td>' for one in numbers)
        + "".join(f"<td>{escape(one)}</td>" for one in told)
        + "</tr>"
    )


def _number(value: object, *, signed: bool = False) -> Number:
    number = float(str(value))
    if math.isnan(number):
        return Number("")
    text = f"{abs(number):.3f}" if abs(number) < 10 else short(abs(number))
    plus = "" if float(text.replace("e", "E")) == 0 else "−" if number < 0 else "+" if signed else ""
    return Number(plus + text, number)


def _spread(std: object) -> str:
    number = float(str(std))
    return "" if math.isnan(number) else f' <span class="delta">± {number:.3f}</span>'


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
