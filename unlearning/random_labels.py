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
        Classes that no record may get.

    Returns
    -------
    ndarray
        int64 of shape (n,).

    Raises
    ------
    ValueError
        When no class is left for a record.
    """
    return np.array(
        [
            _draw([c for c in range(num_classes) if c != true and c not in forgotten], f"{seed}|{record}")
            for true, record in zip(targets.tolist(), records, strict=True)
        ],
        dtype=np.int64,
    )


def _draw(classes: list[int], key: str) -> int:
    if not classes:
        raise ValueError("no class is left that a forget record could be given")
    number = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
    return classes[number % len(classes)]
