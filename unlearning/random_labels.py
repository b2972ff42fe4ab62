"""Random labels (baseline of Golatkar et al. 2020; METHODS 2.4): a wrong label for each record to forget."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

import numpy as np


def relabel(
    targets: np.ndarray, records: Sequence[str], num_classes: int, seed: int, forgotten: Collection[int] = ()
) -> np.ndarray:
    """Return a label other than the true one for each record, uniform over those that are left.

    A record's label follows from `seed` and its id alone, so it is the same in every round and at every site.

    Parameters
    ----------
    targets : ndarray
        True classes, integers of shape (n,).
    records : sequence of str
        Id of each record.
    num_classes : int
        Of the data set, whatever a site holds.
    seed : int
        Label seed.
    forgotten : collection of int
        Classes that no record gets while another one is left.

    Returns
    -------
    ndarray
        int64 of shape (n,).

    Raises
    ------
    ValueError
        When there is one class only.
    """
    if num_classes < 2:
        raise ValueError("with one class there is no wrong label")
    drawn = []
    for true, record in zip(targets.tolist(), records, strict=True):
        others = [c for c in range(num_classes) if c != true]
        left = [c for c in others if c not in forgotten] or others
        drawn.append(left[_number(f"{seed}|{record}") % len(left)])
    return np.array(drawn, dtype=np.int64)


def _number(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
