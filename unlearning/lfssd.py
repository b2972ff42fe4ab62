"""Loss-free SSD (Foster et al. 2024; METHODS 2.7): importance from the size of the outputs, without labels."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from unlearning.local import Batch
from unlearning.ssd import Importance, importance


def output_energy(model: nn.Module, x: Tensor, *_: Tensor) -> Tensor:
    """Return the squared L2 norm of a record's raw outputs, averaged over the batch; targets are not looked at."""
    outputs: Tensor = model(x)
    return outputs.flatten(1).square().sum(dim=1).mean()


def sensitivity(model: nn.Module, batches: Iterable[Batch]) -> Importance:
    """Sum the absolute (not the squared) gradient of `output_energy`; see `unlearning.ssd.importance`."""
    return importance(model, output_energy, batches, torch.abs)
