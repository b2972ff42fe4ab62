"""Two runs side by side: the models and settings that both have, and whether their numbers are far apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
from scipy.stats import t

from evaluation.report.page import ELSEWHERE
from evaluation.report.sections import Section
from evaluation.tables import UNFIT, Row

CONFIDENCE = 0.95
SAME = ("task", "dataset", "partition", "alpha", "model", "request", "granularity")
"""Labels by which a request of one run is that of another; what they were called (the experiment) may differ."""
COLUMNS = (
    *SAME,
    "method",
    "checkpoint",
    "metric",
    "first",
    "second",
    "difference",
    "low",
    "high",
    "verdict",
)

Verdict = Literal["beyond", "within", "unknown", "missing"]
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """One number of a model in both runs.

    Attributes
    ----------
    first, second : float
        Means over seeds; NaN where a run has none.
    low, high : float
        95 % interval of second minus first; NaN where a run has neither an interval nor several seeds.
    verdict : {"beyond", "within", "unknown", "missing"}
        Whether the interval leaves out 0; unknown without one; missing where a run has no value.
    """

    first: float
    second: float
    low: float
    high: float
    verdict: Verdict

    @property
    def difference(self) -> float:
        """The second minus the first."""
        return self.second - self.first


@dataclass(frozen=True)
class Pair:
    """A request that both runs have.

    Attributes
    ----------
    first, second : Section
    models : list of (Row, Row)
        Models that both have.
    only : tuple of two lists of str
        Models that only the first, and only the second has: name and checkpoint.
    """

    first: Section
    second: Section
    models: list[tuple[Row, Row]]
    only: tuple[list[str], list[str]]


def pairs_of(first: Sequence[Section], second: Sequence[Section]) -> list[Pair]:
    """Return the requests that both runs have, in the order of the first."""
    theirs = {_about(section): section for section in reversed(second)}
    return [_pair(one, theirs[_about(one)]) for one in first if _about(one) in theirs]


def lone(sections: Sequence[Section], others: Sequence[Section]) -> list[Section]:
    """Return the sections whose request the others do not have."""
    known = {_about(section) for section in others}
    return [section for section in sections if _about(section) not in known]


def change(first: Row, second: Row, metric: str) -> Change:
    """Set a metric of two models side by side.

    The interval of the difference is put together from those of both (MOVER: Zou and Donner 2008, Statistics in
    Medicine 27:1693, eq. 3, for independent estimates; where both runs score the same records it is too wide rather
    than too narrow). A mean over n seeds has Student's interval with n - 1 degrees of freedom, a single evaluation
    the interval that its metric gave it.
    """
    one, two = (row["metrics"].get(metric, {}) for row in (first, second))
    a, b = (math.nan if found.get("mean") is None else float(found["mean"]) for found in (one, two))
    if math.isnan(a) or math.isnan(b):
        return Change(a, b, math.nan, math.nan, "missing")
    (low_a, high_a), (low_b, high_b) = _interval(one), _interval(two)
    low = (b - a) - math.hypot(b - low_b, high_a - a)
    high = (b - a) + math.hypot(high_b - b, a - low_a)
    if math.isnan(low) or math.isnan(high):
        return Change(a, b, math.nan, math.nan, "unknown")
    return Change(a, b, low, high, "within" if low <= 0 <= high else "beyond")


def table(pairs: Sequence[Pair]) -> pd.DataFrame:
    """Return every metric of every model that both runs have: `COLUMNS`, one row each, missing numbers NaN."""
    rows = [
        {name: pair.first.labels[name] for name in SAME}
        | {"method": paired_name(pair, models), "checkpoint": models[0]["checkpoint"], "metric": metric}
        | {name: getattr(found, name) for name in ("first", "second", "difference", "low", "high", "verdict")}
        for pair in pairs
        for models in pair.models
        for metric in sorted(models[0]["metrics"].keys() | models[1]["metrics"].keys())
        for found in (change(*models, metric),)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def paired_name(pair: Pair, models: tuple[Row, Row]) -> str:
    """Return what a model is called, with both names where the runs call it differently."""
    names = (pair.first.name(models[0]), pair.second.name(models[1]))
    presets = tuple(str(row["preset"]) for row in models)
    if names[0] == names[1] and presets[0] != presets[1]:
        names = (f"{names[0]} {presets[0]}".strip(), f"{names[1]} {presets[1]}".strip())
    return " / ".join(dict.fromkeys(names))


def settings_apart(pairs: Sequence[Pair], first: Settings, second: Settings) -> list[tuple[str, str, str, str]]:
    """Return (setting, first, second, where) of all that differs between two runs.

    Parameters
    ----------
    pairs : sequence of Pair
        Whose groups' settings are compared; what differs in all of them alike is told once, with an empty place.
    first, second : mapping
        The runs' records, for the code, the libraries and the hardware they ran on.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    for pair in pairs:
        for row in _apart(pair.first.settings, pair.second.settings):
            found.setdefault(row, []).append(pair.first.title)
    everywhere = len(pairs)
    rows = [(*row, "" if len(where) == everywhere else "; ".join(where)) for row, where in found.items()]
    around = [(*row, "") for row in _apart(_environment(first), _environment(second))]
    return [*sorted(rows), *around]


