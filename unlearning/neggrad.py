"""NegGrad (baseline of Golatkar et al. 2020, arXiv 1911.04933; METHODS 2.8): descend the negated task loss."""

from __future__ import annotations

from torch import Tensor, nn

from unlearning.local import Objective


def negated(loss: Objective) -> Objective:
    """Return ``-loss``, to be minimised on forget batches.

    Parameters
    ----------
    loss : callable
        ``(model, x, y) -> scalar Tensor``, the mean task loss. It is unbounded above, so steps along the result may
        diverge.
    """

    def objective(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return -loss(model, x, y)

    return objective
