"""The guarded local loop that ascent and distillation share: modes, clipping, roll back. Pure torch, no data access."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, Adam, Optimizer

from unlearning.divergence import GROWTH, DivergenceGuard

Batch = tuple[Tensor, ...]
"""Inputs and targets; in a pair of batches the second one's after the first one's."""
Objective = Callable[..., Tensor]
"""``(model, *batch) -> scalar Tensor``."""
BatchNormMode = Literal["eval", "train"]


class Engine(Protocol):
    """How a step is taken: a Lightning `Fabric` is one, `PlainTorch` another."""

    def setup_optimizers(self, *optimizers: Optimizer) -> Any:
        """Wrap the optimiser."""

    def backward(self, tensor: Tensor) -> None:
        """Run the backward pass, scaled where the precision asks for it."""

    def clip_gradients(
        self, module: nn.Module, optimizer: Optimizer, *, max_norm: float, error_if_nonfinite: bool
    ) -> Any:
        """Clip the gradients' total L2 norm."""


class PlainTorch:
    """The engine without a framework."""

    def setup_optimizers(self, *optimizers: Optimizer) -> Optimizer:
        """Return the optimiser as it is."""
        return optimizers[0]

    def backward(self, tensor: Tensor) -> None:
        """Run the backward pass."""
        torch.autograd.backward(tensor)

    def clip_gradients(
        self, module: nn.Module, optimizer: Optimizer, *, max_norm: float, error_if_nonfinite: bool
    ) -> Tensor:
        """Clip the gradients' total L2 norm."""
        return nn.utils.clip_grad_norm_(module.parameters(), max_norm, error_if_nonfinite=error_if_nonfinite)


@dataclass(frozen=True)
class LocalRun:
    """What a local loop did.

    Attributes
    ----------
    status : {"ok", "diverged"}
        On "diverged" the model holds its last usable state.
    reason : str
        Why it diverged.
    steps, examples : int
        Gradient steps taken and records processed, the rolled-back step included.
    loss : float
        Mean of the finite losses of the steps; NaN when there was none.
    """

    status: Literal["ok", "diverged"]
    reason: str
    steps: int
    examples: int
    loss: float


def run_epochs(
    model: nn.Module,
    objective: Objective,
    epochs: Iterable[Iterable[Batch]],
    *,
    lr: float | Callable[[int], float],
    momentum: float = 0.0,
    optimizer: Literal["sgd", "adam"] = "sgd",
    weight_decay: float = 0.0,
    max_norm: float = 0.0,
    bn_mode: BatchNormMode = "eval",
    engine: Engine | None = None,
    growth: float = GROWTH,
    adjust: Callable[[], None] | None = None,
    after_step: Callable[[], bool | None] | None = None,
    after_epoch: Callable[[int], bool] | None = None,
) -> LocalRun:
    """Minimise ``objective(model, *batch)`` with a fresh optimiser, and stop at the last usable state.

    Parameters
    ----------
    model : nn.Module
        Changed in place; the Fabric-wrapped module where `engine` is a Fabric.
    objective : callable
        ``(model, *batch) -> scalar Tensor``.
    epochs : iterable of iterables of tuples of Tensor
        The batches of each epoch, on the model's device: inputs at the even places, what belongs to them at the odd.
    lr, momentum, weight_decay : float
        Of SGD; Adam takes no momentum. `lr` may be a function of the number of the epoch, from 1.
    max_norm : float
        Clip of the gradients' L2 norm; 0: none.
    bn_mode : {"eval", "train"}
        Mode of BatchNorm layers; the rest of the model is in train mode. A batch of one record is always "eval".
    growth : float
        See `DivergenceGuard`.
    adjust : callable, optional
        Changes the gradients in place, after the backward pass and before they are clipped.
    after_step : callable, optional
        Changes the parameters in place after each step, for example a projection; True ends the run there.
    after_epoch : callable, optional
        Told the number of the epoch that is done, from 1; True ends the run there.
    """
    engine = engine or PlainTorch()
    parameters = [p for p in model.parameters() if p.requires_grad]
    rate = lr if callable(lr) else None
    stepping = _fresh(optimizer, parameters, lr(1) if callable(lr) else lr, momentum, weight_decay)
    wrapped = engine.setup_optimizers(stepping)
    guard = DivergenceGuard(model, growth)
    losses: list[float] = []
    steps = examples = 0
    usable, stopped, last = True, False, None
    for number, epoch in enumerate(epochs, start=1):
        if rate is not None:
            for group in stepping.param_groups:
                group["lr"] = rate(number)
        for batch in epoch:
            inputs = batch[::2]
            set_modes(model, "eval" if any(len(x) == 1 for x in inputs) else bn_mode)
            wrapped.zero_grad()
            loss = objective(model, *batch)
            usable = guard.loss_is_usable(loss)
            if not usable:
                break
            losses.append(float(loss.detach()))
            engine.backward(loss)
            if adjust is not None:
                adjust()
            if max_norm:
                engine.clip_gradients(model, wrapped, max_norm=max_norm, error_if_nonfinite=False)
            wrapped.step()
            if after_step is not None:
                with torch.no_grad():
                    stopped = bool(after_step())
            steps, examples, last = steps + 1, examples + sum(map(len, inputs)), batch
            usable = guard.step_is_usable()
            if not usable or stopped:
                break
        if not usable or stopped or (after_epoch is not None and after_epoch(number)):
            break
    if usable and last is not None:
        usable = _end_is_usable(model, objective, last, guard)
    wrapped.zero_grad()
    mean = sum(losses) / len(losses) if losses else math.nan
    return LocalRun("ok" if usable else "diverged", guard.reason, steps, examples, mean)


def _fresh(kind: str, parameters: list[nn.Parameter], lr: float, momentum: float, weight_decay: float) -> Optimizer:
    if kind == "adam":
        return Adam(parameters, lr=lr, weight_decay=weight_decay)
    return SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)


def set_modes(model: nn.Module, bn_mode: BatchNormMode) -> None:
    """Put `model` in train mode, with its BatchNorm layers in `bn_mode`."""
    model.train()
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.train(bn_mode == "train")


def _end_is_usable(model: nn.Module, objective: Objective, batch: Batch, guard: DivergenceGuard) -> bool:
    # The state after the last step has had no loss yet; statistics stay as they are.
    set_modes(model, "eval")
    with torch.no_grad():
        return guard.loss_is_usable(objective(model, *batch))
