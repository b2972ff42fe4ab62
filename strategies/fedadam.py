"""FedAdam's server step (Reddi et al. 2020, arXiv 2003.00295), with moments that can be stored and restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from unlearning.federaser import mean_update
from unlearning.state import State, Tensors, Update, apply_updates


@dataclass
class ServerAdam:
    """Adam on the averaged update; parameters only, since an adaptive step could make a variance negative.

    Attributes
    ----------
    lr : float
        Server learning rate.
    beta_1, beta_2, tau : float
        As in Flower's `FedAdam`, whose bias correction this follows.
    first, second : dict of str to Tensor
        The moments, fp64.
    """

    lr: float
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3
    first: Tensors = field(default_factory=dict)
    second: Tensors = field(default_factory=dict)

    def step(self, state: State, updates: Sequence[Update], weights: Sequence[float], round_: int) -> State:
        """Return the next state; float buffers are averaged plainly, integer buffers copied."""
        averaged = apply_updates(state, updates, weights)
        delta = {n: t.double() for n, t in mean_update(updates, weights).params.items()}
        self.first = {n: self.beta_1 * self._zero(self.first, n, d) + (1 - self.beta_1) * d for n, d in delta.items()}
        self.second = {
            n: self.beta_2 * self._zero(self.second, n, d) + (1 - self.beta_2) * d * d for n, d in delta.items()
        }
        rate = self.lr * (1 - self.beta_2 ** (round_ + 1)) ** 0.5 / (1 - self.beta_1 ** (round_ + 1))
        params = {
            n: (t.double() + rate * self.first[n] / (self.second[n].sqrt() + self.tau)).to(t.dtype)
            for n, t in state.params.items()
        }
        return State(params, averaged.float_buffers, averaged.int_buffers)

    @staticmethod
    def _zero(moments: Mapping[str, torch.Tensor], name: str, like: torch.Tensor) -> torch.Tensor:
        return moments[name] if name in moments else torch.zeros_like(like)
