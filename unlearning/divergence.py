"""When a local step has gone too far, and the way back (METHODS 5): no method goes on from a useless state."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

GROWTH = 10.0


def norm_of(model: nn.Module) -> float:
    """Return the L2 norm over the parameters of `model`, accumulated in fp64 (fp32 where a device has no fp64)."""
    squares = [widened(p).pow(2).sum() for p in model.parameters()]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def too_far(norm: float, start_norm: float, growth: float = GROWTH) -> bool:
    """Tell whether `norm` is not finite or at least `growth` times the start's (a start of zero may grow)."""
    return not math.isfinite(norm) or (start_norm > 0 and norm >= growth * start_norm)


def growth_of(before: float, after: float, growth: float = GROWTH) -> str:
    """Return, in words, that a parameter norm went `too_far`; empty when it did not."""
    return f"the parameter norm went from {before:.3g} to {after:.3g}" if too_far(after, before, growth) else ""


def widened(tensor: Tensor) -> Tensor:
    """Return a tensor in fp64 (fp32 where a device has no fp64), without gradient."""
    return tensor.detach().float() if tensor.device.type == "mps" else tensor.detach().double()


class DivergenceGuard:
    """Keeps the last usable state of a model: finite loss, and a parameter norm below `growth` times the start's.

    Parameters
    ----------
    model : nn.Module
        The model that is stepped; wrapped or not.
    growth : float
        Allowed growth of the parameter norm.

    Notes
    -----
    The order of calls is `loss_is_usable` (keeps the state when it is), the optimiser's step, `step_is_usable`. Each
    puts the last usable state back before it answers False; before any usable loss that is the start.
    """

    def __init__(self, model: nn.Module, growth: float = GROWTH) -> None:
        self._tensors: list[Tensor] = [*model.parameters(), *model.buffers()]
        self._kept = [t.detach().clone() for t in self._tensors]
        self._model, self._growth, self._start = model, growth, norm_of(model)
        self.reason = ""

    def loss_is_usable(self, loss: Tensor) -> bool:
        """Keep the current state when its `loss` is finite, else go back."""
        if not bool(torch.isfinite(loss.detach())):
            return self._go_back("the loss is not finite")
        self._copy(self._tensors, self._kept)
        return True

    def step_is_usable(self) -> bool:
        """Tell whether the parameters after a step are finite and not too far, else go back."""
        why = growth_of(self._start, norm_of(self._model), self._growth)
        return self._go_back(why) if why else True

    def _go_back(self, reason: str) -> bool:
        self.reason = reason
        self._copy(self._kept, self._tensors)
        return False

    @staticmethod
    def _copy(source: list[Tensor], target: list[Tensor]) -> None:
        with torch.no_grad():
            for a, b in zip(source, target, strict=True):
                b.copy_(a)
