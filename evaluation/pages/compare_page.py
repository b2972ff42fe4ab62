"""The page of two runs side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from evaluation.pages.comparison import Change, Pair, change, lone, paired_name, pairs_of, settings_apart
from evaluation.pages.frame import address, downloads, items, link, page
from evaluation.pages.runs_page import when
from evaluation.pages.shelf import Ready
from evaluation.report.grid import Number
from evaluation.report.pieces import contents, data, paragraph, scroll, section, words
from evaluation.report.sections import AFTER, GOLD, KL, ORIGINAL, Section
from evaluation.tables import Row, duration, short

SIGNS = {
    "beyond": ("≠", "beyond its interval"),
    "within": ("≈", "within its interval"),
    "unknown": ("", ""),
    "missing": ("", ""),
}
KEY = (
    "Each cell has the first run, the second, and below them second minus first. ≠: the 95 % interval of the "
    "difference leaves out nought, so more than the records or seeds that happened to be drawn. ≈: it does not. No "
    "sign: a run has neither an interval nor several seeds. Of twenty true noughts one is marked ≠ by chance."
)


class Shown(NamedTuple):
    """A column: its head, the metric below it, and how its numbers are written."""

    head: str
    metric: str
    unit: str = ""


def compare_page(first: Ready, second: Ready) -> str:
    """Return the page."""
    pairs = pairs_of(first.sections, second.sections)
    alone = (lone(first.sections, second.sections), lone(second.sections, first.sections))
    names = (first.run.name, second.run.name)
    listed = [("settings", "What differs in the settings"), ("only", "What only one has")]
    listed += [("key", "How to read the differences")] if pairs else []
    listed += [(pair.first.slug, pair.first.title) for pair in pairs]
    return page(
        "Two runs side by side",
        _who(first, second),
        downloads({"Every metric of both, CSV": address("compare.csv", run=[first.id, second.id])}) if pairs else "",
        f'<div class="withnav">{contents(listed)}<div>',
        _settings(pairs, first, second),
        section("only", "What only one has", *_only(pairs, alone, names)),
        section("key", "How to read the differences", paragraph(KEY)) if pairs else "",
        *(_pair(pair, names) for pair in pairs),
        "</div></div>",
        crumbs=[("Runs", address("", run=[first.id, second.id]))],
    )


def _who(first: Ready, second: Ready) -> str:
    found = [
        f"<li><b>{place}</b>{link(address('run', ready.id), ready.run.name)}<br>"
        f"{when(float(ready.run.manifest.get('created') or math.nan))}</li>"
        for place, ready in (("First", first), ("Second", second))
    ]
    swapped = link(address("compare", run=[second.id, first.id]), "Swap the two")
    return f'<ul class="two">{"".join(found)}</ul><p class="swap">{swapped}</p>'


def _settings(pairs: Sequence[Pair], first: Ready, second: Ready) -> str:
    rows = settings_apart(pairs, first.run.manifest, second.run.manifest)
    several = any(where for *_, where in rows)
    heads = ("setting", "first", "second", *(("where",) if several else ()))
    caption = "Settings, code and hardware that differ"
    found = [row if several else row[:3] for row in rows]
    nothing = "No setting differs." if pairs else "The runs have no request in common, so no settings to compare."
    return section(
        "settings",
        "What differs in the settings",
        words(caption, heads, found) if rows else "",
        "" if rows and pairs else paragraph(nothing),
    )


def _only(pairs: Sequence[Pair], alone: tuple[list[Section], list[Section]], names: tuple[str, str]) -> list[str]:
    parts = []
    for place, (name, sections) in enumerate(zip(names, alone, strict=True)):
        told = [f"request {one.title}" for one in sections]
        told += [f"{', '.join(pair.only[place])}: {pair.first.title}" for pair in pairs if pair.only[place]]
        which = ("first", "second")[place]
        parts += [f"<h3>Only in the {which}: {escape(name)}</h3>", items(told) or "<p>Nothing.</p>"]
    return parts


def _pair(pair: Pair, names: tuple[str, str]) -> str:
    parts: list[str] = []
    for checkpoint, after in AFTER.items():
        models = [
            (one, two)
            for one, two in pair.models
            if one["checkpoint"] == checkpoint or (one["method"] == ORIGINAL and checkpoint == "unlearned")
        ]
        if models:
            parts += [f"<h3>{after.capitalize()}</h3>", _table(pair, checkpoint, models, names)]
    if not parts:
        parts = [paragraph("The runs have no model of this request in common.")]
    return section(pair.first.slug, pair.first.title, *parts)


def _columns(metric: str) -> list[Shown]:
    scores = [Shown(split, f"{split}_{metric}", "score") for split in ("forget", "retain", "test")]
    gaps = [Shown(f"{split} minus gold", f"delta_{split}_{metric}", "score") for split in ("forget", "retain")]
    return [
        *scores,
        *gaps,
        Shown("MIA AUC", "population_mia_auc", "score"),
        Shown("L2", "retrain_gap_l2"),
        Shown("KL", KL),
        Shown("examples", "client_examples", "count"),
        Shown("time", "seconds_total", "seconds"),
    ]


def _table(pair: Pair, checkpoint: str, models: Sequence[tuple[Row, Row]], names: tuple[str, str]) -> str:
    changes = {shown: [change(one, two, shown.metric) for one, two in models] for shown in _columns(pair.first.metric)}
    changes = {shown: found for shown, found in changes.items() if any(one.verdict != "missing" for one in found)}
    heads = "".join(f'<th scope="col">{escape(shown.head)}</th>' for shown in changes)
    body = []
    for place, (one, two) in enumerate(models):
        cells = "".join(_cell(found[place], shown.unit) for shown, found in changes.items())
        states = " → ".join(dict.fromkeys((str(one["status"]), str(two["status"]))))
        kind = "bad" if {one["status"], two["status"]} != {"ok"} else "gold" if one["method"] == GOLD else ""
        body.append(
            f'<tr{f" class={kind}" if kind else ""}><th scope="row">{escape(paired_name(pair, (one, two)))}</th>'
            f"{cells}<td>{escape(states)}</td></tr>"
        )
    told = [one for found in changes.values() for one in found if one.verdict in ("beyond", "within")]
    beyond = sum(one.verdict == "beyond" for one in told)
    caption = f"{pair.first.title}, {AFTER[checkpoint]}: {names[0]} → {names[1]}"
    counted = (
        f"Of {len(told)} differences with an interval, {beyond} are beyond it."
        if told
        else "No difference here has an interval."
    )
    table = (
        f"<table><caption>{escape(caption)}</caption><thead><tr><th scope=col>model</th>{heads}"
        f"<th scope=col>status</th></tr></thead>\n<tbody>{''.join(body)}</tbody></table>"
    )
    return f"{paragraph(counted)}{scroll(caption, table)}"


def _cell(found: Change, unit: str) -> str:
    sides = f"{data(_number(found.first, unit))} → {data(_number(found.second, unit))}"
    if found.verdict == "missing":
        return f"<td>{sides}</td>"
    sign, meaning = SIGNS[found.verdict]
    told = f' <span role="img" aria-label="{meaning}">{sign}</span>' if sign else ""
    if found.difference == 0:
        return f'<td>{sides}<span class="change">the same</span></td>'
    difference = data(_number(found.difference, unit, signed=True))
    return f'<td>{sides}<span class="change {found.verdict}">{difference}{told}</span></td>'


def _number(value: float, unit: str, *, signed: bool = False) -> Number:
    if math.isnan(value):
        return Number("")
    size = abs(value)
    text = {"score": f"{size:.3f}", "count": f"{size:,.0f}", "seconds": duration(size)}.get(unit) or short(size)
    plus = "" if not float(value) or text.strip("0.s") == "" else "−" if value < 0 else "+" if signed else ""
    return Number(plus + text, value)
