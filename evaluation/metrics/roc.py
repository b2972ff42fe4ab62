"""ROC numbers of an attack whose higher score means "more member-like" (METRICS 1.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from evaluation.metrics.intervals import Floats, auc_interval, clopper_pearson, clustered_auc_interval
from evaluation.metrics.value import Value, undefined

ENOUGH_FOR_RARE = 1000
"""Negatives below which a true-positive rate at 0.1 % false positives is not given."""


def auc(positive: ArrayLike, negative: ArrayLike) -> float:
    """Return ``P(s+ > s-) + 0.5 P(s+ = s-)`` by mid-ranks; range [0, 1], NaN when a side is empty or has NaN.

    >>> round(auc([1, 2, 2], [2, 1, 0]), 5)
    0.72222
    """
    pos, neg = _floats(positive), _floats(negative)
    if _problem(pos, neg):
        return float("nan")
    ranks = rankdata(np.concatenate((pos, neg)))[: pos.size].sum()
    return float((ranks - pos.size * (pos.size + 1) / 2) / (pos.size * neg.size))


def roc_auc(
    positive: ArrayLike, negative: ArrayLike, *, seed: int = 0, units: tuple[ArrayLike, ArrayLike] | None = None
) -> Value:
    """Return the AUC with its bootstrap interval.

    Parameters
    ----------
    positive, negative : array_like of float, shapes (n+,) and (n-,)
        Scores of members and non-members; infinities are ordered like any number.
    seed : int
        The evaluate seed.
    units : pair of array_like, shapes (n+,) and (n-,), optional
        Unit (client) of each positive and negative, whose records are resampled together. Default: records are
        independent and resampled within their side.

    Returns
    -------
    Value
        ``undefined`` when a side is empty or a score is NaN; 0.5 exactly, reason ``all ties``, when all are equal.
        An AUC far below 0.5 is a leak too. No interval with fewer than two units on a side.
    """
    pos, neg = _floats(positive), _floats(negative)
    if problem := _problem(pos, neg):
        return undefined(problem)
    ties = bool(np.unique(np.concatenate((pos, neg))).size == 1)
    found = Value(auc(pos, neg), pos.size + neg.size, reason="all ties" if ties else "")
    if units is None:
        low, high = auc_interval(pos, neg, seed=seed)
        return replace(found, ci_low=low, ci_high=high)
    low, high = clustered_auc_interval(pos, neg, np.asarray(units[0]), np.asarray(units[1]), seed=seed)
    count = np.unique(np.concatenate((np.unique(units[0]), np.unique(units[1])))).size
    note = f"too few clients for an interval: {count}" if np.isnan(low) else f"interval over {count} clients"
    return replace(found, ci_low=low, ci_high=high).because(note)


def leakage(found: Value) -> Value:
    """Return the signed leakage ``AUC - 0.5`` of an AUC, with its interval; range [-0.5, 0.5].

    Above 0 members are remembered; below 0 they stand out by being forgotten too well.

    >>> leakage(Value(0.25, 8, 0.125, 0.5)).ci_high
    0.0
    """
    return replace(found, value=found.value - 0.5, ci_low=found.ci_low - 0.5, ci_high=found.ci_high - 0.5)


def leakage_size(found: Value) -> Value:
    """Return ``|AUC - 0.5|`` of an AUC; range [0, 0.5]. The interval is folded at 0.5, so it starts at 0 around it.

    >>> leakage_size(Value(0.25, 8, 0.125, 0.75))
    Value(value=0.25, n=8, ci_low=0.0, ci_high=0.375, status='ok', reason='')
    """
    ends = abs(found.ci_low - 0.5), abs(found.ci_high - 0.5)
    low = 0.0 if found.ci_low <= 0.5 <= found.ci_high else min(ends)
    return replace(found, value=abs(found.value - 0.5), ci_low=low, ci_high=max(ends))


def tpr_at_fpr(positive: ArrayLike, negative: ArrayLike, fpr: float) -> Value:
    """Return the highest true-positive rate at a false-positive rate of at most `fpr`; range [0, 1].

    Only achievable thresholds count: ties move together and nothing is interpolated. The interval is Clopper-Pearson's
    on the count of true positives. With fewer than ``1 / fpr`` negatives only a rate of 0 is admissible, and the value
    is ``underpowered``.

    >>> tpr_at_fpr([3, 2, 1], [2.5, 0, 0, 0], 0.25).value
    1.0
    """
    pos, neg = _floats(positive), _floats(negative)
    if problem := _problem(pos, neg):
        return undefined(problem)
    true, false = _operating_points(pos, neg)
    hits = int(true[false <= fpr * neg.size * (1 + 1e-12)].max())
    low, high = clopper_pearson(hits, pos.size)
    if neg.size < round(1 / fpr):
        reason = f"{neg.size} negatives cannot show a false-positive rate of {fpr:g}"
        return Value(hits / pos.size, pos.size, low, high, "underpowered", reason)
    return Value(hits / pos.size, pos.size, low, high)


def rare_tpr(positive: ArrayLike, negative: ArrayLike) -> Value:
    """Return `tpr_at_fpr` at 0.1 % false positives; ``undefined`` below 1000 negatives, which cannot show it."""
    pos, neg = _floats(positive), _floats(negative)
    if not _problem(pos, neg) and neg.size < ENOUGH_FOR_RARE:
        return undefined(f"{neg.size} unseen records: {ENOUGH_FOR_RARE} are needed", pos.size)
    return tpr_at_fpr(pos, neg, 0.001)


def balanced_accuracy(positive: ArrayLike, negative: ArrayLike) -> Value:
    """Return the mean of both sides' accuracies at the threshold best for the attacker; range [0.5, 1].

    The threshold is picked on the scores it is judged on, so this is an upper bound.

    >>> balanced_accuracy([2, 3], [0, 1]).value
    1.0
    """
    pos, neg = _floats(positive), _floats(negative)
    if problem := _problem(pos, neg):
        return undefined(problem)
    true, false = _operating_points(pos, neg)
    return Value(float(0.5 + (true / pos.size - false / neg.size).max() / 2), pos.size + neg.size)


def roc_points(positive: ArrayLike, negative: ArrayLike) -> list[tuple[float, float]]:
    """Return false- and true-positive rate of every achievable threshold, from (0, 0) to (1, 1); empty without a side.

    Corners only: points on a straight line between two others are left out.

    >>> roc_points([2, 3], [0, 1])
    [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)]
    """
    pos, neg = _floats(positive), _floats(negative)
    if _problem(pos, neg):
        return []
    true, false = (counts[::-1].astype(np.int64) for counts in _operating_points(pos, neg))
    kept = [0]
    for place in range(1, len(true) - 1):
        before, after = kept[-1], place + 1
        rise = (true[place] - true[before]) * (false[after] - false[place])
        if rise != (true[after] - true[place]) * (false[place] - false[before]):
            kept.append(place)
    kept.append(len(true) - 1)
    return [(float(false[place] / neg.size), float(true[place] / pos.size)) for place in kept]


def _operating_points(pos: Floats, neg: Floats) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return true and false positives of every achievable threshold, starting from none of either."""
    thresholds = np.unique(np.concatenate((pos, neg)))
    true = pos.size - np.searchsorted(np.sort(pos), thresholds, side="left")
    false = neg.size - np.searchsorted(np.sort(neg), thresholds, side="left")
    return np.append(true, 0), np.append(false, 0)


def _problem(pos: Floats, neg: Floats) -> str:
    if pos.size == 0 or neg.size == 0:
        return "no positives" if pos.size == 0 else "no negatives"
    return "NaN scores" if bool(np.isnan(pos).any() or np.isnan(neg).any()) else ""


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64).ravel()
