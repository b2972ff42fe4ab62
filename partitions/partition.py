"""A partition: which site has which record, to train on or held out."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

import numpy as np

from partitions.assignment import Assignment
from partitions.catalogue import SPLITS
from partitions.errors import BadInput
from partitions.records import LoadedData, hash_ranks
from partitions.sole_holder import keep_sole_holder
from partitions.splits.base import SplitSpec

__all__ = ["Partition", "SplitSpec", "make_partition"]

ENOUGH_FOR_HOLDOUT = 5
"""A class with as many records at a site has at least one held out there."""


@dataclass(frozen=True)
class Partition:
    """Records of each site; every record is at one site, in the reference set, or counted as dropped.

    Attributes
    ----------
    sites : tuple of str
        Names, in the order of the partition ids.
    train, holdout : dict of str to ndarray
        Record numbers of each site, int64, ascending; no site has an empty `train`.
    reference : ndarray
        Record numbers of the coordinator's reference set.
    dropped : int
        Records that a sole holder displaced.
    fingerprint : str
        Hex SHA-256 of the data and of which record is where.
    """

    sites: tuple[str, ...]
    train: dict[str, np.ndarray]
    holdout: dict[str, np.ndarray]
    reference: np.ndarray
    dropped: int
    fingerprint: str


def make_partition(data: LoadedData, spec: SplitSpec) -> Partition:
    """Spread the records of a data set over sites.

    Records that the provider holds out stay held out at whatever site they come to; where the provider holds nothing
    out, each site holds out its own share of every class, chosen by hash.

    Raises
    ------
    BadInput
        For a split that the data cannot have, naming what it can: a site without a record to train on, for one.
    """
    _check_ranges(spec)
    official = data.table["split"].to_numpy()
    everyone = np.arange(len(data.table), dtype=np.int64)
    assignment = SPLITS.get(spec.name).assign(data, everyone[official != "reference"], spec)
    assignment, dropped = keep_sole_holder(data, assignment, spec.sole_holder)
    held = {site: _held_out(data, own, spec) for site, own in assignment.items()}
    train = {site: np.sort(own[~held[site]]) for site, own in assignment.items()}
    holdout = {site: np.sort(own[held[site]]) for site, own in assignment.items()}
    _refuse_empty(train, holdout, spec)
    reference = everyone[official == "reference"]
    return Partition(
        tuple(assignment), train, holdout, reference, dropped, _fingerprint(data, spec, train, holdout, reference)
    )


def _check_ranges(spec: SplitSpec) -> None:
    if spec.sites < 0:
        raise BadInput("sites", spec.sites, "0 (as many as the split has) or more")
    if not 0 <= spec.holdout <= 0.9:
        raise BadInput("holdout", spec.holdout, "0 to 0.9")
    if not 0 < spec.alpha < float("inf"):
        raise BadInput("alpha", spec.alpha, "a number above 0")


def _held_out(data: LoadedData, own: np.ndarray, spec: SplitSpec) -> np.ndarray:
    """Mark the records of one site that are held out: the provider's, else a share of each class, by hash.

    A record's hash depends on its id and the seed only, and a site always keeps a record to train on.
    """
    official = data.table["split"].to_numpy()[own]
    held: np.ndarray = (official == "holdout").astype(bool)
    if spec.holdout == 0 or not (official == "").any():
        return held
    open_ = np.flatnonzero(official == "")
    strata = data.table["stratum"].to_numpy()[own[open_]]
    ranks = hash_ranks(spec.seed, "holdout", data.table["record"].to_numpy()[own[open_]])
    for stratum in np.unique(strata.astype(str)):
        members = open_[strata == stratum]
        order = members[np.argsort(ranks[strata == stratum], kind="stable")]
        least = 1 if len(members) >= ENOUGH_FOR_HOLDOUT else 0
        held[order[: max(least, round(spec.holdout * len(members)))]] = True
    if held.all():
        held[open_[np.argmax(ranks)]] = False
    return held


def _refuse_empty(train: Assignment, holdout: Assignment, spec: SplitSpec) -> None:
    empty = [site for site, own in train.items() if not len(own)]
    if empty:
        why = "all its records are held out" if len(holdout[empty[0]]) else "it has no record"
        remedy = "name another sole-holder" if spec.sole_holder else "ask for fewer sites, or raise cap"
        raise BadInput(
            "split", spec.name, f"one that leaves every site a record to train on; {empty[0]}: {why}", remedy
        )


def _fingerprint(
    data: LoadedData, spec: SplitSpec, train: Assignment, holdout: Assignment, reference: np.ndarray
) -> str:
    digest = hashlib.sha256(f"{data.fingerprint}|{json.dumps(asdict(spec))}".encode())
    for part, sites in (("train", train), ("holdout", holdout), ("reference", {"": reference})):
        for site, own in sites.items():
            digest.update(f"|{part}|{site}|".encode())
            digest.update(own.astype("<i8").tobytes())
    return digest.hexdigest()
