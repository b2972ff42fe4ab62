"""Difficulty of a request before training: what the departing records were the only, or the main, support of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from partitions.partition import Partition
from partitions.records import LoadedData
from partitions.requests import Request, Selection, select

Counts = NDArray[np.int64]

SCARCE = 0.5
"""A class that loses a larger share of its training records than this has lost most of its support."""
SKEWED = 0.5
"""Total variation above which the departing labels are mostly not those of the rest."""


@dataclass(frozen=True)
class Difficulty:
    """What a request takes from the training records.

    Attributes
    ----------
    forget, retain : ndarray
        Training records of each class that the last step marks, and that no step marks; (classes,) int64.
    share : float
        Departing share of the training records of this step, in (0, 1).
    support : ndarray
        Share of each class's records that stay, in [0, 1]; NaN for a class that has none. (classes,) float64.
    lost : tuple of str
        Classes of which no training record stays: gold cannot know them.
    scarce : tuple of str
        Other classes that lose more than half of their records.
    sole_holders : dict of str to str
        Class to site, for each departing class that one site alone held before this step, and that departs from it.
    skew : float
        Total variation distance between the class shares of departing and staying records, in [0, 1].
    unsupported : float
        Share of the departing records that are of lost classes, in [0, 1].
    level : {"hard", "skewed", "easy"}
        ``hard``: a class is lost or scarce; ``skewed``: none is, but the departing labels are mostly others than the
        rest's; ``easy``: what departs is also held by those who stay, so gold will know it nearly as well.
    reason : str
        In words.
    """

    forget: Counts
    retain: Counts
    share: float
    support: NDArray[np.float64]
    lost: tuple[str, ...]
    scarce: tuple[str, ...]
    sole_holders: dict[str, str]
    skew: float
    unsupported: float
    level: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return share, skew, unsupported, lost, scarce, sole_holders, level and reason, ready for ``json.dumps``."""
        told = ("share", "skew", "unsupported", "sole_holders", "level", "reason")
        lists = {"lost": list(self.lost), "scarce": list(self.scarce)}
        return {name: getattr(self, name) for name in told} | lists


def request_difficulty(data: LoadedData, partition: Partition, request: Request, seed: int = 0) -> Difficulty:
    """Judge a request by what it removes from whom.

    Parameters
    ----------
    data : LoadedData
        The data set; records without a stratum count in no class.
    partition : Partition
        Its records on the sites.
    request : Request
        What to forget; of a sequence, the last step is judged on what the earlier ones left.
    seed : int
        Request seed, of samples.

    Raises
    ------
    ValueError
        When the request takes no training record, or leaves none.
    """
    tables = {site: data.table.iloc[partition.train[site]] for site in partition.sites}
    per_site = [
        class_counts(table["stratum"], select(request, site, table, "train", seed), len(data.classes))
        for site, table in tables.items()
    ]
    return difficulty(
        np.stack([forget for forget, _ in per_site]),
        np.stack([retain for _, retain in per_site]),
        data.classes,
        partition.sites,
    )


def class_counts(strata: ArrayLike, selection: Selection, classes: int) -> tuple[Counts, Counts]:
    """Count a site's training records by class: those that depart and those that stay, (classes,) int64 each.

    Parameters
    ----------
    strata : array_like of str, shape (n,)
        Class index of each training record as text; what is none counts in no class.
    selection : Selection
        Which of them the request's last step marks, and which no step does.
    classes : int
        Classes of the data set.
    """
    known, names = np.asarray(strata, dtype=str), np.arange(classes).astype(str)
    going, staying = (
        (known[rows][:, None] == names[None, :]).sum(axis=0).astype(np.int64)
        for rows in (selection.forget, selection.retain)
    )
    return going, staying


def difficulty(forget: ArrayLike, retain: ArrayLike, classes: Sequence[str], sites: Sequence[str]) -> Difficulty:
    """Judge a request by counts.

    Parameters
    ----------
    forget, retain : array_like of int, shape (sites, classes)
        Training records that depart and that stay.
    classes, sites : sequence of str
        Their names.

    Raises
    ------
    ValueError
        When no labelled record departs or none stays, or the counts have not that shape.
    """
    going, staying = np.asarray(forget, dtype=np.int64), np.asarray(retain, dtype=np.int64)
    if going.shape != (len(sites), len(classes)) or staying.shape != going.shape:
        raise ValueError(f"counts of shape {going.shape} and {staying.shape}, not {(len(sites), len(classes))}")
    gone, left = going.sum(axis=0), staying.sum(axis=0)
    if not gone.sum() or not left.sum():
        raise ValueError("no labelled training record " + ("stays" if gone.sum() else "departs"))
    with np.errstate(invalid="ignore"):
        support = left / (gone + left)
    lost = [name for name, out, kept in zip(classes, gone, left, strict=True) if out and not kept]
    scarce = [name for name, share in zip(classes, support, strict=True) if 0 < share < 1 - SCARCE]
    skew = total_variation(gone, left)
    unsupported = float(gone[left == 0].sum() / gone.sum())
    holders = _sole_holders(going, staying, classes, sites)
    level = "hard" if lost or scarce else "skewed" if skew > SKEWED else "easy"
    return Difficulty(
        forget=gone,
        retain=left,
        share=float(gone.sum() / (gone.sum() + left.sum())),
        support=support,
        lost=tuple(lost),
        scarce=tuple(scarce),
        sole_holders=holders,
        skew=skew,
        unsupported=unsupported,
        level=level,
        reason=_reason(lost, scarce, holders, skew, unsupported),
    )


def total_variation(first: ArrayLike, second: ArrayLike) -> float:
    """Return the total variation distance of two histograms: half the sum of absolute differences of their shares.

    Parameters
    ----------
    first, second : array_like of float, shape (classes,)
        Counts, not negative, of which at least one is positive.

    Returns
    -------
    float
        In [0, 1]: 0 for equal shares, 1 for no class in common.

    Raises
    ------
    ValueError
        For an empty histogram.

    >>> total_variation([3, 1], [1, 1])
    0.25
    """
    p, q = (np.asarray(counts, dtype=np.float64) for counts in (first, second))
    if not p.sum() or not q.sum():
        raise ValueError("an empty histogram has no shares")
    return float(np.abs(p / p.sum() - q / q.sum()).sum() / 2)


def _sole_holders(going: Counts, staying: Counts, classes: Sequence[str], sites: Sequence[str]) -> dict[str, str]:
    """Name the only site that held a class, where that site gives some of it up."""
    held = (going + staying) > 0
    return {
        str(classes[index]): str(sites[int(np.flatnonzero(held[:, index])[0])])
        for index in np.flatnonzero((held.sum(axis=0) == 1) & (going.sum(axis=0) > 0)).tolist()
    }


def _reason(lost: list[str], scarce: list[str], holders: dict[str, str], skew: float, unsupported: float) -> str:
    parts = []
    if lost:
        parts.append(f"no record of {', '.join(lost)} stays ({unsupported:.0%} of what departs)")
    if scarce:
        parts.append(f"most records of {', '.join(scarce)} depart")
    parts += [f"{site} was the only holder of {name}" for name, site in holders.items()]
    parts.append(f"labels differ from the rest's by {skew:.2f} (total variation)")
    return "; ".join(parts)
