"""Two-layer perceptrons, without and with BatchNorm."""

from __future__ import annotations

from math import prod

from torch import nn

WIDTH = 16


class Perceptron:
    """A network of two linear layers."""

    def __init__(self, name: str, batch_norm: bool) -> None:
        self.name, self.title, self._batch_norm = name, "two-layer perceptron", batch_norm

    def build(self, input_shape: tuple[int, int, int], outputs: int) -> nn.Module:
        """Return the network; see `clients.models.base.Model.build`."""
        norm = [nn.BatchNorm1d(WIDTH)] if self._batch_norm else []
        first = nn.Linear(prod(input_shape), WIDTH)
        return nn.Sequential(nn.Flatten(), first, *norm, nn.ReLU(), nn.Linear(WIDTH, outputs))


MLP = Perceptron("mlp", False)
MLP_BN = Perceptron("mlp-bn", True)
