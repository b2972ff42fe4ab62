"""SCRUB (Kurmanji et al. 2023, NeurIPS; METHODS 2.10): leave the teacher on forget records, stay with it elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from unlearning.local import Batch, Objective
from unlearning.outputs import Given, divergence, soft_targets


def scrub_objective(
    teacher: nn.Module, loss: Objective, *, temperature: float, gamma: float, alpha: float, smoothing: float = 0.0
) -> Objective:
    """Return the objective of both steps: batches (x,) are maximised, batches (x, y) minimised.

    With K the batch mean of ``T^2 KL(teacher || student)``, a max step minimises ``-K`` and a min step
    ``gamma * loss + alpha * K``. Both add ``smoothing * sum_tensors ||p - p_teacher||``, unsquared.

    Parameters
    ----------
    teacher : nn.Module
        The model that is to forget; put in eval mode and never changed.
    loss : callable
        ``(model, x, y) -> scalar Tensor``, the mean task loss.
    temperature : float
        T, above 0.
    gamma, alpha : float
        Weights of the task loss and of staying with the teacher.
    smoothing : float
        0 in the original, whose term is switched off; 0.5 in SUPREME.
    """
    teacher.eval()

    def objective(model: nn.Module, x: Tensor, y: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            targets = soft_targets(teacher(x), temperature)
        logits = model(x)
        away = temperature**2 * divergence(logits, targets, temperature)
        total = -away if y is None else gamma * loss(Given(logits), x, y) + alpha * away
        return total + smoothing * parameter_distance(model, teacher) if smoothing else total

    return objective


def parameter_distance(model: nn.Module, other: nn.Module) -> Tensor:
    """Return the sum of the L2 distances of the parameter tensors of two equal models; its gradient at 0 is 0."""
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return torch.stack([torch.linalg.vector_norm(p - q) for p, q in pairs]).sum()


def scrub_epochs(
    forget: Sequence[Iterable[Batch]], retain: Sequence[Iterable[Batch]], *, max_first: bool
) -> list[Iterable[Batch]]:
    """Return the epochs: the first ones of `forget` as max steps and of `retain` as min steps, one after the other.

    Parameters
    ----------
    forget, retain : sequence of iterables of (x, y)
        The batches of each epoch; the shorter sequence takes no part in the later epochs.
    max_first : bool
        Max steps before min steps, as in the original; MUFAC takes them after.
    """
    epochs: list[Iterable[Batch]] = []
    for number in range(max(len(forget), len(retain))):
        most = [_without_targets(epoch) for epoch in forget[number : number + 1]]
        least = list(retain[number : number + 1])
        epochs.append(chain(*(most + least if max_first else least + most)))
    return epochs


def decayed(lr: float, after: Sequence[int], factor: float = 0.1) -> Callable[[int], float]:
    """Return the learning rate of each epoch, from 1: `factor` times less once each of the epochs `after` is over."""
    return lambda epoch: lr * factor ** sum(epoch > done for done in after)


def _without_targets(epoch: Iterable[Batch]) -> Iterable[Batch]:
    return ((x,) for x, _ in epoch)
