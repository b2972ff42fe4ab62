"""Friedman's test and Nemenyi's post-hoc comparison of methods over blocks (Demsar 2006). Knows no tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from partitions.seeds import generator

Floats = NDArray[np.float64]
Source = Literal["chi2", "exact permutation", "permutation", "wilcoxon", "none"]

RESAMPLES = 10_000
"""Permutations drawn, and the most that are enumerated."""
FEW_BLOCKS = 5
"""Below this many blocks the chi-square distribution is no approximation, and a warning is due."""
MOST_MISSING = 0.25
"""A method that misses a larger share of the blocks is left out; of the others only whole blocks count."""
COARSE = 0.5
"""A warning is due where two methods must differ by more than this share of the scale of ranks."""


@dataclass(frozen=True)
class Complete:
    """A score matrix without holes.

    Attributes
    ----------
    scores : ndarray
        Blocks x methods, float64, finite or infinite, without NaN.
    methods, blocks : tuple of int
        Column and row numbers that were kept, ascending.
    """

    scores: Floats
    methods: tuple[int, ...]
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Omnibus:
    """Whether the methods differ at all.

    Attributes
    ----------
    mean_ranks : ndarray
        Shape (methods,), 1 is best.
    chi2 : float
        Friedman's statistic, corrected for ties; NaN for fewer than three methods or when every score ties.
    p_chi2 : float
        Its p value by the chi-square distribution with k - 1 degrees of freedom, in [0, 1].
    f, p_f : float
        Iman and Davenport's statistic, infinite where every block agrees, and its p value by F with (k - 1) and
        (k - 1)(N - 1) degrees of freedom, or by permutation where it is infinite.
    p : float
        The p value to go by: from `source`.
    source : {"chi2", "exact permutation", "permutation", "wilcoxon", "none"}
        Where `p` is from; ``none``: too little to test, and `p` is NaN.
    reason : str
        Why there is no statistic, such as ``all ties``; else empty.
    """

    mean_ranks: Floats
    chi2: float
    p_chi2: float
    f: float
    p_f: float
    p: float
    source: Source
    reason: str = ""


def complete(scores: ArrayLike) -> Complete:
    """Leave out methods that miss more than a quarter of the blocks, then the blocks that still have a hole.

    Parameters
    ----------
    scores : array_like of float, shape (blocks, methods)
        NaN where a method has no score.

    Returns
    -------
    Complete
        What is left, possibly nothing.

    >>> complete([[1, 2, 3], [1, 2, float("nan")]]).methods
    (0, 1)
    """
    table = _matrix(scores)
    missing = np.isnan(table)
    kept = np.flatnonzero(missing.mean(axis=0) <= MOST_MISSING) if len(table) else np.arange(0)
    whole = np.flatnonzero(~missing[:, kept].any(axis=1)) if kept.size else np.arange(0)
    return Complete(table[np.ix_(whole, kept)], tuple(kept.tolist()), tuple(whole.tolist()))


def block_ranks(scores: ArrayLike, *, lower_is_better: bool) -> Floats:
    """Rank the methods within each block: 1 is best, ties share the mean of their ranks.

    Parameters
    ----------
    scores : array_like of float, shape (blocks, methods)
        Without NaN.
    lower_is_better : bool
        Direction of the scores: True for a distance.

    Raises
    ------
    ValueError
        For a NaN: what to do with a hole is decided before (`complete`).

    >>> block_ranks([[0.3, 0.1, 0.1]], lower_is_better=True).tolist()
    [[3.0, 1.5, 1.5]]
    """
    table = _matrix(scores)
    if np.isnan(table).any():
        raise ValueError("scores have holes; complete() them first")
    ranks: Floats = stats.rankdata(table if lower_is_better else -table, method="average", axis=1).astype(np.float64)
    return ranks


def friedman(scores: ArrayLike, *, lower_is_better: bool, seed: int = 0) -> Omnibus:
    """Test whether some method ranks better than others.

    The p value to go by is chi-square's, with fewer than five blocks a permutation's (every arrangement of ranks
    within blocks where there are at most 10 000 of them, else as many random ones), with two methods Wilcoxon's.

    Parameters
    ----------
    scores : array_like of float, shape (N, k)
        Blocks x methods, without NaN. A block is a data set: seeds as blocks are pseudo-replication.
    lower_is_better : bool
        Direction of the scores.
    seed : int
        Of the random permutations.

    Raises
    ------
    ValueError
        For a NaN.
    """
    table = _matrix(scores)
    ranks = block_ranks(table, lower_is_better=lower_is_better)
    n, k = ranks.shape
    mean_ranks = ranks.mean(axis=0) if n else np.full(k, math.nan)
    nan = math.nan
    if n < 2 or k < 2:
        what = f"{n} block{'s' * (n != 1)}" if n < 2 else f"{k} method{'s' * (k != 1)}"
        return Omnibus(mean_ranks, nan, nan, nan, nan, nan, "none", f"{what}: nothing to test")
    if (ranks == ranks[:, :1]).all():
        return Omnibus(mean_ranks, nan, nan, nan, nan, 1.0, "none", "all ties")
    if k == 2:
        p = float(stats.wilcoxon(table[:, 0], table[:, 1]).pvalue)
        return Omnibus(mean_ranks, nan, nan, nan, nan, p, "wilcoxon", "two methods: Wilcoxon's signed-rank test")
    chi2 = _chi2(ranks)
    p_chi2 = float(stats.chi2.sf(chi2, k - 1))
    agreed = math.isclose(chi2, n * (k - 1), rel_tol=1e-12)
    permuted = _permuted_p(ranks, seed) if n < FEW_BLOCKS or agreed else None
    f = math.inf if agreed else (n - 1) * chi2 / (n * (k - 1) - chi2)
    p_f = permuted[0] if agreed and permuted else float(stats.f.sf(f, k - 1, (k - 1) * (n - 1)))
    if n < FEW_BLOCKS and permuted:
        return Omnibus(mean_ranks, chi2, p_chi2, f, p_f, *permuted)
    return Omnibus(mean_ranks, chi2, p_chi2, f, p_f, p_chi2, "chi2")


@cache
def nemenyi_q(methods: int, level: float = 0.05) -> float:
    """Return the critical value of Nemenyi's test: the studentized range's over the root of 2.

    Parameters
    ----------
    methods : int
        How many are compared, at least 2.
    level : float
        Of significance, in (0, 1).

    >>> round(nemenyi_q(3), 3)
    2.344
    """
    return float(stats.studentized_range.ppf(1 - level, methods, math.inf)) / math.sqrt(2)


def critical_difference(methods: int, blocks: int, level: float = 0.05) -> float:
    """Return by how much two mean ranks must differ to be told apart, in ranks.

    >>> round(critical_difference(12, 4), 2)
    8.33
    """
    return nemenyi_q(methods, level) * math.sqrt(methods * (methods + 1) / (6 * blocks))


def nemenyi_p(mean_ranks: ArrayLike, blocks: int) -> Floats:
    """Return the p value of every pair of methods.

    Parameters
    ----------
    mean_ranks : array_like of float, shape (k,)
        Over the blocks.
    blocks : int
        How many.

    Returns
    -------
    ndarray
        (k, k) float64, symmetric, 1 on the diagonal. Only for use after a significant omnibus test.
    """
    ranks = np.asarray(mean_ranks, dtype=np.float64)
    k = ranks.size
    error = math.sqrt(k * (k + 1) / (6 * blocks))
    above = np.triu_indices(k, 1)
    apart = np.abs(ranks[:, None] - ranks[None, :])[above] / error * math.sqrt(2)
    values: Floats = np.ones((k, k))
    values[above] = stats.studentized_range.sf(apart, k, math.inf)
    return np.minimum(values, values.T)


def tie_groups(mean_ranks: ArrayLike, difference: float) -> tuple[tuple[int, ...], ...]:
    """Return the largest groups of methods of which no two are told apart, best first.

    Groups overlap: a method may be told apart from neither of two that differ from each other.

    Parameters
    ----------
    mean_ranks : array_like of float, shape (k,)
        Any order.
    difference : float
        Mean ranks that differ by at least this much are told apart; infinity for no pair at all.

    Returns
    -------
    tuple of tuple of int
        Positions in `mean_ranks`, each group by rank; every method is in at least one.

    >>> tie_groups([1, 2.25, 2.75], 1.657)
    ((0, 1), (1, 2))
    """
    ranks = np.asarray(mean_ranks, dtype=np.float64)
    order = np.argsort(ranks, kind="stable").tolist()
    groups: list[tuple[int, ...]] = []
    for start, first in enumerate(order):
        members = tuple(one for one in order[start:] if ranks[one] - ranks[first] < difference or one == first)
        if not groups or not set(members) <= set(groups[-1]):
            groups.append(members)
    return tuple(groups)


def group_letters(groups: Sequence[Sequence[int]], methods: int) -> tuple[str, ...]:
    """Return for each method the letters of its groups: two that share a letter are not told apart.

    >>> group_letters([(0, 1), (1, 2)], 3)
    ('a', 'ab', 'b')
    """
    names = [chr(ord("a") + index) if index < 26 else f"[{index + 1}]" for index in range(len(groups))]
    return tuple(
        "".join(name for name, group in zip(names, groups, strict=True) if method in group) for method in range(methods)
    )


def power_warning(methods: int, blocks: int, level: float = 0.05) -> str:
    """Say where a lack of difference is a lack of blocks; empty where it is not.

    Parameters
    ----------
    methods, blocks : int
        At least 2 and 1.
    level : float
        Of significance.
    """
    what = f"{blocks} block{'s' * (blocks != 1)}, {methods} methods"
    if methods == 2:  # Wilcoxon's
        least = 2.0 ** (1 - blocks)
        return "" if least <= level else f"{what}: p is {least:.3g} at the least; a tie is lack of power"
    scale, needed = methods - 1, critical_difference(methods, blocks, level)
    if blocks >= FEW_BLOCKS and needed / scale <= COARSE:
        return ""
    enough = max(FEW_BLOCKS, math.ceil(blocks * (needed / (COARSE * scale)) ** 2))
    if needed > scale:
        must = f"no two can be told apart (they would have to differ by {needed:.2f} ranks, and {scale} is the most)"
    else:
        must = f"two must differ by {needed:.2f} of at most {scale} ranks to be told apart"
    return f"{what}: {must}; a tie is then mostly lack of power, which {enough} blocks would mend"


def _matrix(scores: ArrayLike) -> Floats:
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2:
        raise ValueError(f"scores have {table.ndim} dimensions; blocks x methods has 2")
    return table


def _chi2(ranks: Floats) -> float:
    """Return Friedman's statistic of ranks with at least one block that is not all ties."""
    n, k = ranks.shape
    plain = 12 * n / (k * (k + 1)) * (float((ranks.mean(axis=0) ** 2).sum()) - k * (k + 1) ** 2 / 4)
    sizes = [count for row in ranks for count in np.unique(row, return_counts=True)[1].tolist()]
    ties = float(sum(size**3 - size for size in sizes)) / (n * (k**3 - k))
    return float(plain / (1 - ties))


