"""What a report tells of each request of a run: its models, its settings, and everything that is not ok."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from evaluation.curves import COLUMNS
from evaluation.service.sources import OpenRun
from evaluation.tables import GROUP, OF_VALUES, UNFIT, Row, mean, metric_name, summary_json, variants
from evaluation.trials import COLUMNS as TRIALS
from partitions.errors import BadInput

GOLD, ORIGINAL, CONTROL = "retrain", "original", "fine-tuning"
AFTER = {"unlearned": "before recovery", "recovered": "after recovery"}
"""The checkpoints that are read against gold, in words."""
KL = "retrain_gap_kl_forget"
LONGEST_SLUG = 80
UNSEEN = dict.fromkeys((*range(9), *range(11, 13), *range(14, 32), *range(127, 160)), "\ufffd")
"""Control characters but for blanks and the ends of lines, and those that turn text around, as a mark."""
UNSEEN |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd")
LARGEST = 1e30
"""Size up to which a number can be drawn on an axis."""


@dataclass(frozen=True)
class Section:
    """One request on one federation.

    Attributes
    ----------
    number : int
        Place in the report, from 1.
    labels : mapping
        Experiment, task, dataset, partition, alpha, model, request and granularity.
    rows : list
        One a model, as `evaluation.tables.summary_json` gives them.
    results : DataFrame
        The rows of ``results.csv`` behind them.
    settings : mapping
        Flat settings of the group; empty when the run's record has none.
    before : mapping
        Difficulty of the request before training (`partitions.difficulty.Difficulty.to_json`); empty likewise.
    curves : DataFrame
        The rows of ``curves.csv`` of its models; empty when the run kept none.
    trials : DataFrame
        The rows of ``trials.csv`` of its searches; empty without any.
    """

    number: int
    labels: Mapping[str, Any]
    rows: list[Row]
    results: pd.DataFrame
    settings: Mapping[str, Any]
    before: Mapping[str, Any]
    curves: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(COLUMNS)))
    trials: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(TRIALS)))

    @property
    def metric(self) -> str:
        """The task's metric, such as ``accuracy``."""
        return metric_name(self.rows)

    @property
    def split(self) -> str:
        """The split with its concentration, such as ``dirichlet 0.1``."""
        alpha = self.labels["alpha"]
        return str(self.labels["partition"]) + ("" if alpha is None else f" {alpha:g}")

    @property
    def title(self) -> str:
        """Data set, split and request."""
        return f"{self.labels['dataset']}, {self.split}: {self.labels['request']}"

    @property
    def slug(self) -> str:
        """The title as part of a file's name."""
        return f"{self.number:02d}-" + slug(f"{self.labels['dataset']} {self.split} {self.labels['request']}")

    @property
    def seeds(self) -> int:
        """Combinations of seeds behind a model, at most."""
        return max(int(row["seeds"]) for row in self.rows)

    def at(self, checkpoint: str) -> list[Row]:
        """Return the models of a checkpoint, gold among them; those that do not apply left out.

        The original leads before recovery. After it, the model that does nothing is recovery alone: the original has
        had none, and is not read against a gold that has.
        """
        own = {checkpoint, "trained"} if checkpoint == "unlearned" else {checkpoint}
        return [row for row in self.rows if row["status"] != UNFIT and row["checkpoint"] in own]

    def gold(self, checkpoint: str) -> Row | None:
        """Return the retrained model of a checkpoint."""
        return next((row for row in self.at(checkpoint) if row["method"] == GOLD), None)

    def results_of(self, row: Row) -> pd.DataFrame:
        """Return the rows of ``results.csv`` behind a model, of all its seeds."""
        found = self._labelled
        for name in ("method", "preset", "checkpoint", "variant"):
            found = found[found[name] == row[name]]
        return found

    def points(self, row: Row, kind: str) -> pd.DataFrame:
        """Return the points of one kind of curve of a model, of all its seeds, in order."""
        found = self.curves[self.curves["kind"] == kind]
        for name in ("method", "preset", "checkpoint"):
            found = found[found[name] == row[name]]
        found = found[found["cell"].isin(self.results_of(row)["cell"].unique())]
        seen = {name: found[name].map(visible) for name in ("series", "label")}
        return found.assign(x=drawable(found["x"]), y=drawable(found["y"]), **seen)

    @cached_property
    def _labelled(self) -> pd.DataFrame:
        return self.results.assign(variant=variants(self.results))

    def name(self, row: Row) -> str:
        """Return what a model is called: the method, with preset or cell where it has several."""
        presets = {one["preset"] for one in self.rows if one["method"] == row["method"]}
        parts = (row["method"], row["preset"] if len(presets) > 1 else "", row["variant"])
        return visible(" ".join(str(part) for part in parts if part))


