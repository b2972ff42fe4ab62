"""The page of a report: one HTML file that loads nothing, for eyes, screen readers, keyboards and phones."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any

from evaluation.report.figures import Plot
from evaluation.report.grid import Cell, Grid, Line, Number
from evaluation.report.sections import AFTER, Section, faults, remarks, slug, standing
from evaluation.report.words import READ, STYLE

FIGURES = "figures"
"""Folder beside the page."""
ELSEWHERE = {"home", "out", "workers", "jobs", "evaluator", "timeout", "fresh", "keep-histories", "name"}
"""Settings that tell where and how fast a run went, not what it computed."""


@dataclass(frozen=True)
class Chapter:
    """A request with its tables and figures."""

    section: Section
    grids: Sequence[Grid]
    plots: Sequence[Plot]


def page(name: str, record: Mapping[str, Any], chapters: Sequence[Chapter], trainings: Sequence[Plot]) -> str:
    """Return the page.

    Parameters
    ----------
    name : str
        Name of the run.
    record : mapping
        ``run.json``.
    chapters : sequence of Chapter
        One a request.
    trainings : sequence of Plot
        Training curves; empty when no rounds were kept.
    """
    title = f"Lethe report: {name}"
    anchors = [(chapter.section.slug, chapter.section.title) for chapter in chapters]
    first = [("read", "How to read this report"), ("asked", "What was asked")]
    contents = [*first, *anchors, ("training", "Training curves")]
    links = "".join(f'<li><a href="#{anchor}">{escape(text)}</a></li>' for anchor, text in contents)
    body = [
        f"<header><h1>{escape(title)}</h1>{_origin(record)}</header>",
        f'<nav aria-label="Contents"><ol>{links}</ol></nav>',
        "<main id=main>",
        f"<section id=read aria-labelledby=read-h><h2 id=read-h>How to read this report</h2>{READ}</section>",
        _asked(record, chapters),
        *(_chapter(chapter) for chapter in chapters),
        _trainings(trainings),
        "</main>",
        "<footer><p class=note>Beside this page are the tables for a paper, tables.md and tables.tex, and the folder "
        f"{FIGURES} with every figure as PNG, SVG and CSV. Every number of the run, with interval, status and reason, "
        "is in its results.csv.</p></footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">To the contents</a>\n' + "\n".join(body) + "\n</body>\n</html>\n"
    )


# ---------------------------------------------------------------------- what was asked, when, and on what
def _origin(record: Mapping[str, Any]) -> str:
    environment = record.get("environment", {})
    created = record.get("created")
    libraries = ", ".join(f"{name} {number}" for name, number in environment.get("libraries", {}).items())
    memory = environment.get("memory_bytes")
    facts = {
        "Started": f"{datetime.fromtimestamp(float(created), UTC):%Y-%m-%d %H:%M} UTC" if created else "",
        "Lethe at commit": str(environment.get("commit", "")),
        "Hardware": ", ".join(
            part
            for part in (
                f"{environment['cpus']} cores" if environment.get("cpus") else "",
                f"{memory / 2**30:.0f} GiB memory" if memory else "",
                str(environment.get("platform", "")),
            )
            if part
        ),
        "Software": ", ".join(
            part for part in (f"Python {environment['python']}" if environment.get("python") else "", libraries) if part
        ),
    }
    return _facts(facts)


def _facts(facts: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items() if fact)
    return f"<dl>{rows}</dl>" if rows else ""


def _asked(record: Mapping[str, Any], chapters: Sequence[Chapter]) -> str:
    rows = [
        (chapter.section.title, str(chapter.section.labels["experiment"]), str(chapter.section.labels["model"]))
        for chapter in chapters
    ]
    parts = [_words("Requests of this run", ("request", "experiment", "model"), rows)]
    for group in record.get("groups", {}).values():
        settings = [(str(key), str(value)) for key, value in sorted(group.items()) if key not in ELSEWHERE]
        name = f"Settings of {group.get('name', 'a group')}"
        parts.append(_folded(name, _words(name, ("setting", "value"), settings)))
    return f"<section id=asked aria-labelledby=asked-h><h2 id=asked-h>What was asked</h2>{''.join(parts)}</section>"


# ---------------------------------------------------------------------- a request
def _chapter(chapter: Chapter) -> str:
    section, anchor = chapter.section, chapter.section.slug
    parts = [
        f'<section id="{anchor}" aria-labelledby="{anchor}-h">',
        f'<h2 id="{anchor}-h">{escape(section.title)}</h2>',
        _request_facts(section),
    ]
    for grid, (checkpoint, words) in zip(chapter.grids, AFTER.items(), strict=True):
        parts += [f"<h3>{words.capitalize()}</h3>", _paragraph(standing(section, checkpoint)), _grid(grid)]
    parts += [_not_ok(section), f"<h3>Figures</h3>{''.join(_figure(plot) for plot in chapter.plots)}", "</section>"]
    return "\n".join(parts)


def _request_facts(section: Section) -> str:
    labels, settings = section.labels, section.settings
    found = section.results
    seeds = {
        name: ", ".join(str(seed) for seed in sorted(found[f"{name}_seed"].dropna().unique()))
        for name in ("train", "unlearn", "evaluate")
    }
    training = {
        "rounds": "{} rounds",
        "local-epochs": "{} local epochs",
        "strategy": "{}",
        "batch-size": "batches of {}",
        "lr": "lr {}",
        "momentum": "momentum {}",
        "precision": "precision {}",
    }
    cap = f", at most {settings['cap']} records a class and patient" if settings.get("cap") else ""
    recovery = {"recovery-rounds": "{} rounds", "recovery-epochs": "{} local epochs"}
    return _facts(
        {
            "Request": f"{labels['request']} ({labels['granularity']})",
            "Data set": f"{labels['dataset']}{cap}",
            "Split": section.split,
            "Model": str(labels["model"]),
            "Training": ", ".join(text.format(settings[key]) for key, text in training.items() if key in settings),
            "Recovery": ", ".join(text.format(settings[key]) for key, text in recovery.items() if key in settings),
            "Seeds": "; ".join(f"{name} {text}" for name, text in seeds.items() if text),
        }
    )


def _not_ok(section: Section) -> str:
    models, values = faults(section), remarks(section)
    parts = ["<h3>What is not ok, and why</h3>"]
    if models:
        heads = ("model", "checkpoint", "status", "reason")
        rows = [
            (name, point or "both checkpoints", status.replace("_", " "), why) for name, point, status, why in models
        ]
        parts.append(_words(f"Models that are not ok: {section.title}", heads, rows))
    else:
        parts.append("<p>Every model is ok.</p>")
    if values:
        title = "Values that are not ok though their model is"
        heads = ("metrics", "status", "models", "reason")
        rows = [(names, status.replace("_", " "), which, why) for names, status, which, why in values]
        parts.append(_folded(f"{title} ({len(values)})", _words(f"{title}: {section.title}", heads, rows)))
    return "".join(parts)


def _trainings(plots: Sequence[Plot]) -> str:
    figures = "".join(_figure(plot) for plot in plots)
    none = "<p>No rounds of a training are left to show: they were not kept, or the cache was cleaned.</p>"
    return (
        "<section id=training aria-labelledby=training-h><h2 id=training-h>Training curves</h2>"
        f"{figures or none}</section>"
    )


# ---------------------------------------------------------------------- pieces
def _folded(summary: str, inside: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>" if text else ""


def _grid(grid: Grid) -> str:
    heads = "".join(f'<th scope="col">{escape(column.head)}</th>' for column in grid.columns)
    body = "\n".join(_line(line) for line in grid.lines)
    meanings = "; ".join(f"{column.head}: {column.meaning}" for column in grid.columns)
    table = (
        f'<table id="table-{grid.slug}"><caption>{escape(grid.caption)}</caption>'
        f'<thead><tr><th scope="col">model</th>{heads}</tr></thead>\n<tbody>{body}</tbody></table>'
    )
    notes = " ".join([*grid.notes, f"{meanings}."])
    return f"{_scroll(grid.caption, table)}<p class=note>{escape(notes)}</p>"


def _line(line: Line) -> str:
    kind = f' class="{line.kind}"' if line.kind else ""
    return f'<tr{kind}><th scope="row">{escape(line.name)}</th>{"".join(_cell(cell) for cell in line.cells)}</tr>'


def _cell(cell: Cell) -> str:
    delta = f' <span class="delta">({_data(cell.delta)})</span>' if cell.delta.text else ""
    return f"<td>{_data(cell.value)}{delta}</td>"


def _data(number: Number) -> str:
    """Return a number as shown, with its exact value for whatever reads the page next."""
    if not number.text:
        return '<span aria-label="no value">–</span>'
    shown = escape(number.text)
    return shown if number.value is None else f'<data value="{number.value!r}">{shown}</data>'


def _words(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of text."""
    head = "".join(f'<th scope="col">{escape(one)}</th>' for one in heads)
    body = "\n".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(one)}</td>" for one in rest)}</tr>'
        for first, *rest in rows
    )
    head = f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
    table = f'<table class="words">{head}\n<tbody>{body}</tbody></table>'
    return _scroll(caption, table)


def _scroll(label: str, table: str) -> str:
    """Let a wide table scroll by itself, by keyboard too."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">{table}</div>'


def _figure(plot: Plot) -> str:
    image, title = base64.b64encode(plot.svg.encode()).decode(), escape(plot.title)
    files = ", ".join(
        f'<a href="{FIGURES}/{plot.name}.{kind}" aria-label="{title} as {kind.upper()}">{kind.upper()}</a>'
        for kind in ("png", "svg", "csv")
    )
    return (
        f'<figure id="{slug(plot.name)}">'
        f'<img src="data:image/svg+xml;base64,{image}" alt="{escape(plot.alt)}" loading="lazy">'
        f"<figcaption><b>{title}.</b> {escape(plot.caption)} "
        f"<span class=note>Beside this page: {files}.</span></figcaption></figure>"
    )
