"""Bad Teacher (Chundawat et al. 2023, AAAI; METHODS 2.3): forget records are taught by a network that knows nothing."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from unlearning.local import Objective
from unlearning.outputs import divergence, soft_targets


def two_teachers(
    bad: nn.Module, good: nn.Module, *, temperature: float, reduction: Literal["batchmean", "mean"] = "batchmean"
) -> Objective:
    """Return ``KL(q || softmax(f(x) / T))`` of a batch (x, forget), with q from the teacher that each record has.

    Parameters
    ----------
    bad, good : nn.Module
        Teachers of the records to forget (freshly initialised) and of the others (the model that is to forget); put in
        eval mode and never changed.
    temperature : float
        T of all three, above 0; there is no factor of T^2.
    reduction : {"batchmean", "mean"}
        "batchmean" is a divergence in nats; "mean", as in the authors' code, divides it by the number of classes.

    Notes
    -----
    In a batch (x, forget), `forget` is a bool tensor of shape (n,). Logits have shape (n, C) or (n, C, ...).
    """
    bad.eval()
    good.eval()

    def objective(model: nn.Module, x: Tensor, forget: Tensor) -> Tensor:
        with torch.no_grad():
            wrong, right = soft_targets(bad(x), temperature), soft_targets(good(x), temperature)
            targets = torch.where(forget.view(-1, *[1] * (wrong.dim() - 1)), wrong, right)
        value = divergence(model(x), targets, temperature)
        return value / targets.shape[1] if reduction == "mean" else value

    return objective
