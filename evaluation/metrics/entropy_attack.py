"""Membership attack on the entropy of the outputs, as SUPREME and SSD report it (METRICS 1.7; Foster et al. 2024)."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from sklearn.linear_model import LogisticRegression

from evaluation.evidence import Evidence
from evaluation.metrics.base import Metric
from evaluation.metrics.intervals import Floats, wilson
from evaluation.metrics.value import Value, not_applicable, undefined


def member_rate(retain: ArrayLike, test: ArrayLike, forget: ArrayLike) -> Value:
    """Return the share of forget records that an attacker takes for training records; range [0, 1], ideal: gold's.

    Parameters
    ----------
    retain, test, forget : array_like of float, shapes (n,), (m,) and (k,)
        Entropies in nats of the softmax outputs on retained training records, on records never trained on, and on the
        records to forget.

    Returns
    -------
    Value
        A logistic regression with balanced classes learns retain (1) against test (0) and is asked about the forget
        records; the interval is Wilson's for their number, the attacker taken as given. ``undefined`` when a set is
        empty or has NaN. Where retain and test entropies are all the same the attacker decides alike for all, and the
        reason says so. The value is no accuracy: 0.5 means nothing, only the distance to gold's does.
    """
    sides = [np.sort(np.asarray(side, dtype=np.float64).ravel()) for side in (retain, test, forget)]
    for name, side in zip(("retain_train", "test", "forget_train"), sides, strict=True):
        if not side.size:
            return undefined(f"empty {name} set")
        if not bool(np.isfinite(side).all()):
            return undefined(f"non-finite entropies in {name}")
    member, other, asked = sides
    labels = np.repeat([1, 0], [member.size, other.size])
    learned = np.concatenate((member, other))
    attacker = LogisticRegression(class_weight="balanced").fit(learned[:, None], labels)
    hits = int(attacker.predict(asked[:, None]).sum())
    low, high = wilson(hits, asked.size)
    constant = "constant entropies: the attacker cannot tell records apart" if learned.min() == learned.max() else ""
    return Value(hits / asked.size, int(asked.size), low, high, reason=constant)


@lru_cache(maxsize=32)
def _computed(retain: bytes, test: bytes, forget: bytes) -> Value:
    """Compute a rate of float64 entropies once: every model of a group needs gold's."""
    return member_rate(np.frombuffer(retain), np.frombuffer(test), np.frombuffer(forget))


def _entropy_mia(evidence: Evidence) -> Value:
    if evidence.problem:
        return undefined(evidence.problem)
    samples = [evidence.sample(which) for which in ("retain_train", "test", "forget_train")]
    sides: list[Floats] = [sample.rows["entropy"].to_numpy(np.float64) for sample in samples]
    if any(side.size and bool(np.isnan(side).all()) for side in sides):
        return not_applicable("the task has no softmax outputs")
    return _computed(*(side.tobytes() for side in sides)).because(samples[1].note if sides[1].size else "")


def _difference(evidence: Evidence) -> Value:
    """Return the signed difference to gold; no interval, as both sides share their records."""
    if evidence.of_gold is None:
        return undefined("needs gold")
    mine, gold = _entropy_mia(evidence), _entropy_mia(evidence.of_gold)
    if math.isnan(mine.value) or math.isnan(gold.value):
        return mine if math.isnan(mine.value) else undefined(f"gold: {gold.reason}")
    return Value(mine.value - gold.value, mine.n, reason=mine.reason)


METRIC = [
    Metric(
        "entropy_mia",
        "share of forget records that an entropy attack takes for training records (SUPREME)",
        "fraction",
        0.0,
        1.0,
        "gold",
        _entropy_mia,
        _difference,
        of_forgotten=True,
    )
]
