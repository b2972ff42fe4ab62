"""Forget batches side by side with retained ones, for steps that need both at once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from torch import Tensor

from clients.forgetting import Sets
from clients.training import LocalPlan


def paired_epochs(sets: Sets, plan: LocalPlan, count: int | None = None) -> list[Iterator[tuple[Tensor, ...]]]:
    """Return epochs over the forget batches, each followed by the next retained batch: (x, y, x_retain, y_retain).

    The retained records go on where the last epoch left them and begin again, in a new order, when they are used up.
    Without any, the batches are (x, y).

    Parameters
    ----------
    sets : Sets
        The records of a step.
    plan : LocalPlan
        As in `Records.epochs`.
    count : int, optional
        Epochs; the plan's where it is not given.
    """
    epochs = sets.forget.epochs(plan, count)
    if not len(sets.retain):
        return epochs
    wanted = len(epochs) * (len(sets.forget) // plan.batch_size + 1)
    an_epoch = max(1, len(sets.retain) // plan.batch_size)
    retained = chain.from_iterable(sets.retain.epochs(plan, -(-wanted // an_epoch)))
    return [_beside(epoch, retained) for epoch in epochs]


def _beside(
    epoch: Iterator[tuple[Tensor, ...]], retained: Iterator[tuple[Tensor, ...]]
) -> Iterator[tuple[Tensor, ...]]:
    for batch, beside in zip(epoch, retained, strict=False):
        yield (*batch, *beside)
