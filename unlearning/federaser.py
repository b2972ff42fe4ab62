"""FedEraser (Liu et al. 2021, IWQoS; METHODS 1.4): the stored update's length in a freshly computed direction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from unlearning.state import Tensors, Update, norm

NormScope = Literal["tensor", "model"]


def retained_rounds(rounds: Sequence[int], interval: int) -> list[int]:
    """Return the rounds to replay: every `interval`-th of the usable `rounds`, the first one included."""
    return list(rounds)[::interval]


def calibration_epochs(local_epochs: int, ratio: float) -> int:
    """Return ``max(1, ceil(ratio * local_epochs))``."""
    return max(1, math.ceil(ratio * local_epochs))


def calibrate(stored: Update, fresh: Update, norm_scope: NormScope) -> Update:
    """Return an update as long as `stored` that points where `fresh` points.

    Parameters
    ----------
    stored, fresh : Update
        The same site's recorded update and its update from the calibrated state.
    norm_scope : {"tensor", "model"}
        One length per parameter tensor (original), or one for all parameters (the FedQUIT authors' code).

    Returns
    -------
    Update
        Parameters rescaled (norms in fp64). Where `fresh` does not move, the stored direction stays: there is no 0/0.
        Float buffers are those of `fresh`, unscaled.
    """
    if norm_scope == "model":
        lengths = dict.fromkeys(stored.params, (norm(stored.params), norm(fresh.params)))
    else:
        lengths = {n: (norm({n: stored.params[n]}), norm({n: fresh.params[n]})) for n in stored.params}
    params: Tensors = {
        name: _rescale(stored.params[name], fresh.params[name], *length) for name, length in lengths.items()
    }
    return Update(params, fresh.float_buffers)


def mean_update(updates: Sequence[Update], weights: Sequence[float]) -> Update:
    """Return ``sum_k weights[k] * updates[k]``, accumulated in fp64."""
    return Update(
        _weighted([u.params for u in updates], weights), _weighted([u.float_buffers for u in updates], weights)
    )


def _rescale(stored: Tensor, fresh: Tensor, stored_norm: float, fresh_norm: float) -> Tensor:
    if fresh_norm == 0.0:
        return stored.clone()
    return (fresh.double() * (stored_norm / fresh_norm)).to(stored.dtype)


def _weighted(groups: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
    return {
        name: sum((w * g[name].double() for g, w in zip(groups, weights, strict=True)), start=0 * first.double()).to(
            first.dtype
        )
        for name, first in groups[0].items()
    }
