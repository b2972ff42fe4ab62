"""What a report is made of: a chapter a request with its tables and figures, and the trainings of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from evaluation.report import figures
from evaluation.report.figures import Plot
from evaluation.report.grid import Grid, distances
from evaluation.report.palette import looks
from evaluation.report.sections import AFTER, GOLD, ORIGINAL, Section, sections_of, slug
from evaluation.service.sources import OpenRun

TRAININGS = {ORIGINAL: "trained", GOLD: "unlearned"}
"""Trainings whose rounds are drawn, with the checkpoint at their end."""


@dataclass(frozen=True)
class Chapter:
    """A request with its tables and figures."""

    section: Section
    grids: Sequence[Grid]
    plots: Sequence[Plot]


def chapters_of(run: OpenRun) -> list[Chapter]:
    """Return the chapters of a run, in the order of its results; a method keeps its look through all of them."""
    sections = sections_of(run)
    look = looks(method for section in sections for method in section.results["method"].unique())
    return [
        Chapter(section, [distances(section, point) for point in AFTER], figures.plots_of(section, look))
        for section in sections
    ]


def trainings_of(sections: Sequence[Section], rounds: pd.DataFrame) -> list[Plot]:
    """Return the figures of every training whose rounds were kept, each once.

    Parameters
    ----------
    sections : sequence of Section
    rounds : DataFrame
        As `evaluation.runs.Run.rounds` gives it.
    """
    if rounds.empty:
        return []
    plots: list[Plot] = []
    number = 0
    for section in sections:
        own = rounds[rounds["cell"].isin(section.results["cell"].unique())]
        for method, checkpoint in TRAININGS.items():
            kept = own[(own["method"] == method) & (own["checkpoint"] == checkpoint)]
            for _, training in kept.groupby("cell", sort=False):
                number += 1
                plots += _training(section, method, int(training["train_seed"].iloc[0]), training, number)
    return plots


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
