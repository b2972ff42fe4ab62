"""FedQUIT (Mora et al. 2024, arXiv 2408.07587; METHODS 1.8): distil from the model itself without the true class."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from unlearning.divergence import GROWTH
from unlearning.local import Batch, BatchNormMode, Engine, LocalRun, run_epochs
from unlearning.outputs import at_least_fp32, divergence, soft_targets


def quit_targets(logits: Tensor, y: Tensor, temperature: float) -> Tensor:
    """Return the teacher's probabilities after the true class was pushed down to the smallest logit.

    Parameters
    ----------
    logits : Tensor
        Global model's logits, shape (n, C) or (n, C, ...) with one class per position.
    y : Tensor
        True classes, int64, shape (n,) or (n, ...).
    temperature : float
        Softmax temperature, above 0.

    Returns
    -------
    Tensor
        fp32 (fp64 for fp64 logits), the shape of `logits`, summing to one over dimension 1. Where the true class has
        the smallest logit already, nothing changes; with two classes the target is uniform.
    """
    wide = at_least_fp32(logits.detach())
    return soft_targets(wide.scatter(1, y.unsqueeze(1), wide.amin(dim=1, keepdim=True)), temperature)


def quit_loss(logits: Tensor, targets: Tensor, temperature: float, scale_t2: bool) -> Tensor:
    """Return ``KL(targets || softmax(logits / T))``, averaged over records (and positions), times T^2 if asked."""
    value = divergence(logits, targets, temperature)
    return value * temperature**2 if scale_t2 else value


def distil(
    model: nn.Module,
    teacher: nn.Module,
    epochs: Iterable[Iterable[Batch]],
    *,
    temperature: float,
    scale_t2: bool,
    lr: float,
    momentum: float = 0.0,
    optimizer: Literal["sgd", "adam"] = "sgd",
    max_norm: float = 0.0,
    bn_mode: BatchNormMode = "train",
    engine: Engine | None = None,
    growth: float = GROWTH,
) -> LocalRun:
    """Distil `teacher` with suppressed true classes into `model`, in place, over the forget batches.

    Parameters
    ----------
    model, teacher : nn.Module
        Two modules with the same weights, wrapped or not; the teacher is put in eval mode and never changed.
    epochs : iterable of iterables of (x, y)
        The forget batches of each epoch, on the models' device.
    temperature : float
        Softmax temperature T of both.
    scale_t2 : bool
        Multiply the loss by T^2; the authors do not.
    lr, momentum, optimizer, max_norm, bn_mode, engine, growth
        As in `unlearning.local.run_epochs`.
    """
    teacher.eval()

    def objective(stepped: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            targets = quit_targets(teacher(x), y, temperature)
        return quit_loss(stepped(x), targets, temperature, scale_t2)

    return run_epochs(
        model,
        objective,
        epochs,
        lr=lr,
        momentum=momentum,
        optimizer=optimizer,
        max_norm=max_norm,
        bn_mode=bn_mode,
        engine=engine,
        growth=growth,
    )
