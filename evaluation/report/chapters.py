"""What a report is made of: a chapter a request with its tables and figures, and the trainings of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from evaluation.report import figures
from evaluation.report.attacks import attack_grid
from evaluation.report.beside_published import published_grid
from evaluation.report.drawing import Plot
from evaluation.report.further import further_grid
from evaluation.report.grid import Grid, distances
from evaluation.report.judgements import difficulty_grid, spread_grid, verdict
from evaluation.report.palette import Look, looks
from evaluation.report.search import search_grids
from evaluation.report.sections import AFTER, GOLD, ORIGINAL, Section, drawable, sections_of, slug, visible
from evaluation.runs import ROUNDS
from evaluation.service.sources import OpenRun

TRAININGS = {ORIGINAL: "trained", GOLD: "unlearned"}
"""Trainings whose rounds are drawn, with the checkpoint at their end."""

NEEDED = {*ROUNDS, "round", "site", "num_examples", "loss", "metric"}
"""Columns of recorded rounds that are drawn, or say which training they are of."""


@dataclass(frozen=True)
class Chapter:
    """A request with its tables and figures.

    Attributes
    ----------
    section : Section
        The request.
    of_checkpoints : sequence of Grid
        Every model beside gold, a table a checkpoint.
    plots : sequence of Plot
        Its figures.
    verdict : str
        Whether the request can separate methods at all; empty where nothing says.
    difficulty : Grid or None
        What that rests on.
    further : sequence of (str, sequence of Grid)
        Further tables below a heading each.
    """

    section: Section
    of_checkpoints: Sequence[Grid]
    plots: Sequence[Plot]
    verdict: str = ""
    difficulty: Grid | None = None
    further: Sequence[tuple[str, Sequence[Grid]]] = ()

    @property
    def grids(self) -> list[Grid]:
        """All its tables, in order."""
        lead = [] if self.difficulty is None else [self.difficulty]
        return [*lead, *self.of_checkpoints, *(grid for _, grids in self.further for grid in grids)]


def chapters_of(run: OpenRun, tell: Callable[[str], None] = lambda text: None) -> list[Chapter]:
    """Return the chapters of a run, in the order of its results; a method keeps its look through all of them.

    `tell` hears which one is being made.
    """
    sections = sections_of(run)
    look = looks(method for section in sections for method in section.results["method"].unique())
    chapters = []
    for number, section in enumerate(sections, 1):
        tell(f"chapter {number} of {len(sections)}: {section.title}")
        chapters.append(chapter_of(section, look))
    return chapters


def chapter_of(section: Section, look: Mapping[str, Look]) -> Chapter:
    """Gather all that is told of a request; a table without a line is left out."""
    further: dict[str, Sequence[Grid | None]] = {
        "Membership attacks": [attack_grid(section, point) for point in AFTER],
        "Features, relearning, backdoor": [further_grid(section, point) for point in AFTER],
        "Search of settings": [grid for point in AFTER for grid in search_grids(section, point)],
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


def trainings_of(sections: Sequence[Section], rounds: pd.DataFrame) -> list[Plot]:
    """Return the figures of every training whose rounds were kept, each once.

    Parameters
    ----------
    sections : sequence of Section
    rounds : DataFrame
        As `evaluation.runs.Run.rounds` gives it; one without its columns, as older runs posted it, is none.
    """
    if rounds.empty or not set(rounds.columns) >= NEEDED:
        return []
    numbers = {name: drawable(rounds[name].astype(float)) for name in ("loss", "metric")}
    rounds = rounds.assign(**numbers, site=rounds["site"].astype(str).map(visible))
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
