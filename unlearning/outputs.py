"""Class outputs that are compared: soft targets, their divergence, and a loss on outputs that are there already."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div


class Given(nn.Module):
    """A model that answers with outputs computed before, so that a loss costs no second forward pass."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self._outputs = outputs

    def forward(self, _: Tensor) -> Tensor:
        """Return the outputs."""
        return self._outputs


def soft_targets(logits: Tensor, temperature: float) -> Tensor:
    """Return ``softmax(logits / T)`` over dimension 1, without gradient; fp32, fp64 for fp64 logits."""
    return torch.softmax(at_least_fp32(logits.detach()) / temperature, dim=1)


def divergence(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Return ``KL(targets || softmax(logits / T))`` in nats, averaged over records (and positions); a scalar.

    Parameters
    ----------
    logits : Tensor
        Shape (n, C) or (n, C, ...) with one class per position.
    targets : Tensor
        Probabilities of the same shape; where they are 0 they add nothing.
    temperature : float
        Softmax temperature, above 0.
    """
    log_student = torch.log_softmax(at_least_fp32(logits) / temperature, dim=1)
    return kl_div(log_student, targets, reduction="none").sum(dim=1).mean()


def at_least_fp32(tensor: Tensor) -> Tensor:
    """Return 16-bit outputs in fp32, others as they are: softmax and logarithms want the digits."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
