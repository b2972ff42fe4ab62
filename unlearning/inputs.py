"""Inputs that are optimised against a model that stays as it is: pseudo-images, and noise that a model takes badly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Adam

from unlearning.local import Engine, PlainTorch


@contextmanager
def held(model: nn.Module) -> Iterator[None]:
    """Keep `model` in eval mode and its parameters without gradients, and put both back afterwards."""
    modes = {module: module.training for module in model.modules()}
    wanted = {parameter: parameter.requires_grad for parameter in model.parameters()}
    try:
        model.eval().requires_grad_(False)
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        for parameter, requires_grad in wanted.items():
            parameter.requires_grad_(requires_grad)


def optimise_inputs(
    model: nn.Module,
    start: Tensor,
    objective: Callable[[nn.Module, Tensor], Tensor],
    *,
    steps: int,
    lr: float,
    engine: Engine | None = None,
) -> Tensor:
    """Return inputs after Adam steps on ``objective(model, inputs)``, starting from `start`.

    Parameters
    ----------
    model : nn.Module
        Held: parameters, statistics and modes are what they were. Callable within ``torch.no_grad``.
    start : Tensor
        A batch of inputs; not changed.
    objective : callable
        ``(model, inputs) -> scalar Tensor`` to minimise.
    steps : int
        Adam steps; 0 returns a copy of `start`.
    lr : float
        Of Adam.
    engine : Engine, optional
        How a step is taken.
    """
    engine = engine or PlainTorch()
    with torch.enable_grad(), held(model):
        inputs = start.detach().clone().requires_grad_(True)
        optimizer = engine.setup_optimizers(Adam([inputs], lr=lr))
        for _ in range(steps):
            optimizer.zero_grad()
            engine.backward(objective(model, inputs))
            optimizer.step()
    return inputs.detach()
