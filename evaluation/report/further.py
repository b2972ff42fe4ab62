"""The table of what a run measured beyond scores: features, relearning and a planted backdoor, beside gold."""

from __future__ import annotations

import math
import re

from evaluation.report.drawing import interval, number
from evaluation.report.grid import Cell, Column, Grid, Line, Number, anchor, signed
from evaluation.report.sections import AFTER, GOLD, Section
from evaluation.tables import Row

TOLD = ("1", "3", "5")
"""Epochs of relearning that have a column of their own; where none of them is there, the last one has."""


def further_grid(section: Section, checkpoint: str) -> Grid | None:
    """Return one line a model with every further measurement that any of them has; None without any."""
    rows, metric = section.at(checkpoint), section.metric
    there = {name for row in rows for name, found in row["metrics"].items() if found["mean"] is not None}
    columns = {name: column for name, column in _columns(there, metric).items() if name in there}
    if not columns:
        return None
    lines = [Line(section.name(row), anchor(row), [_cell(row, name) for name in columns]) for row in rows]
    return Grid(
        slug=f"{section.slug}-{checkpoint}-further",
        caption=f"{section.title}, {AFTER[checkpoint]}: what else was measured",
        columns=list(columns.values()),
        lines=lines,
        notes=[
            f"In brackets the difference from {GOLD}, with its 95 % interval where there is one; "
            "why a number is missing is said below."
        ],
    )


def _columns(there: set[str], metric: str) -> dict[str, Column]:
    epochs = {found for name in there if (found := _epoch(name, metric))}
    shown = [epoch for epoch in TOLD if epoch in epochs] or sorted(epochs, key=int)[-1:]
    columns = {
        "feature_silhouette": Column("silhouette", "how far forgotten records cluster apart in the features, -1 to 1"),
        "feature_cka_gold_forget": Column("CKA forget", "likeness to gold's features on forgotten records; 1: alike"),
        "feature_cka_gold_retain": Column("CKA retain", "the same on retained records"),
    }
    for epoch in shown:
        what = f"{metric} on held-out forget records after {epoch} epochs of relearning"
        columns[f"relearn_forget_{metric}_{epoch}"] = Column(f"R{epoch} forget", what)
        what = f"{metric} on the relearned records themselves after {epoch} epochs"
        columns[f"relearn_forget_train_{metric}_{epoch}"] = Column(f"R{epoch} trained", what)
    columns[f"relearn_area_forget_{metric}"] = Column("area", "mean over epochs of R minus gold's, held-out records")
    columns["backdoor_asr"] = Column("trigger obeyed", "share of triggered records decided as planted")
    columns[f"backdoor_clean_{metric}"] = Column("clean", f"{metric} on the same records without the trigger")
    return columns


def _epoch(name: str, metric: str) -> str:
    found = re.fullmatch(rf"relearn_forget_{re.escape(metric)}_(\d+)", name)
    return found[1] if found and found[1] != "0" else ""


def _cell(row: Row, name: str) -> Cell:
    value, delta = number(row, name), number(row, f"delta_{name}")
    if math.isnan(value):
        return Cell(Number(""))
    shown = Number(f"{value:.2f}", value)
    if math.isnan(delta) or row["method"] == GOLD:
        return Cell(shown)
    low, high = interval(row, f"delta_{name}")
    between = "" if math.isnan(low) else f"; {signed(low)} to {signed(high)}"
    return Cell(shown, Number(f"{signed(delta)}{between}", delta))
