"""A backdoor planted in one site's training records: which carry the trigger, and what it looks like (METRICS 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partitions.errors import BadInput
from partitions.records import hash_ranks

CHANNELS = (1, 3, 4)
"""Lengths of a last axis that is colour; any other last axis of three is a side of a volume."""


@dataclass(frozen=True)
class Backdoor:
    """A trigger and the class it stands for, planted at one site.

    The trigger is a square, in a volume a cube, of the largest value that a stored record can have, in the corner where
    every axis of the image ends: bottom right. It is part of the stored record, so padding and normalising come after.

    Attributes
    ----------
    site : str
        The site whose training records are poisoned.
    target : int
        Class index that poisoned records are labelled with.
    fraction : float
        Share, above 0 to 1, of the site's training records of other classes that are poisoned; at least one is.
    size : int
        Side of the trigger in pixels, from 1.
    seed : int
        Of which records they are.
    """

    site: str
    target: int
    fraction: float = 0.5
    size: int = 3
    seed: int = 0

    def poisoned(self, records: Sequence[str] | np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Choose what is poisoned: the smallest seeded hashes among the records of other classes.

        Parameters
        ----------
        records : sequence of str, length n
            Ids of the site's training records.
        targets : ndarray of int, shape (n,)
            Their true classes.

        Returns
        -------
        ndarray of bool, shape (n,)
            Independent of the order of the records; nothing where all are of the target class.
        """
        chosen = np.zeros(len(targets), dtype=bool)
        others = np.flatnonzero(targets != self.target)
        if not len(others):
            return chosen
        ranks = hash_ranks(self.seed, "backdoor", np.asarray(records)[others])
        count = max(1, round(self.fraction * len(others)))
        chosen[others[np.argsort(ranks, kind="stable")[:count]]] = True
        return chosen

    def check(self, shape: Sequence[int], num_classes: int) -> None:
        """Refuse a class that the data set does not have, and a trigger larger than a record of `shape`."""
        if not 0 <= self.target < num_classes:
            raise BadInput("backdoor-target", self.target, f"a class index, 0 to {num_classes - 1}")
        side = min(shape[: spatial_axes(shape)])
        if not 1 <= self.size <= side:
            stored = " x ".join(str(length) for length in shape)
            raise BadInput("backdoor-size", self.size, f"1 to {side} pixels: a stored record is {stored}")


def spatial_axes(shape: Sequence[int]) -> int:
    """Return how many leading axes of a record are sides of the image: (H, W), (H, W, C), (D, H, W), (D, H, W, C).

    >>> [spatial_axes(shape) for shape in ((28, 28), (28, 28, 3), (28, 28, 28), (28, 28, 28, 1))]
    [2, 2, 3, 3]
    """
    return 2 if len(shape) == 2 or (len(shape) == 3 and shape[-1] in CHANNELS) else 3


def stamp(records: np.ndarray, size: int) -> np.ndarray:
    """Return a copy of stored records (n, ...), of an integer dtype, with the trigger in every channel."""
    stamped = records.copy()
    corner = (slice(None), *[slice(-size, None)] * spatial_axes(records.shape[1:]))
    stamped[corner] = np.iinfo(records.dtype).max
    return stamped


class Triggered:
    """Stored records of which some get the trigger when they are read; the array itself, often a map, stays as it is.

    Parameters
    ----------
    inputs : ndarray, shape (n, ...)
        Records of an integer dtype.
    marked : ndarray of int
        Positions of those that get it.
    size : int
        Side of the trigger in pixels.
    """

    def __init__(self, inputs: np.ndarray, marked: np.ndarray, size: int) -> None:
        self._inputs, self._size = inputs, size
        self._marked = np.zeros(len(inputs), dtype=bool)
        self._marked[marked] = True

    def take(self, indices: np.ndarray, axis: int = 0) -> np.ndarray:
        """Return a copy of the records at `indices`; like `numpy.ndarray.take`, along the first axis only."""
        if axis:
            raise ValueError(f"records are taken along axis 0, not {axis}")
        rows: np.ndarray = np.asarray(self._inputs).take(indices, axis=0)
        marked = self._marked[indices]
        rows[marked] = stamp(rows[marked], self._size)
        return rows