def _about(section: Section) -> tuple[str, ...]:
    return tuple(str(section.labels[name]) for name in SAME)


def _pair(first: Section, second: Section) -> Pair:
    left, right = ([row for row in one.rows if row["status"] != UNFIT] for one in (first, second))
    models: list[tuple[Row, Row]] = []
    for keys in (("method", "checkpoint", "preset", "variant"), ("method", "checkpoint", "preset"), KEYS):
        theirs = _alone(right, keys)
        found = [(row, theirs[key]) for key, row in _alone(left, keys).items() if key in theirs]
        models += found
        left = [row for row in left if not any(row is one for one, _ in found)]
        right = [row for row in right if not any(row is two for _, two in found)]
    order = {id(row): place for place, row in enumerate(first.rows)}
    models.sort(key=lambda pair: order[id(pair[0])])
    only = ([_called(first, row) for row in left], [_called(second, row) for row in right])
    return Pair(first, second, models, only)


KEYS = ("method", "checkpoint")
"""Of a model that both runs have once each, whatever its preset."""


def _alone(rows: Sequence[Row], keys: Sequence[str]) -> dict[tuple[str, ...], Row]:
    """Return the rows that no other shares its keys with."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(str(row[key]) for key in keys), []).append(row)
    return {key: same[0] for key, same in found.items() if len(same) == 1}


def _called(section: Section, row: Row) -> str:
    return f"{section.name(row)} {row['checkpoint']}"


def _interval(found: Mapping[str, Any]) -> tuple[float, float]:
    mean, std, seeds = float(found["mean"]), found.get("std"), int(found.get("seeds", 0))
    if seeds > 1 and std is not None:
        half = float(t.ppf((1 + CONFIDENCE) / 2, seeds - 1)) * float(std) / math.sqrt(seeds)
        return mean - half, mean + half
    ends = found.get("interval")
    return (float(ends[0]), float(ends[1])) if ends else (math.nan, math.nan)


def _apart(first: Settings, second: Settings) -> Iterator[tuple[str, str, str]]:
    for key in sorted({*first, *second} - ELSEWHERE):
        if first.get(key) != second.get(key):
            yield key, _said(first, key), _said(second, key)


def _said(settings: Settings, key: str) -> str:
    return str(settings[key]) if key in settings else "not said"


def _environment(record: Settings) -> dict[str, Any]:
    environment = record.get("environment", {})
    own = {name: environment[name] for name in ("commit", "python", "platform", "cpus") if name in environment}
    return own | dict(environment.get("libraries", {}))
