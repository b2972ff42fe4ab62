"""Population membership attack on losses: cross-validated logistic regression (METRICS 1.6; Choi and Na 2023)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn import config_context
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedShuffleSplit

from evaluation.metrics.intervals import Floats, wilson
from evaluation.metrics.value import Value, undefined
from partitions.seeds import generator

Preset = Literal["honest", "mufac"]

DRAWS = 5
"""Balanced subsamples that the honest attack averages over."""
MINIMUM, ENOUGH = 10, 20
"""Records a side below which the attack is undefined, and below which it is underpowered."""
LOSS_LIMIT = 50.0
"""Losses are clipped here, in nats: ascent can make them infinite."""


def attack_accuracy(forget: ArrayLike, unseen: ArrayLike, *, preset: Preset = "honest", seed: int = 0) -> Value:
    """Return the accuracy with which losses tell forgotten records from never-seen ones; range [0, 1], ideal: gold's.

    Parameters
    ----------
    forget, unseen : array_like of float, shapes (n+,) and (n-,)
        Losses in nats of the records to forget and of records no model was trained on. Nobody may appear on both sides.
    preset : {"honest", "mufac"}
        ``mufac`` is the published pipeline to the bit: only the forget side is cut to the other's size, so fewer forget
        than unseen records drift it to the majority rate; raw losses. ``honest`` subsamples both sides to the smaller
        one, standardises inside the fold and averages over five draws.
    seed : int
        Evaluate seed of the honest draws.

    Returns
    -------
    Value
        ``undefined`` below 10 records a side, ``underpowered`` below 20. The interval is Wilson's for as many records
        as were compared: ten folds of a tenth test each about once. A monotone attack sees nothing when forget losses
        lie on both sides of the unseen ones.
    """
    pos, neg = np.asarray(forget, dtype=np.float64).ravel(), np.asarray(unseen, dtype=np.float64).ravel()
    smaller = min(pos.size, neg.size)
    if smaller < MINIMUM:
        return undefined(f"{pos.size} forget and {neg.size} unseen records: at least {MINIMUM} each are needed")
    if bool(np.isnan(pos).any() or np.isnan(neg).any()):
        return undefined("NaN losses")
    accuracy = _mufac(pos, neg) if preset == "mufac" else _honest(np.sort(pos), np.sort(neg), seed)
    n = 2 * smaller if preset == "honest" else min(pos.size, neg.size) + neg.size
    low, high = wilson(round(accuracy * n), n)
    if smaller < ENOUGH:
        return Value(accuracy, n, low, high, "underpowered", f"fewer than {ENOUGH} records on a side")
    return Value(accuracy, n, low, high)


def forgetting_score(accuracy: float) -> float:
    """Return ``|M - 0.5|`` of an attack accuracy `M`; range [0, 0.5].

    >>> round(forgetting_score(0.7136), 4)
    0.2136
    """
    return abs(accuracy - 0.5)


def _mufac(forget: Floats, unseen: Floats) -> float:
    """Run the published pipeline; only infinite losses are clipped, as scikit-learn takes none."""
    shuffled = forget.copy()
    np.random.RandomState(42).shuffle(shuffled)
    losses = np.concatenate((unseen, shuffled[: unseen.size]))
    if not bool(np.isfinite(losses).all()):
        losses = np.clip(losses, -LOSS_LIMIT, LOSS_LIMIT)
    return _cross_validate(losses, unseen.size, fold_seed=0, standardise=False)


def _honest(forget: Floats, unseen: Floats, seed: int) -> float:
    """Average over balanced draws; sorted losses make it independent of the order of the records."""
    size = min(forget.size, unseen.size)
    rng = generator(seed, "population-attack")
    accuracies = []
    for draw in range(DRAWS):
        sides = [rng.choice(side, size, replace=False, shuffle=False) for side in (unseen, forget)]
        losses = np.clip(np.concatenate(sides), -LOSS_LIMIT, LOSS_LIMIT)
        accuracies.append(_cross_validate(losses, size, fold_seed=draw, standardise=True))
    return float(np.mean(accuracies))


def _cross_validate(losses: Floats, num_unseen: int, *, fold_seed: int, standardise: bool) -> float:
    """Return the mean accuracy over ten stratified shuffles; the first `num_unseen` losses carry label 0."""
    features = losses[:, None]
    labels = np.zeros(losses.size, dtype=np.int64)
    labels[num_unseen:] = 1
    scores = []
    with config_context(assume_finite=True, skip_parameter_validation=True):  # which takes longer than the fits
        for train, test in StratifiedShuffleSplit(n_splits=10, random_state=fold_seed).split(features, labels):
            centre = features[train].mean() if standardise else 0.0
            scale = (features[train].std() or 1.0) if standardise else 1.0
            model = LogisticRegression().fit((features[train] - centre) / scale, labels[train])
            member = ((features[test] - centre) / scale @ model.coef_.T + model.intercept_)[:, 0] > 0  # its `predict`
            scores.append(np.mean(member == labels[test]))
    return float(np.mean(scores))
