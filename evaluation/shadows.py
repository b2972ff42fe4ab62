"""What shadow and reference models say about the challenged records of a request (METRICS 1.3 to 1.5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluation.metrics.intervals import Floats


@dataclass(frozen=True, eq=False)
class Shadows:
    """Phi, in nats, of shadow federations and retrained references on the challenged records of one request.

    Attributes
    ----------
    records : tuple of str, length n
        The challenged records, sorted.
    unlearned : ndarray of bool, shape (n,)
        Whether the target run trained on the record and was to forget it; otherwise it never saw it.
    clients : ndarray of str, shape (n,)
        Site of each record.
    forgotten : ndarray of bool, shape (S, n)
        Whether a shadow trained on the record and was to forget it.
    trained : ndarray of float, shape (S, n)
        Phi of the shadows as trained, before they forget: the worlds of LiRA.
    forgot : ndarray of float, shape (S, n), or None
        Phi of the shadows after the model's own method, at its checkpoint; None for the original, and for gold.
    retrained : ndarray of float, shape (R, n)
        Phi of the references: retrained without the request, other seeds, at the model's checkpoint.
    seed_gaps : tuple of float
        L2 distance of gold's parameters to each reference's at that checkpoint.
    reason : str
        Why something is missing: a shadow of the method that diverged, or without records all of it.
    """

    records: tuple[str, ...]
    unlearned: NDArray[np.bool_]
    clients: NDArray[np.str_]
    forgotten: NDArray[np.bool_]
    trained: Floats
    forgot: Floats | None
    retrained: Floats
    seed_gaps: tuple[float, ...] = ()
    reason: str = ""

    @classmethod
    def none(cls, reason: str) -> Shadows:
        """Return the shadows of a request that cannot have any, for that reason."""
        empty, no_records = np.zeros((0, 0)), np.zeros(0, dtype=bool)
        return cls((), no_records, np.zeros(0, dtype=str), empty.astype(bool), empty, None, empty, (), reason)
