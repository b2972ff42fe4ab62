"""The tables of a report, before anyone has decided on HTML, Markdown or LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from evaluation.report.sections import AFTER, GOLD, KL, ORIGINAL, Section
from evaluation.tables import Row, duration, mean, records_note, short, times, verdicts


class Number(NamedTuple):
    """A value as it is shown, and as it is."""

    text: str
    value: float | None = None


EMPTY = Number("")


class Cell(NamedTuple):
    """A value, and its signed difference from gold where that is what one should read."""

    value: Number
    delta: Number = EMPTY

    @property
    def text(self) -> str:
        """Both, such as ``0.61 (+0.02)``."""
        return f"{self.value.text} ({self.delta.text})" if self.delta.text else self.value.text


class Column(NamedTuple):
    """A column's head and, in a few words, what stands below it; words begin at the left, numbers end at the right."""

    head: str
    meaning: str
    words: bool = False


class Line(NamedTuple):
    """A row: the model, what it is in the comparison (gold, original, bad or nothing), its cells."""

    name: str
    kind: str
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Grid:
    """A table with a caption, a name to refer to it by, notes that belong below it, and what its lines are about."""

    slug: str
    caption: str
    columns: Sequence[Column]
    lines: Sequence[Line]
    notes: Sequence[str] = field(default=())
    subject: str = "model"


def distances(section: Section, checkpoint: str) -> Grid:
    """Return the table of one checkpoint: every model beside the retrained one."""
    metric, total = section.metric, checkpoint == "recovered"
    columns = [
        *(Column(split, f"{metric} on {split} records") for split in ("forget", "retain", "test")),
        Column("MIA AUC", "can losses tell forgotten from never-seen records"),
        Column("L2", "distance to gold of the weights"),
        Column("KL", "distance to gold of the outputs on forget records, in nats"),
        Column("examples", "records processed at the sites, a record counting once an epoch"),
        Column("time", "with recovery" if total else "of the unlearning step"),
        Column("speedup", "retraining's time over this"),
        Column("status", "ok: it ran to its end, which is no judgement"),
    ]
    return Grid(
        slug=f"{section.slug}-{checkpoint}",
        caption=f"{section.title}, {AFTER[checkpoint]}: every model beside the retrained one",
        columns=columns,
        lines=[Line(section.name(row), _kind(row), _cells(row, metric, total)) for row in section.at(checkpoint)],
        notes=_notes(section, total),
    )


def _cells(row: Row, metric: str, total: bool) -> list[Cell]:
    seconds, speedup = ("seconds_total", "speedup_total") if total else ("seconds_unlearn", "speedup")
    needless = row["method"] == ORIGINAL or (row["method"] == GOLD and total)  # neither is an unlearning to be timed
    ratio = None if needless or row["status"] != "ok" else mean(row, speedup)
    taken = mean(row, "seconds_total" if row["method"] == ORIGINAL else seconds)
    examples = mean(row, "client_examples")
    gaps = [mean(row, name) for name in ("retrain_gap_l2", KL)]
    return [
        *(_beside_gold(row, f"{split}_{metric}") for split in ("forget", "retain", "test")),
        _beside_gold(row, "population_mia_auc"),
        *(Cell(Number("" if gap is None else short(gap), gap)) for gap in gaps),
        Cell(Number("" if examples is None else f"{examples:,.0f}", examples)),
        Cell(Number("" if taken is None else duration(taken), taken)),
        Cell(Number("" if ratio is None else times(ratio), ratio)),
        Cell(Number(str(row["status"]))),
    ]


def _beside_gold(row: Row, metric: str) -> Cell:
    value, delta = mean(row, metric), mean(row, f"delta_{metric}")
    if value is None:
        return Cell(EMPTY)
    shown = Number(f"{value:.2f}", value)
    return Cell(shown) if delta is None or row["method"] == GOLD else Cell(shown, Number(signed(delta), delta))


def signed(difference: float) -> str:
    """Write a difference with two decimals and its sign, never ``-0.00``."""
    return f"{round(difference, 2) + 0.0:+.2f}"


def _kind(row: Row) -> str:
    """Return what a model is in the comparison: gold, original, bad (it did not end ok) or nothing."""
    return "bad" if row["status"] != "ok" else anchor(row)


def anchor(row: Row) -> str:
    """Return which model to compare with it is, gold or original; nothing for the others."""
    return {GOLD: "gold", ORIGINAL: "original"}.get(str(row["method"]), "")


def _notes(section: Section, total: bool) -> list[str]:
    spread = f"Means over up to {section.seeds} combinations of seeds; their spread is in results.csv."
    where = records_note(dict(section.labels), section.rows, section.metric)
    lines = [
        f"{where[0].upper()}{where[1:]}; in brackets the difference from {GOLD}.",
        *(line.replace("★", GOLD) for line in verdicts(section.rows, section.metric)),
    ]
    return [*lines, spread if section.seeds > 1 else "One seed: small differences say nothing."]
