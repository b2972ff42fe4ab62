"""Features compared: how far forgotten records stand apart, and how alike two models see the same records."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics.pairwise import euclidean_distances

from evaluation.metrics.intervals import Floats

ROUNDING = 1e-6
"""Records nearer than this are at one place: such distances are rounding errors of products."""


def silhouettes(features: Floats, forget: NDArray[np.bool_], strata: NDArray[np.str_]) -> Floats:
    """Return the silhouette coefficient of each record to forget, against the records to retain of its stratum.

    ``(b - a) / max(a, b)`` with Euclidean mean distances `a` to the other records to forget and `b` to those to retain
    (Rousseeuw 1987), as scikit-learn's for the two clusters of one stratum.

    Parameters
    ----------
    features : ndarray of float, shape (n, d)
        Finite; distances are taken as they are, so standardise first.
    forget : ndarray of bool, shape (n,)
        Which of the two clusters each record is in.
    strata : ndarray of str, shape (n,)
        Records of different strata are not compared.

    Returns
    -------
    ndarray
        float64, shape (n,), in [-1, 1]; 0 where all are at one place. NaN for records to retain, and in strata with
        fewer than two records on either side.

    >>> x = np.array([[0.0], [1.0], [10.0], [11.0]])
    >>> silhouettes(x, np.array([True, True, False, False]), np.array(["a"] * 4))[:2].round(4).tolist()
    [0.9048, 0.8947]
    """
    found = np.full(len(features), np.nan)
    for stratum in np.unique(strata):
        ours, others = (np.flatnonzero((strata == stratum) & (forget == side)) for side in (True, False))
        if min(len(ours), len(others)) < 2:
            continue
        among = euclidean_distances(features[ours])
        within = among.sum(axis=1) / (len(ours) - 1)
        between = euclidean_distances(features[ours], features[others]).mean(axis=1)
        larger = np.maximum(within, between)
        found[ours] = np.divide(between - within, larger, out=np.zeros_like(larger), where=larger > ROUNDING)
    return found


def linear_cka(a: Floats, b: Floats) -> tuple[float, float]:
    """Return the linear centred kernel alignment of two models' features (Kornblith et al. 2019, section 3).

    ``||B'A||^2 / (||A'A|| ||B'B||)`` of centred features, in Frobenius norms. This is the biased estimator: few records
    push it towards 1, so it comes with what chance gives. Rotating or scaling a model's features changes nothing.

    Parameters
    ----------
    a, b : ndarray of float, shapes (n, d) and (n, e)
        Finite features of the same records in the same order.

    Returns
    -------
    alignment : float
        In [0, 1], 1 for equal features; NaN where the features of either do not vary.
    chance : float
        Its mean over all ways to pair the records of one model with those of the other.

    >>> x = np.array([[0.0, 1.0], [2.0, 1.0], [1.0, 5.0]])
    >>> [round(number, 4) for number in linear_cka(x, 3.0 * x[:, ::-1] + 1.0)]
    [1.0, 0.6811]
    >>> linear_cka(x, np.ones((3, 2)))
    (nan, nan)
    """
    if not all(bool((np.ptp(features, axis=0) > 0).any()) for features in (a, b)):
        return float("nan"), float("nan")
    a, b = _centred(a), _centred(b)
    if len(a) < max(a.shape[1], b.shape[1]):
        one, two = a @ a.T, b @ b.T
        cross, sizes = float((one * two).sum()), float(np.linalg.norm(one) * np.linalg.norm(two))
    else:
        cross = float((np.asarray(b.T @ a) ** 2).sum())
        sizes = float(np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b))
    chance = float((a**2).sum() * (b**2).sum()) / ((len(a) - 1) * sizes)
    equal = a.shape == b.shape and bool((a == b).all())
    return 1.0 if equal else min(1.0, max(0.0, cross / sizes)), min(1.0, chance)


def _centred(features: Floats) -> Floats:
    """Return features with mean 0 in every column, the largest of them 1 so that no square overflows."""
    centred = features / np.abs(features).max()
    centred = centred - centred.mean(axis=0)
    result: Floats = centred / np.abs(centred).max()
    return result
