"""Writes the report of a run into a folder of its own, which appears only once complete."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from evaluation.files import exists
from evaluation.report.chapters import chapters_of, trainings_of
from evaluation.report.judgements import ranking_grids
from evaluation.report.latex import latex
from evaluation.report.markdown import markdown
from evaluation.report.page import FIGURES, page
from evaluation.runs import Run
from partitions.disk import sync_tree
from partitions.errors import BadInput


def write_report(run: Path, target: Path, tell: Callable[[str], None] = lambda text: None) -> Path:
    """Write ``report.html``, ``tables.md``, ``tables.tex`` and the folder ``figures``.

    Parameters
    ----------
    run : Path
        A run folder. Nothing in it changes, unless `target` lies in it.
    target : Path
        A folder that does not exist yet.
    tell : callable, optional
        Hears what is being made, a few words at a time.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    BadInput
        When the run has no results or a damaged record, or `target` is taken or cannot be made.
    """
    opened = Run(run)
    chapters, record = chapters_of(opened, tell), opened.manifest
    if exists(target):
        raise BadInput("out", str(target), "a folder that does not exist yet", "name another with --out")
    work = target.with_name(f".{target.name}-{uuid.uuid4().hex[:8]}")
    try:
        (work / FIGURES).mkdir(parents=True)
    except OSError as error:
        remedy = "name another with --out"
        raise BadInput("out", str(target), f"a folder one can make ({error.strerror})", remedy) from None
    try:
        tell("training curves")
        trainings = trainings_of([chapter.section for chapter in chapters], opened.rounds)
        tell("files")
        for plot in (*(plot for chapter in chapters for plot in chapter.plots), *trainings):
            plot.write(work / FIGURES)
        rankings = ranking_grids([chapter.section for chapter in chapters])
        grids = [*(grid for chapter in chapters for grid in chapter.grids), *rankings]
        (work / "tables.md").write_text(markdown(grids), encoding="utf-8")
        (work / "tables.tex").write_text(latex(grids), encoding="utf-8")
        (work / "report.html").write_text(page(run.name, record, chapters, trainings, rankings), encoding="utf-8")
        sync_tree(work)
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target