def _permuted_p(ranks: Floats, seed: int) -> tuple[float, Source]:
    """Return the chance of rank sums at least as far apart when every block's ranks are shuffled."""
    n, k = ranks.shape
    observed = float((ranks.sum(axis=0) ** 2).sum()) - 1e-9
    arrangements = math.prod(_arrangements(row) for row in ranks[1:])
    if _same_arrangements(ranks) and math.isclose(observed, float((n**2 * ranks[0] ** 2).sum()), abs_tol=1e-6):
        return 1 / arrangements, "exact permutation"  # every block says the same
    if arrangements <= RESAMPLES:
        sums = ranks[:1]  # the first block stays: only the order relative to it counts
        for row in ranks[1:]:
            shuffled = np.array(sorted(set(permutations(row.tolist()))))
            sums = (sums[:, None, :] + shuffled[None, :, :]).reshape(-1, k)
        return float(((sums**2).sum(axis=1) >= observed).mean()), "exact permutation"
    rng = generator(seed, "friedman")
    drawn = np.zeros((RESAMPLES, k))
    for row in ranks:
        drawn += rng.permuted(np.tile(row, (RESAMPLES, 1)), axis=1)
    hits = int(((drawn**2).sum(axis=1) >= observed).sum())
    return (1 + hits) / (1 + RESAMPLES), "permutation"


def _arrangements(row: Floats) -> int:
    """Count the distinct orders of one block's ranks."""
    repeats = np.unique(row, return_counts=True)[1].tolist()
    return math.factorial(row.size) // math.prod(math.factorial(count) for count in repeats)


def _same_arrangements(ranks: Floats) -> bool:
    return bool((np.sort(ranks, axis=1) == np.sort(ranks[0])).all())
