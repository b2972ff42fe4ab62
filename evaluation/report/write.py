"""Writes the report of a run into a folder of its own, which appears only once complete."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from evaluation.report import figures
from evaluation.report.attacks import attack_grid
from evaluation.report.beside_published import published_grid
from evaluation.report.drawing import Plot
from evaluation.report.grid import distances
from evaluation.report.judgements import difficulty_grid, ranking_grids, spread_grid, verdict
from evaluation.report.latex import latex
from evaluation.report.markdown import markdown
from evaluation.report.page import FIGURES, Chapter, page
from evaluation.report.palette import Look, looks
from evaluation.report.sections import AFTER, GOLD, ORIGINAL, Section, sections_of, slug
from evaluation.runs import Run
from partitions.errors import BadInput

REPORT = "report"
"""Where a run's own report lies, below the run folder."""
TRAININGS = {ORIGINAL: "trained", GOLD: "unlearned"}
"""Trainings whose rounds are drawn, with the checkpoint at their end."""


def write_report(run: Path, target: Path) -> Path:
    """Write ``report.html``, ``tables.md``, ``tables.tex`` and the folder ``figures``.

    Parameters
    ----------
    run : Path
        A run folder. Nothing in it changes, unless `target` lies in it.
    target : Path
        A folder that does not exist yet.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    BadInput
        When the run has no results or a damaged record, or `target` is taken or cannot be made.
    """
    if target.exists():
        raise BadInput("out", str(target), "a folder that does not exist yet", "name another with --out")
    opened = Run(run)
    sections, record = sections_of(opened), opened.manifest
    work = target.with_name(f".{target.name}-{uuid.uuid4().hex[:8]}")
    try:
        (work / FIGURES).mkdir(parents=True)
    except OSError as error:
        remedy = "name another with --out"
        raise BadInput("out", str(target), f"a folder one can make ({error.strerror})", remedy) from None
    try:
        look = looks(method for section in sections for method in section.results["method"].unique())
        chapters, rankings = [_chapter(section, look) for section in sections], ranking_grids(sections)
        trainings = _trainings(opened, sections)
        for plot in (*(plot for chapter in chapters for plot in chapter.plots), *trainings):
            plot.write(work / FIGURES)
        grids = [*(grid for chapter in chapters for grid in chapter.tables), *rankings]
        (work / "tables.md").write_text(markdown(grids), encoding="utf-8")
        (work / "tables.tex").write_text(latex(grids), encoding="utf-8")
        (work / "report.html").write_text(page(run.name, record, chapters, trainings, rankings), encoding="utf-8")
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _chapter(section: Section, look: Mapping[str, Look]) -> Chapter:
    """Gather all that is told of a request; a table without a line is left out."""
    further = {
        "Membership attacks": [attack_grid(section, point) for point in AFTER],
        "Spread over seeds": [spread_grid(section, point) for point in AFTER],
        "Beside the published numbers": [published_grid(section)],
    }
    kept = [(heading, [grid for grid in grids if grid is not None]) for heading, grids in further.items()]
    return Chapter(
        section,
        [distances(section, point) for point in AFTER],
        figures.plots_of(section, look),
        verdict(section),
        difficulty_grid(section),
        [(heading, grids) for heading, grids in kept if grids],
    )


def _trainings(run: Run, sections: list[Section]) -> list[Plot]:
    """Draw every training whose rounds were kept, once."""
    drawn: dict[str, list[Plot]] = {}
    for section in sections:
        for method, checkpoint in TRAININGS.items():
            cells = run.cells[(run.cells["method"] == method) & (run.cells["checkpoint"] == checkpoint)]
            cells = cells[cells["cell"].isin(section.results["cell"].unique())]
            for cell, model, seed in cells[["cell", "model", "train_seed"]].itertuples(index=False):
                if model not in drawn and len(rounds := run.history(cell, checkpoint).frame()):
                    drawn[model] = _training(section, method, seed, rounds, len(drawn) + 1)
    return [plot for plots in drawn.values() for plot in plots]


def _training(section: Section, method: str, seed: int, rounds: pd.DataFrame, number: int) -> list[Plot]:
    """Draw one training: its curves, and where its sites ended."""
    labels, metric = section.labels, section.metric
    without = f" without {labels['request']}" if method == GOLD else ""
    where = f"{labels['dataset']}, {section.split}, seed {seed}"
    name = f"training-{number:02d}-{slug(f'{where} {method}{without}')}"
    plots = (
        figures.training(f"{name}-rounds", f"Training of {method}{without}: {where}", rounds, metric),
        figures.site_bars(f"{name}-sites", f"Sites of {method}{without} in the last round: {where}", rounds, metric),
    )
    return [plot for plot in plots if plot is not None]
