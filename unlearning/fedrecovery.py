"""FedRecovery (Zhang et al. 2023, TIFS; METHODS 1.10): subtract what the departed added to each round, then add noise.

The definition is the paper's, the algebra is derived from it (the paper's own could not be read). Parameters only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from unlearning.state import Tensors

NOBODY = 1e-6
"""A share of the others below this is nobody's."""


def aggregate_without(aggregate: Tensors, updates: Sequence[Tensors], shares: Sequence[float]) -> Tensors:
    """Return the step that a round would have taken without some of its participants.

    Parameters
    ----------
    aggregate : dict of str to Tensor
        The round's weighted mean update, ``Delta``.
    updates : sequence of dict of str to Tensor
        Updates of those to leave out, ``Delta_u``.
    shares : sequence of float
        Their weights in the aggregate, ``p_u``.

    Returns
    -------
    dict of str to Tensor
        ``(Delta - sum_u p_u Delta_u) / (1 - sum_u p_u)`` in fp64; zeros where nobody else took part.
    """
    left = 1.0 - sum(shares)
    if left < NOBODY:
        return {name: 0.0 * t.double() for name, t in aggregate.items()}
    parts = list(zip(updates, shares, strict=True))
    return {
        name: (t.double() - sum((share * update[name].double() for update, share in parts), start=0.0 * t.double()))
        / left
        for name, t in aggregate.items()
    }


def residual(with_them: Tensors, without_them: Tensors) -> Tensors:
    """Return what some participants added to a round's step, in fp64."""
    return {name: t.double() - without_them[name].double() for name, t in with_them.items()}


class Correction:
    """The weighted sum of residuals, taken up round by round.

    Parameters
    ----------
    weights : {"norm", "sum"}
        "norm": ``a_t = ||Delta_t||^2 / sum_s ||Delta_s||^2``, equal where no round moved: the correction has the size
        of one round's residual. "sum": ``a_t = 1``, the whole replay.
    """

    def __init__(self, weights: Literal["norm", "sum"]) -> None:
        self._weights, self._rounds, self._total = weights, 0, 0.0
        self._weighted: Tensors = {}
        self._plain: Tensors = {}

    def add(self, squared_norm: float, added: Tensors | None) -> None:
        """Take up a round: the squared norm of its aggregate, and its residual; None where they took no part."""
        self._rounds, self._total = self._rounds + 1, self._total + squared_norm
        for name, tensor in (added or {}).items():
            self._weighted[name] = self._weighted.get(name, 0.0) + squared_norm * tensor
            self._plain[name] = self._plain.get(name, 0.0) + tensor

    def value(self) -> Tensors:
        """Return ``sum_t a_t r_t`` in fp64; empty where they took part in no round."""
        if self._weights == "sum":
            return dict(self._plain)
        if self._total == 0.0:
            return {name: t / self._rounds for name, t in self._plain.items()}
        return {name: t / self._total for name, t in self._weighted.items()}


def corrected(params: Tensors, correction: Tensors, strength: float) -> Tensors:
    """Return ``params - strength * correction`` in the dtype of `params`; what has no correction stays."""
    return {
        name: (t.double() - strength * correction[name]).to(t.dtype) if name in correction else t.clone()
        for name, t in params.items()
    }


def privacy_sigma(sensitivity: float, epsilon: float, beta: float) -> float:
    """Return the deviation ``d / (sqrt(2) (sqrt(ln(1/beta) + epsilon) - sqrt(ln(1/beta))))``.

    It solves ``d^2 / (2 s^2) + (d / s) sqrt(2 ln(1/beta)) = epsilon``. The formula is from third-party code; the
    paper's guarantee also asks for a perturbed training, which there was not.

    Parameters
    ----------
    sensitivity : float
        Bound d on the distance to the retrained model, at least 0.
    epsilon, beta : float
        Above 0; `beta` below 1.
    """
    tail = math.log(1.0 / beta)
    return sensitivity / (math.sqrt(2.0) * (math.sqrt(tail + epsilon) - math.sqrt(tail)))
