"""ROC numbers of an attack whose higher score means "more member-like" (METRICS 1.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from evaluation.metrics.intervals import Floats, auc_interval, clopper_pearson
from evaluation.metrics.value import Value, undefined


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


def roc_auc(positive: ArrayLike, negative: ArrayLike, *, seed: int = 0) -> Value:
    """Return the AUC with its stratified bootstrap interval.

    Parameters
    ----------
    positive, negative : array_like of float, shapes (n+,) and (n-,)
        Scores of members and non-members; infinities are ordered like any number.
    seed : int
        The evaluate seed.

    Returns
    -------
    Value
        ``undefined`` when a side is empty or a score is NaN; 0.5 exactly, reason ``all ties``, when all are equal.
        An AUC far below 0.5 is a leak too.
    """
    pos, neg = _floats(positive), _floats(negative)
    if problem := _problem(pos, neg):
        return undefined(problem)
    ties = bool(np.unique(np.concatenate((pos, neg))).size == 1)
    low, high = auc_interval(pos, neg, seed=seed)
    return Value(auc(pos, neg), pos.size + neg.size, low, high, reason="all ties" if ties else "")


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
