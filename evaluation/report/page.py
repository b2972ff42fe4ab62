"""The page of a report: one HTML file that loads nothing, for eyes, screen readers, keyboards and phones."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from evaluation.record import PLACED
from evaluation.report.chapters import Chapter
from evaluation.report.drawing import Plot
from evaluation.report.grid import Grid
from evaluation.report.pieces import (
    Places,
    contents,
    document,
    facts,
    figure,
    folded,
    paragraph,
    section,
    table,
    words,
)
from evaluation.report.sections import AFTER, Section, faults, remarks, slug, standing
from evaluation.report.words import READ, STYLE

ASKED, RANKING, TRAINING = "What was asked", "Ranking over data sets", "Training curves"
LONG = 30
"""Lines of a table above which it is folded."""
FIGURES = "figures"
"""Folder beside the page."""
ELSEWHERE = {*PLACED, "name"}
"""Settings that tell where and how fast a run went, not what it computed."""


def page(
    name: str,
    record: Mapping[str, Any],
    chapters: Sequence[Chapter],
    trainings: Sequence[Plot],
    rankings: Sequence[Grid] = (),
) -> str:
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
    rankings : sequence of Grid
        Of the methods over data sets; empty for a single one.
    """
    places = Places(_inline, _beside, lambda grid: {}, "Beside this page")
    title = f"Lethe report: {name}"
    body = [
        f"<header><h1>{escape(title)}</h1>{origin(record)}</header>",
        contents([("read", "How to read this report"), *anchors(chapters, rankings)]),
        "<main id=main>",
        section("read", "How to read this report", READ),
        *sections(record, chapters, trainings, places, rankings),
        "</main>",
        "<footer><p class=note>Beside this page are the tables for a paper, tables.md and tables.tex, and the folder "
        f"{FIGURES} with every figure as PNG, SVG and CSV. Every number of the run, with interval, status and reason, "
        "is in its results.csv.</p></footer>",
    ]
    return document(title, f"<style>{STYLE}</style>", body)


def anchors(chapters: Sequence[Chapter], rankings: Sequence[Grid] = ()) -> list[tuple[str, str]]:
    """Return the anchor and the words of every section of `sections`."""
    own = [(chapter.section.slug, chapter.section.title) for chapter in chapters]
    return [("asked", ASKED), *own, *([("ranking", RANKING)] if rankings else []), ("training", TRAINING)]


def sections(
    record: Mapping[str, Any],
    chapters: Sequence[Chapter],
    trainings: Sequence[Plot],
    places: Places,
    rankings: Sequence[Grid] = (),
) -> list[str]:
    """Return what there is to tell of a run, section by section; arguments as of `page`, and where things are."""
    return [
        _asked(record, chapters),
        *(_chapter(chapter, places) for chapter in chapters),
        *([section("ranking", RANKING, *(table(grid, places) for grid in rankings))] if rankings else []),
        _trainings(trainings, places),
    ]


def _inline(plot: Plot) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(plot.files['svg']).decode()}"


def _beside(plot: Plot) -> dict[str, str]:
    return {kind.upper(): f"{FIGURES}/{plot.name}.{kind}" for kind in plot.files}


# ---------------------------------------------------------------------- what was asked, when, and on what
def origin(record: Mapping[str, Any]) -> str:
    """Say when a run was started, and on what."""
    environment = record.get("environment", {})
    created = record.get("created")
    libraries = ", ".join(f"{name} {number}" for name, number in environment.get("libraries", {}).items())
    memory = environment.get("memory_bytes")
    found = {
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
    return facts(found)


def _asked(record: Mapping[str, Any], chapters: Sequence[Chapter]) -> str:
    rows = [
        (chapter.section.title, str(chapter.section.labels["experiment"]), str(chapter.section.labels["model"]))
        for chapter in chapters
    ]
    parts = [words("Requests of this run", ("request", "experiment", "model"), rows)]
    for group in record.get("groups", {}).values():
        settings = [(str(key), str(value)) for key, value in sorted(group.items()) if key not in ELSEWHERE]
        name = f"Settings of {group.get('name', 'a group')}"
        parts.append(folded(name, words(name, ("setting", "value"), settings)))
    return section("asked", ASKED, *parts)


# ---------------------------------------------------------------------- a request
def _chapter(chapter: Chapter, places: Places) -> str:
    asked = chapter.section
    parts: dict[str, list[str]] = {}
    for grid, (checkpoint, after) in zip(chapter.of_checkpoints, AFTER.items(), strict=True):
        parts[after.capitalize()] = [paragraph(standing(asked, checkpoint)), table(grid, places)]
    parts |= {heading: [_long(grid, places) for grid in grids] for heading, grids in chapter.further}
    parts["What is not ok, and why"] = [_not_ok(asked)]
    parts["Figures"] = [figure(plot, places) for plot in chapter.plots]
    marks = {heading: f"{asked.slug}-{slug(heading)}" for heading in parts}
    jumps = "".join(f'<li><a href="#{mark}">{escape(heading)}</a></li>' for heading, mark in marks.items())
    return section(
        asked.slug,
        asked.title,
        _request_facts(asked),
        f'<nav class="jumps" aria-label="In {escape(asked.title)}"><ul>{jumps}</ul></nav>',
        _difficulty(chapter, places),
        *(f'<h3 id="{marks[heading]}">{escape(heading)}</h3>{"".join(inside)}' for heading, inside in parts.items()),
    )


def _difficulty(chapter: Chapter, places: Places) -> str:
    """Say first whether there is anything to tell apart."""
    rests = "" if chapter.difficulty is None else folded("What that rests on", table(chapter.difficulty, places))
    return f'<div class="verdict">{paragraph(chapter.verdict)}{rests}</div>' if chapter.verdict or rests else ""


def _long(grid: Grid, places: Places) -> str:
    """Fold a table that would take several screens."""
    whole = table(grid, places)
    return whole if len(grid.lines) <= LONG else folded(f"{grid.caption} ({len(grid.lines)} lines)", whole)


def _request_facts(asked: Section) -> str:
    labels, settings = asked.labels, asked.settings
    found = asked.results
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
    return facts(
        {
            "Request": f"{labels['request']} ({labels['granularity']})",
            "Data set": f"{labels['dataset']}{cap}",
            "Split": asked.split,
            "Model": str(labels["model"]),
            "Training": ", ".join(text.format(settings[key]) for key, text in training.items() if key in settings),
            "Recovery": ", ".join(text.format(settings[key]) for key, text in recovery.items() if key in settings),
            "Seeds": "; ".join(f"{name} {text}" for name, text in seeds.items() if text),
        }
    )


def _not_ok(asked: Section) -> str:
    models, values = faults(asked), remarks(asked)
    parts: list[str] = []
    if models:
        heads = ("model", "checkpoint", "status", "reason")
        rows = [
            (name, point or "both checkpoints", status.replace("_", " "), why) for name, point, status, why in models
        ]
        parts.append(words(f"Models that are not ok: {asked.title}", heads, rows))
    else:
        parts.append("<p>Every model is ok.</p>")
    if values:
        title = "Values that are not ok though their model is"
        heads = ("metrics", "status", "models", "reason")
        rows = [(names, status.replace("_", " "), which, why) for names, status, which, why in values]
        parts.append(folded(f"{title} ({len(values)})", words(f"{title}: {asked.title}", heads, rows)))
    return "".join(parts)


def _trainings(plots: Sequence[Plot], places: Places) -> str:
    none = "<p>No rounds of a training are left to show: they were not kept, or the cache was cleaned.</p>"
    return section("training", TRAINING, *([figure(plot, places) for plot in plots] or [none]))
