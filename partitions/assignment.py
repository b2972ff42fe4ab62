"""Steps that several splits share: order, candidates for training, holdout records that follow them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from partitions.errors import BadInput
from partitions.records import LoadedData
from partitions.seeds import generator
from partitions.splits.base import SplitSpec

Assignment = dict[str, np.ndarray]
"""Site name to int64 record numbers, in the order of the partition ids."""


def natural_order(names: Sequence[str]) -> list[str]:
    """Sort names so that ``patient-2`` comes before ``patient-10``; drops repeats."""
    return sorted(set(names), key=lambda name: [int(p) if p.isdecimal() else p for p in re.split(r"(\d+)", name)])


def numbered_sites(data: LoadedData, trainable: np.ndarray, spec: SplitSpec) -> list[str]:
    """Return ``site-0``, ``site-1``, ...; raises `BadInput` when there cannot be as many as asked.

    With ``sites=0`` there are as many as the data set has natural sites.
    """
    wanted = spec.sites or len(set(data.table["site"]) - {""})
    if not wanted:
        raise BadInput("sites", spec.sites, f"1 to {len(trainable)}", f"{data.name} has no sites of its own")
    if wanted > len(trainable):
        allowed = f"1 to {len(trainable)}, one training record a site"
        raise BadInput("sites", wanted, allowed, "ask for fewer sites, or raise cap")
    return [f"site-{number}" for number in range(wanted)]


def divide(data: LoadedData, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the records that may be trained on, and those that the provider holds out."""
    held = (data.table["split"].to_numpy()[indices] == "holdout").astype(bool)
    return indices[~held], indices[held]


def shuffled(indices: np.ndarray, seed: int, purpose: str) -> np.ndarray:
    """Return the records in a seeded order."""
    return generator(seed, purpose).permutation(indices)


def follow(data: LoadedData, training: Mapping[str, np.ndarray], held: np.ndarray, seed: int) -> Assignment:
    """Add held-out records to the sites: each class in proportion to the site's training records of it.

    A class that no site trains on goes by the sites' sizes. Returns the training and held-out records of each site.
    """
    sites = list(training)
    strata = data.table["stratum"].to_numpy()
    got: dict[str, list[np.ndarray]] = {site: [training[site]] for site in sites}
    for stratum in natural_order([str(s) for s in strata[held]]):
        records = shuffled(held[strata[held] == stratum], seed, f"split-holdout-{stratum}")
        weights = np.array([(strata[training[site]] == stratum).sum() for site in sites], dtype=float)
        if not weights.sum():
            weights = np.array([len(training[site]) for site in sites], dtype=float)
        ends = np.cumsum(shares(len(records), weights))
        for site, part in zip(sites, np.split(records, ends[:-1]), strict=True):
            got[site].append(part)
    return {site: np.concatenate(parts) for site, parts in got.items()}


def shares(total: int, weights: np.ndarray) -> np.ndarray:
    """Divide `total` things in proportion to `weights`, in whole numbers that sum to it (largest remainders)."""
    exact = total * weights / weights.sum()
    whole: np.ndarray = np.floor(exact).astype(np.int64)
    largest = np.argsort(-(exact - whole), kind="stable")[: total - int(whole.sum())]
    whole[largest] += 1
    return whole
