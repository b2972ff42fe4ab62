"""Confidence intervals: stratified bootstrap of means and AUCs, exact and Wilson intervals of counts (METRICS 0.6)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from evaluation.metrics.value import Value, undefined
from partitions.seeds import generator

Floats = NDArray[np.float64]

RESAMPLES = 1000
"""Bootstrap resamples."""
FEW = 100
"""Records up to which many sets of resamples are kept: a run has a stratum of its own for every class and split."""
LARGE = 2000
"""Above this many records the bootstrap distribution of a mean is drawn from its normal limit."""


def wilson(successes: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion, NaN for ``n = 0`` (Wilson 1927).

    >>> tuple(round(x, 4) for x in wilson(0, 10))
    (0.0, 0.2775)
    """
    if n == 0:
        return math.nan, math.nan
    z = float(stats.norm.ppf(0.5 + level / 2))
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def clopper_pearson(successes: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Return the exact interval of a proportion, NaN for ``n = 0`` (Clopper and Pearson 1934).

    >>> tuple(round(x, 5) for x in clopper_pearson(1, 100))
    (0.00025, 0.05446)
    """
    if n == 0:
        return math.nan, math.nan
    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else float(stats.beta.ppf(tail, successes, n - successes + 1))
    high = 1.0 if successes == n else float(stats.beta.ppf(1 - tail, successes + 1, n - successes))
    return low, high


def stratified_mean(
    values: ArrayLike,
    strata: ArrayLike | None = None,
    weights: Mapping[Any, float] | None = None,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    shares: bool = False,
) -> Value:
    """Return a mean with its stratified bootstrap interval, the same whatever the order of the records.

    Parameters
    ----------
    values : array_like of float, shape (n,)
        Finite values, one a record.
    strata : array_like, shape (n,), optional
        Label of the stratum a record is resampled within; default: one stratum.
    weights : mapping of stratum to float, optional
        Weight of each stratum's mean, normalised over the strata present; records of other strata are left out.
        Default: the plain mean.
    seed : int
        The evaluate seed. The same seed and sizes give the same resamples, so two models are compared on one draw.
    shares : bool
        The values are right (1) or wrong (0), no differences of such: where every stratum is all right or all wrong, as
        with a collapsed model, resampling within strata sees no spread, and the interval is Wilson's.

    Returns
    -------
    Value
        ``undefined`` for no records; no interval for a single one.
    """
    x = np.asarray(values, dtype=np.float64)
    labels = np.zeros(x.size, dtype=np.int64) if strata is None else np.asarray(strata)
    if weights is not None:
        weighted = np.isin(labels, [label for label, weight in weights.items() if weight > 0])
        x, labels = x[weighted], labels[weighted]
    if x.size == 0:
        return undefined("no records")
    groups = {label: np.sort(x[labels == label]) for label in np.unique(labels).tolist()}
    if weights is None:
        share = {label: group.size / x.size for label, group in groups.items()}
        mean = float(np.sort(x).mean())
    else:
        total = sum(weights[label] for label in groups)
        share = {label: weights[label] / total for label in groups}
        mean = sum(share[label] * float(group.mean()) for label, group in groups.items())
    if x.size == 1:
        return Value(mean, 1, reason="one record: no interval")
    draws = sum(
        share[label] * _resampled_means(group, seed, index, resamples)
        for index, (label, group) in enumerate(groups.items())
    )
    low, high = (float(end) for end in np.quantile(draws, (0.025, 0.975)))
    if shares and low == high and weights is None and np.isin(x, (0.0, 1.0)).all():
        low, high = wilson(int(x.sum()), int(x.size))
    return Value(mean, int(x.size), low, high)


def auc_interval(positive: Floats, negative: Floats, *, seed: int, resamples: int = RESAMPLES) -> tuple[float, float]:
    """Return the percentile interval of an AUC, positives and negatives resampled apart (arguments as `roc.auc`)."""
    pos, neg = np.sort(positive), np.sort(negative)
    below, up_to = np.searchsorted(neg, pos, side="left"), np.searchsorted(neg, pos, side="right")
    pos_counts, neg_counts = _resample(pos.size, seed, 0, resamples), _resample(neg.size, seed, 1, resamples)
    draws = np.empty(resamples)
    for index in range(resamples):
        seen = np.concatenate(([0], np.cumsum(neg_counts[index], dtype=np.int64)))
        draws[index] = pos_counts[index].astype(np.float64) @ (seen[below] + seen[up_to])
    low, high = np.quantile(draws / (2.0 * pos.size * neg.size), (0.025, 0.975))
    return float(low), float(high)


def clustered_auc_interval(
    positive: Floats,
    negative: Floats,
    positive_units: NDArray[Any],
    negative_units: NDArray[Any],
    *,
    seed: int,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """Return the percentile interval of an AUC whose units are drawn whole, each with its positives and negatives.

    Parameters
    ----------
    positive, negative : ndarray of float, shapes (n+,) and (n-,)
        Scores.
    positive_units, negative_units : ndarray, shapes (n+,) and (n-,)
        The unit (client) of each.
    seed : int
        The evaluate seed.
    resamples : int
        Bootstrap resamples; those without a positive or a negative are left out.

    Returns
    -------
    low, high : float
        NaN with fewer than two units on either side. With a handful of units the interval is a coarse one.
    """
    if min(np.unique(positive_units).size, np.unique(negative_units).size) < 2:
        return math.nan, math.nan
    units, index = np.unique(np.concatenate((positive_units, negative_units)), return_inverse=True)
    of_pos, of_neg = index[: positive.size], index[positive.size :]
    wins = np.empty((units.size, units.size))
    for unit in range(units.size):
        others = np.sort(negative[of_neg == unit])
        beaten = np.searchsorted(others, positive, side="left") + np.searchsorted(others, positive, side="right")
        wins[:, unit] = np.bincount(of_pos, weights=beaten / 2, minlength=units.size)
    drawn = _rng(seed, 0).multinomial(units.size, np.full(units.size, 1 / units.size), size=resamples)
    pairs = (drawn @ np.bincount(of_pos, minlength=units.size)) * (drawn @ np.bincount(of_neg, minlength=units.size))
    won = ((drawn @ wins) * drawn).sum(axis=1)
    low, high = np.quantile(won[pairs > 0] / pairs[pairs > 0], (0.025, 0.975))
    return float(low), float(high)


def _resampled_means(values: Floats, seed: int, stream: int, resamples: int) -> Floats:
    """Draw the bootstrap distribution of the mean of sorted `values`."""
    low, high, n = values[0], values[-1], values.size
    if low == high:
        return np.full(resamples, low)
    if bool(np.all((values == low) | (values == high))):
        hits = int((values == high).sum())
        binary: Floats = low + (high - low) * (_rng(seed, stream).binomial(n, hits / n, resamples) / n)
        return binary
    if n > LARGE:
        return _rng(seed, stream).normal(values.mean(), values.std() / math.sqrt(n), resamples)
    means: Floats = _resample(n, seed, stream, resamples).astype(np.float64) @ values / n
    return means


def _resample(n: int, seed: int, stream: int, resamples: int) -> NDArray[np.uint8]:
    """Return how often each of `n` records is drawn, shape (resamples, n); cached, as every model shares them."""
    return (_few if n <= FEW else _many)(n, seed, stream, resamples)


def _drawn(n: int, seed: int, stream: int, resamples: int) -> NDArray[np.uint8]:
    counts = np.empty((resamples, n), dtype=np.uint8)
    rng = _rng(seed, stream)
    for index in range(resamples):
        counts[index] = np.bincount(rng.integers(0, n, n), minlength=n)
    counts.flags.writeable = False
    return counts


_few, _many = lru_cache(maxsize=512)(_drawn), lru_cache(maxsize=32)(_drawn)


def _rng(seed: int, stream: int) -> np.random.Generator:
    return generator(seed, "bootstrap", round_=stream)