def sections_of(run: OpenRun) -> list[Section]:
    """Return the sections of a run, in the order of ``results.csv``.

    Raises
    ------
    BadInput
        When the run has no results.
    """
    results = run.results
    if results.empty:
        raise BadInput("run", run.name, "a run with results, and results.csv is empty", "finish it with `lethe run`")
    curves, trials = run.curves, run.trials
    cells = {str(cell["cell"]): cell for cell in run.manifest.get("cells", ())}
    groups = [group for _, group in results.groupby(list(GROUP), dropna=False, sort=False)]
    return [
        Section(
            number=number,
            labels={name: found[name] for name in GROUP},
            rows=found["rows"],
            results=group,
            settings=_first(cells, group, "settings"),
            before=_first(cells, group, "difficulty"),
            curves=curves[(curves["request"] == found["request"]) & curves["cell"].isin(group["cell"].unique())],
            trials=_of(trials, found),
        )
        for number, (found, group) in enumerate(zip(summary_json(results)["groups"], groups, strict=True), start=1)
    ]


def _of(trials: pd.DataFrame, labels: Mapping[str, Any]) -> pd.DataFrame:
    """Return the trials with the labels of a request."""
    for name in GROUP:
        wanted = labels[name]
        trials = trials[trials[name].isna() if wanted is None else trials[name] == wanted]
    return trials.reset_index(drop=True)


def faults(section: Section) -> list[tuple[str, str, str, str]]:
    """Return (model, checkpoint, status, reason) of every model that is not ok; one that does not apply comes once."""
    found = {
        (
            section.name(row),
            "" if row["status"] == UNFIT else str(row["checkpoint"]),
            str(row["status"]),
            str(row["reason"]).removesuffix("; not scored").removesuffix("; no weights"),
        ): None
        for row in section.rows
        if row["status"] != "ok"
    }
    return list(found)


def remarks(section: Section) -> list[tuple[str, str, str, str]]:
    """Return (metrics, status, models, reason) of every value that is not ok though its model is."""
    unfit = {(row["method"], row["preset"]) for row in section.rows if row["status"] == UNFIT}
    results = section.results
    results = results[results["status"].isin(set(OF_VALUES) - {"ok"})]
    own = [pair not in unfit for pair in zip(results["method"], results["preset"], strict=True)]
    values = results.loc[np.array(own, dtype=bool)]
    found: dict[tuple[str, str, str], list[str]] = {}
    for (metric, status, reason), group in values.groupby(["metric", "status", "reason"], sort=True):
        found.setdefault((str(status), _which(group), str(reason)), []).append(str(metric))
    return [(", ".join(metrics), *told) for told, metrics in found.items()]


def standing(section: Section, checkpoint: str) -> str:
    """Say in a sentence which models end nearest to gold in their outputs, and where recovery alone stands."""
    found = sorted(
        (value, section.name(row))
        for row in section.at(checkpoint)
        if row["status"] == "ok" and row["method"] not in (GOLD, ORIGINAL) and (value := mean(row, KL)) is not None
    )
    if not found:
        return ""
    nearest = ", ".join(f"{name} ({value:.2g})" for value, name in found[:3])
    names = [name for _, name in found]
    place = f" {CONTROL} is number {names.index(CONTROL) + 1} of {len(names)}." if CONTROL in names else ""
    return f"Nearest to gold by KL on forget records: {nearest} nats.{place}"


def _first(cells: Mapping[str, Mapping[str, Any]], group: pd.DataFrame, key: str) -> Mapping[str, Any]:
    """Return what the run's record says of the first cell of a request that it knows; empty without any."""
    known = [cells[cell] for cell in group["cell"].unique() if cell in cells]
    return next((found for cell in known if (found := cell.get(key))), {})


def drawable(values: pd.Series[float]) -> pd.Series[float]:
    """Return numbers with NaN for those that no axis can hold: infinities, and what is larger than `LARGEST`."""
    return values.where(values.abs() <= LARGEST)


def slug(text: str) -> str:
    """Return text as part of a file's name or an anchor; what is long is cut, and has a hash of all of it at its end.

    >>> slug("bloodmnist dirichlet 0.1 client:site-0")
    'bloodmnist-dirichlet-0.1-client-site-0'
    """
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.").lower()
    if len(plain) <= LONGEST_SLUG:
        return plain
    mark = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:8]
    return f"{plain[:LONGEST_SLUG]}-{mark}"


def visible(text: str) -> str:
    """Return text with a mark in place of control characters and of those that turn the direction of others."""
    return text.translate(UNSEEN)


def _which(rows: pd.DataFrame) -> str:
    """Name the models of some rows, or count them."""
    models = [f"{method} {checkpoint}" for method, checkpoint in zip(rows["method"], rows["checkpoint"], strict=True)]
    distinct = list(dict.fromkeys(models))
    return ", ".join(distinct) if len(distinct) <= 3 else f"{len(distinct)} models"
