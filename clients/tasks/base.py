"""What a task is: the model, the loss and the per-record scores of one family. Nothing else knows about labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from torch import Tensor, nn

SCORES = ("metric", "loss", "phi", "entropy", "hinge")
"""Columns of a scorecard that `Task.scores` fills."""

DIVERGENCES = ("kl", "kl_t4", "js", "js_supreme", "actdist", "agree")
"""Columns of a comparison that `Task.divergences` fills."""


class Task(Protocol):
    """A task family.

    Attributes
    ----------
    name, title : str
        Name in manifests, and one line for people.
    metric_name : str
        Per-record metric, for example ``"accuracy"``.
    higher_is_better : bool
        Direction of the metric.
    has_logits : bool
        Whether the model gives class logits.
    preparation : str
        What `to_inputs` does, for people.
    """

    name: str
    title: str
    metric_name: str
    higher_is_better: bool
    has_logits: bool
    preparation: str

    def build(self, model_name: str, data_shape: Sequence[int], num_classes: int) -> nn.Module:
        """Return a freshly initialised model, from torch's global random stream.

        Parameters
        ----------
        model_name : str
            A name in the registry of models; raises `BadInput` when there is none.
        data_shape : sequence of int
            Shape of one stored record, for example (28, 28) or (28, 28, 3).
        num_classes : int
            Number of classes of the data set, whatever a site holds.
        """

    def to_inputs(self, batch: np.ndarray | Tensor) -> Tensor:
        """Turn stored records (n, ...) uint8 into float32 model inputs, on the device of `batch`."""

    def to_targets(self, batch: np.ndarray) -> Tensor:
        """Turn stored targets into what `loss` takes."""

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss over the batch, a scalar, through ``model(x)``."""

    def loss_and_metric(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss, and the mean metric without gradient, of one forward pass."""

    def outputs(self, model: nn.Module, x: Tensor) -> Tensor:
        """Return what `scores` and `divergences` are computed from, on the CPU, one row a record: such as logits."""

    def scores(self, outputs: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return each record's `SCORES`, float64 of shape (n,); NaN where the outputs are not finite."""

    def divergences(self, outputs: Tensor, others: Tensor) -> dict[str, Tensor]:
        """Return each record's `DIVERGENCES` of one model's outputs from another's, float64 of shape (n,)."""
