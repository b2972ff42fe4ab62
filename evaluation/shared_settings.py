"""What one setting shared by all searched methods would have concluded, beside each method's own search (GEMMU)."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from evaluation.selection import best
from evaluation.trials import DEFAULT_TRIAL

OWN, PRESET = "each its own search", "each its preset"
DIGITS = 12
"""Decimals of a distance that count: equal ones averaged in another order are ties."""


@dataclass(frozen=True)
class Conclusion:
    """The methods ranked under one way of setting them.

    Attributes
    ----------
    setting : str
        `OWN`, `PRESET`, or a value that all share, such as ``lr = 0.01``.
    distances : mapping of str to float
        Held-out distance to gold by method, in the task's metric; infinite where the method failed.
    ranks : mapping of str to float
        1 is nearest to gold; equal distances share the mean of their ranks.
    reversed : tuple of (str, str)
        Pairs of methods, the nearer one first, that each method's own search puts the other way round.
    """

    setting: str
    distances: Mapping[str, float]
    ranks: Mapping[str, float]
    reversed: tuple[tuple[str, str], ...] = ()


def distances_to_gold(trials: pd.DataFrame) -> pd.Series[float]:
    """Return how far each trial is from gold on held-out records: the mean of the sizes of the gaps on those of what
    was forgotten and on the retained ones; NaN where a trial has no model, or the request no such records.
    """
    gaps = [(trials[split] - trials[f"gold_{split}"]).abs() for split in ("forget", "retain")]
    return (gaps[0] + gaps[1]) / 2


def conclusions(trials: pd.DataFrame) -> list[Conclusion]:
    """Return what follows from each setting that all searched methods share, the presets and their own searches first.

    Where a method has several trials with a shared value, the rule chooses among them as it does among all. Several
    searches of one method (other train seeds) are averaged.

    Parameters
    ----------
    trials : DataFrame
        As `evaluation.trials.read_trials` returns it, of one request and one ``search``.

    Returns
    -------
    list of Conclusion
        The first is `OWN`; none for fewer than two methods, or where nothing was scored on held-out records.
    """
    trials = trials.assign(distance=distances_to_gold(trials), read=[json.loads(text) for text in trials["values"]])
    if trials["method"].nunique() < 2 or trials["distance"].isna().all():
        return []
    tried = trials[trials["trial"] != DEFAULT_TRIAL]
    own = _ranked(OWN, tried, lambda rows: rows[rows["chosen"]])
    preset = _ranked(PRESET, trials, lambda rows: rows[rows["trial"] == DEFAULT_TRIAL])
    shared = [
        _ranked(f"{key} = {json.dumps(value)}", tried, lambda rows, k=key, v=value: _best(_with(rows, k, v)))  # type: ignore[misc]
        for key, value in _shared(tried)
    ]
    return [own, *(_against(own, one) for one in (preset, *shared))]


def _shared(tried: pd.DataFrame) -> list[tuple[str, object]]:
    """Return the settings and values that every search tried, in the order of the first."""
    searches = [
        dict.fromkeys((key, json.dumps(value)) for values in rows["read"] for key, value in values.items())
        for _, rows in tried.groupby(["method", "train_seed"], sort=False)
    ]
    everywhere = [pair for pair in searches[0] if all(pair in found for found in searches)]
    return [(key, json.loads(value)) for key, value in everywhere]


def _with(rows: pd.DataFrame, key: str, value: object) -> pd.DataFrame:
    text = json.dumps(value)
    return rows[[key in values and json.dumps(values[key]) == text for values in rows["read"]]]


def _best(rows: pd.DataFrame) -> pd.DataFrame:
    place = best(list(rows["score"]))
    return rows.iloc[:0] if place is None else rows.iloc[[place]]


def _ranked(setting: str, trials: pd.DataFrame, pick: Callable[[pd.DataFrame], pd.DataFrame]) -> Conclusion:
    found: dict[str, list[float]] = {}
    for (method, _), rows in trials.groupby(["method", "train_seed"], sort=True):
        picked = pick(rows)
        well = len(picked) and picked["status"].iloc[0] == "ok" and not math.isnan(picked["distance"].iloc[0])
        found.setdefault(str(method), []).append(float(picked["distance"].iloc[0]) if well else math.inf)
    distances = {method: round(float(np.mean(values)), DIGITS) for method, values in found.items()}
    ranks = rankdata(list(distances.values())).tolist()
    return Conclusion(setting, distances, dict(zip(distances, ranks, strict=True)))


def _against(own: Conclusion, other: Conclusion) -> Conclusion:
    pairs = [
        pair
        for pair in itertools.permutations(own.distances, 2)
        if _nearer(other, *pair) and _nearer(own, *reversed(pair))
    ]
    return Conclusion(other.setting, other.distances, other.ranks, tuple(pairs))


def _nearer(conclusion: Conclusion, one: str, other: str) -> bool:
    return conclusion.distances[one] < conclusion.distances[other]


def verdict(found: Sequence[Conclusion]) -> str:
    """Say in a sentence whether a shared setting turns the ranking around; empty where there is nothing to compare."""
    if len(found) < 2:
        return ""
    others = found[1:]
    turned = [one for one in others if one.reversed]
    pairs = math.comb(len(found[0].distances), 2)
    if not turned:
        return f"None of {len(others)} ways to set all methods alike turns a pair of them around."
    worst = max(turned, key=lambda one: len(one.reversed))
    return (
        f"{len(turned)} of {len(others)} ways to set all methods alike turn pairs of them around, "
        f"at most {len(worst.reversed)} of {pairs} ({worst.setting})."
    )
