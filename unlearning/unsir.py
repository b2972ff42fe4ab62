"""UNSIR (Tarun et al. 2023, TNNLS; Choi and Na 2023, arXiv 2311.02240; METHODS 2.5): impair with noise, then repair."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from unlearning.divergence import GROWTH
from unlearning.inputs import held, optimise_inputs
from unlearning.local import Batch, BatchNormMode, Engine, LocalRun, Objective, run_epochs


def class_noise(
    model: nn.Module,
    start: Tensor,
    label: int,
    *,
    steps: int,
    lr: float,
    weight: float,
    engine: Engine | None = None,
) -> Tensor:
    """Return inputs that `model` is most wrong about as members of a class: the class version's noise.

    Minimises ``-CE(f(N), label) + weight * mean over the batch of the sum of N^2``. The sum makes `weight` depend on
    the resolution, as in the authors' code.

    Parameters
    ----------
    model : nn.Module
        Gives class logits; held, so that its statistics do not see the noise.
    start : Tensor
        A batch of normal noise.
    label : int
        The class to forget.
    steps : int
        Adam steps.
    lr, weight : float
        Of Adam and of the regulariser.
    engine : Engine, optional
        How a step is taken.
    """
    labels = torch.full((len(start),), label, dtype=torch.int64, device=start.device)

    def objective(held_model: nn.Module, noise: Tensor) -> Tensor:
        size = noise.pow(2).flatten(1).sum(1).mean()
        return weight * size - cross_entropy(held_model(noise).float(), labels)

    return optimise_inputs(model, start, objective, steps=steps, lr=lr, engine=engine)


def distant_noise(
    model: nn.Module,
    start: Tensor,
    x: Tensor,
    *,
    steps: int,
    lr: float,
    low: float,
    high: float,
    engine: Engine | None = None,
) -> Tensor:
    """Return inputs whose logits are far from those of the forget records `x`: the instance version's noise.

    Maximises the mean squared distance between the logits, then clamps to the range [low, high] of real inputs.
    Parameters as in `class_noise`; `start` and `x` have one shape.
    """
    with torch.no_grad(), held(model):
        shunned = model(x).float()

    def objective(held_model: nn.Module, noise: Tensor) -> Tensor:
        return -mse_loss(held_model(noise).float(), shunned)

    return optimise_inputs(model, start, objective, steps=steps, lr=lr, engine=engine).clamp(low, high)


@dataclass(frozen=True)
class Optimiser:
    """How the steps of impair and repair are taken; as in `unlearning.local.run_epochs`."""

    kind: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    bn_mode: BatchNormMode = "train"
    engine: Engine | None = None
    growth: float = GROWTH


def impair_and_repair(
    model: nn.Module,
    impair: Objective,
    impair_epochs: Iterable[Iterable[Batch]],
    repair: Objective,
    repair_epochs: Iterable[Iterable[Batch]],
    *,
    impair_lr: float,
    repair_lr: float,
    optimiser: Optimiser,
) -> LocalRun:
    """Step on noise and retained records, then on retained records alone, each with a fresh optimiser, in place.

    A model that diverged while it was impaired is not repaired.
    """

    def steps(objective: Objective, epochs: Iterable[Iterable[Batch]], lr: float) -> LocalRun:
        return run_epochs(
            model,
            objective,
            epochs,
            lr=lr,
            momentum=optimiser.momentum,
            optimizer=optimiser.kind,
            weight_decay=optimiser.weight_decay,
            bn_mode=optimiser.bn_mode,
            engine=optimiser.engine,
            growth=optimiser.growth,
        )

    first = steps(impair, impair_epochs, impair_lr)
    if first.status != "ok":
        return first
    second = steps(repair, repair_epochs, repair_lr)
    taken = first.steps + second.steps
    loss = (second if second.steps else first).loss
    return LocalRun(second.status, second.reason, taken, first.examples + second.examples, loss)


def instance_objective(
    loss: Objective,
    *,
    steps: int,
    lr: float,
    low: float,
    high: float,
    generator: torch.Generator,
    engine: Engine | None = None,
) -> Objective:
    """Return the objective of a pair of batches: noise far from the forget records, labelled as the retained ones.

    ``CE(f(N), y_retain) + CE(f(x_retain), y_retain)`` on as many records as the smaller batch has; the authors skip
    pairs of unequal size, which would lose small sites.

    Parameters
    ----------
    loss : callable
        ``(model, x, y) -> scalar Tensor``.
    steps, lr, low, high
        See `distant_noise`.
    generator : torch.Generator
        Of the noise, on the CPU.
    """

    def objective(model: nn.Module, x: Tensor, _: Tensor, x_retain: Tensor, y_retain: Tensor) -> Tensor:
        n = min(len(x), len(x_retain))
        start = torch.randn(x[:n].shape, generator=generator).to(x)
        noise = distant_noise(model, start, x[:n], steps=steps, lr=lr, low=low, high=high, engine=engine)
        return loss(model, noise, y_retain[:n]) + loss(model, x_retain[:n], y_retain[:n])

    return objective
