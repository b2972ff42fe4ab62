"""Advanced NegGrad (Choi & Na 2023, arXiv 2311.02240; METHODS 2.9): learn and unlearn in the same step."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from unlearning.local import Objective
from unlearning.outputs import Given


def retain_minus_forget(
    loss: Objective, *, forget_weight: float = 1.0, cap: float = math.inf, joint: bool = False
) -> Objective:
    """Return ``L(retain) - forget_weight * min(L(forget), cap)`` of a pair of batches (xf, yf, xr, yr).

    Parameters
    ----------
    loss : callable
        ``(model, x, y) -> scalar Tensor``, the mean task loss.
    forget_weight : float
        1 in the original; 0 trains on the retain batches alone.
    cap : float
        In the unit of the loss. A forget batch beyond it has no gradient (our choice; none in the original).
    joint : bool
        One forward pass over both batches, so that BatchNorm sees them together; else retain, then forget.
    """

    def objective(model: nn.Module, xf: Tensor, yf: Tensor, xr: Tensor, yr: Tensor) -> Tensor:
        if joint:
            outputs = model(torch.cat([xr, xf]))
            retain, forget = loss(Given(outputs[: len(xr)]), xr, yr), loss(Given(outputs[len(xr) :]), xf, yf)
        else:
            retain, forget = loss(model, xr, yr), loss(model, xf, yf)
        return retain - forget_weight * forget.clamp(max=cap)

    return objective
