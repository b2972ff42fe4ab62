"""How well an attack's scores tell its positives from its negatives, and how to read that (METRICS 1.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluation.metrics.intervals import Floats
from evaluation.metrics.roc import balanced_accuracy, leakage, leakage_size, rare_tpr, roc_auc, tpr_at_fpr
from evaluation.metrics.value import Value, undefined

MINIMUM = 10
"""Positives below which every number is underpowered (METRICS 1.5)."""

Reading = Literal["leaks", "leaks inverted", "no leak shown", "undecided"]


@dataclass(frozen=True)
class Separation:
    """What one attack achieves; a higher score means "more member-like".

    Attributes
    ----------
    auc : Value
        In [0, 1], 0.5 for an attack that sees nothing.
    leakage, leakage_size : Value
        ``AUC - 0.5``, in [-0.5, 0.5], and its absolute value: an AUC far below 0.5 is a leak too.
    tpr_at_1pct_fpr, tpr_at_01pct_fpr : Value
        True-positive rates at 1 % and 0.1 % false positives, in [0, 1]; the latter only from 1000 negatives.
    balanced_accuracy : Value
        At the threshold best for the attacker, in [0.5, 1].
    """

    auc: Value
    leakage: Value
    leakage_size: Value
    tpr_at_1pct_fpr: Value
    tpr_at_01pct_fpr: Value
    balanced_accuracy: Value

    @classmethod
    def missing(cls, value: Value) -> Separation:
        """Return a separation of which nothing could be computed, with the reason of `value` everywhere."""
        return cls(**{field.name: value for field in fields(cls)})

    @property
    def reading(self) -> Reading:
        """What the interval of the AUC allows to say; without an interval, or from too few records, nothing."""
        if self.auc.status != "ok" or math.isnan(self.auc.ci_low):
            return "undecided"
        if self.auc.ci_low > 0.5:
            return "leaks"
        return "leaks inverted" if self.auc.ci_high < 0.5 else "no leak shown"


@dataclass(frozen=True, eq=False)
class Attack:
    """Scores of an attack and what they achieve.

    Attributes
    ----------
    scores : ndarray of float, shape (n,)
        One a record, NaN where the record was dropped.
    dropped : int
        Records without a score, because fewer than two models say what is normal for them.
    separation : Separation
        Over the other records.
    """

    scores: Floats
    dropped: int
    separation: Separation


def judge(scores: ArrayLike, positive: ArrayLike, *, clients: ArrayLike | None = None, seed: int = 0) -> Attack:
    """Return what an attack's scores achieve.

    Parameters
    ----------
    scores : array_like of float, shape (n,)
        Higher means more member-like; NaN: no score, the record is dropped and counted.
    positive : array_like of bool, shape (n,)
        Whether the record is a member (or was unlearned), against never seen.
    clients : array_like of str, shape (n,), optional
        The client a record comes from. Records of one client are correlated, so clients are then what the bootstrap
        resamples. Default: records are independent.
    seed : int
        The evaluate seed.

    Returns
    -------
    Attack
        Values are ``undefined`` when a side has no score, ``underpowered`` below ten positives.
    """
    values, members = np.asarray(scores, dtype=np.float64), np.asarray(positive, dtype=bool)
    scored = ~np.isnan(values)
    pos, neg = scored & members, scored & ~members
    owners = None if clients is None else (np.asarray(clients)[pos], np.asarray(clients)[neg])
    if values.size and not scored.any():
        return unscored(values.size, undefined(f"{values.size} records, and too few models to compare any with"))
    found = _separate(values[pos], values[neg], owners, seed)
    dropped = int((~scored).sum())
    if dropped:
        found = _everywhere(found, note=f"{dropped} of {values.size} records dropped: too few models to compare with")
    if 0 < pos.sum() < MINIMUM:
        found = _everywhere(found, note=f"fewer than {MINIMUM} positives", underpowered=True)
    return Attack(values, dropped, found)


def unscored(n: int, value: Value) -> Attack:
    """Return the attack on `n` records that could not be made, for the reason of `value`."""
    return Attack(np.full(n, np.nan), n, Separation.missing(value))


def _separate(pos: Floats, neg: Floats, clients: tuple[NDArray[Any], NDArray[Any]] | None, seed: int) -> Separation:
    area = roc_auc(pos, neg, seed=seed, units=clients)
    rates = [tpr_at_fpr(pos, neg, 0.01), rare_tpr(pos, neg)]
    if clients is not None:
        rates = [rate.because("the interval takes records as independent") for rate in rates]
    return Separation(area, leakage(area), leakage_size(area), rates[0], rates[1], balanced_accuracy(pos, neg))


def _everywhere(found: Separation, *, note: str, underpowered: bool = False) -> Separation:
    values = {field.name: getattr(found, field.name).because(note) for field in fields(found)}
    if underpowered:
        values = {k: replace(v, status="underpowered") if v.status == "ok" else v for k, v in values.items()}
    return Separation(**values)
