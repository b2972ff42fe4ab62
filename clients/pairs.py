"""Forget batches side by side with retained ones, for steps that need both at once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from clients.forgetting import Sets
from clients.training import LocalPlan
from unlearning.local import Batch


def paired_epochs(sets: Sets, plan: LocalPlan, count: int | None = None) -> list[Iterator[Batch]]:
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
    return [beside(epoch, retained) for epoch in epochs]


def beside(epoch: Iterator[Batch], retained: Iterator[Batch]) -> Iterator[Batch]:
    """Yield each batch with the next one of the other, until either is used up."""
    for batch, other in zip(epoch, retained, strict=False):
        yield (*batch, *other)
