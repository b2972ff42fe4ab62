"""Gradient ascent on the forget records (METHODS 1.2): the baseline that climbs the task loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from torch import nn

from unlearning.divergence import GROWTH
from unlearning.local import Batch, BatchNormMode, Engine, LocalRun, Objective, run_epochs
from unlearning.neggrad import negated


def ascend(
    model: nn.Module,
    loss: Objective,
    epochs: Iterable[Iterable[Batch]],
    *,
    lr: float,
    momentum: float = 0.0,
    max_norm: float = 0.0,
    bn_mode: BatchNormMode = "eval",
    engine: Engine | None = None,
    growth: float = GROWTH,
    after_step: Callable[[], bool] | None = None,
    after_epoch: Callable[[int], bool] | None = None,
) -> LocalRun:
    """Take the steps ``w <- w + lr * clip(grad loss(w; batch))`` on `model`, in place.

    Parameters
    ----------
    model : nn.Module
        Changed in place, wrapped or not.
    loss : callable
        ``(model, x, y) -> scalar Tensor``, the mean task loss.
    epochs : iterable of iterables of (x, y)
        The forget batches of each epoch, on the model's device.
    lr, momentum, max_norm, bn_mode, engine, growth, after_step, after_epoch
        As in `unlearning.local.run_epochs`. There is no weight decay: a decay term plus a negated loss is neither.

    Returns
    -------
    LocalRun
        Its `loss` is the task loss (not the negated one), averaged over steps.
    """
    run = run_epochs(
        model,
        negated(loss),
        epochs,
        lr=lr,
        momentum=momentum,
        max_norm=max_norm,
        bn_mode=bn_mode,
        engine=engine,
        growth=growth,
        after_step=after_step,
        after_epoch=after_epoch,
    )
    return replace(run, loss=-run.loss)
