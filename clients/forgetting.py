"""The unlearning step at a site, as every method that computes there runs it: which records, in which batches."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import nn

from clients.ops import Call, Reply, local_plan, model_of, request_of, work_on
from clients.site import Site
from clients.training import LocalPlan, LocalResult, batch_order, batches
from partitions.seeds import derive_seed
from unlearning.local import Batch, LocalRun


@dataclass(frozen=True)
class Records:
    """Some training records of a site, which a step may read in batches.

    Attributes
    ----------
    site : Site
        Whose.
    indices : ndarray
        Which, as positions in the arrays of the site's training view; int64, ascending.
    name : str
        Of the random stream that orders them.
    """

    site: Site
    indices: np.ndarray
    name: str

    def __len__(self) -> int:
        return len(self.indices)

    def ids(self) -> list[str]:
        """Return the stable id of each record, in the order of `indices`."""
        return [str(record) for record in self.site.known("record", self.indices)]

    def targets(self) -> np.ndarray:
        """Return the target of each record, in the order of `indices`."""
        return np.asarray(self.site.train.targets).take(self.indices, axis=0)

    def epochs(
        self, plan: LocalPlan, count: int | None = None, also: np.ndarray | None = None
    ) -> list[Iterator[Batch]]:
        """Return the batches of each epoch, to be read once: inputs, targets and, where given, the part of `also`.

        Parameters
        ----------
        plan : LocalPlan
            Batch size, last batch, seed and, where `count` is not given, epochs.
        count : int, optional
            Epochs.
        also : ndarray, optional
            Something more for each record, in the order of `indices`, such as other labels.
        """
        wanted = plan.epochs if count is None else count
        seed = plan.seed if self.name == "forget" else derive_seed(plan.seed, self.name)
        order = batch_order(len(self), wanted, plan.batch_size, plan.last_batch, seed)
        size = len(order) // wanted if wanted else 0
        return [self._read(order[start : start + size], also) for start in range(0, len(order), max(size, 1))]

    def labelled(self, labels: np.ndarray, plan: LocalPlan, count: int | None = None) -> list[Iterator[Batch]]:
        """Return the batches of `epochs` with `labels`, in the order of `indices`, in place of the targets."""
        return [((x, label) for x, _, label in epoch) for epoch in self.epochs(plan, count, also=labels)]

    def cycled(self, plan: LocalPlan) -> Iterator[Batch]:
        """Yield batches without end, in a new order each time round; none where there are no records."""
        for turn in itertools.count() if len(self) else ():
            yield from self.epochs(replace(plan, seed=derive_seed(plan.seed, "turn", round_=turn)), 1)[0]

    def sample(self, share: float, seed: int) -> Records:
        """Return a random share of these records, at least one where there is one."""
        count = min(len(self), max(1, round(share * len(self))))
        chosen = np.random.default_rng(seed).choice(self.indices, size=count, replace=False)
        return Records(self.site, np.sort(chosen), self.name)

    def _read(self, order: list[np.ndarray], also: np.ndarray | None) -> Iterator[Batch]:
        worker = self.site.worker
        read = batches(worker, self.site.train, self.indices, order)
        for positions, batch in zip(order, read, strict=True):
            yield batch if also is None else (*batch, torch.as_tensor(also[positions]).to(worker.device))


@dataclass(frozen=True)
class Sets:
    """The records of a step by what the request says of them; a set that the step did not ask for is empty."""

    forget: Records
    retain: Records

    def mixed(self) -> tuple[Records, np.ndarray]:
        """Return both sets as one, to be shuffled together, and which of its records are to forget: bool, (n,)."""
        indices = np.sort(np.concatenate([self.forget.indices, self.retain.indices]))
        return Records(self.forget.site, indices, "mixed"), np.isin(indices, self.forget.indices)

    def paired(self, plan: LocalPlan, count: int | None = None) -> list[Iterator[Batch]]:
        """Return, for each epoch of the retain records, their batches behind forget batches: (xf, yf, xr, yr).

        The forget records come round again and again. Of a pair the longer batch is cut to the length of the other.
        Where either set is empty there are no pairs.
        """
        if not len(self.forget):
            return []
        again = self.forget.cycled(plan)
        return [_cut_to_pairs(again, epoch) for epoch in self.retain.epochs(plan, count)]


def _cut_to_pairs(again: Iterator[Batch], epoch: Iterable[Batch]) -> Iterator[Batch]:
    for xr, yr in epoch:
        xf, yf = next(again)
        size = min(len(xf), len(xr))
        yield xf[:size], yf[:size], xr[:size], yr[:size]


Step = Callable[[nn.Module, Sets, LocalPlan], LocalRun]


def unlearn_locally(
    site: Site, call: Call, step: Step, records: Literal["forget", "retain", "both"] = "forget"
) -> Reply:
    """Run `step` from the call's model on the records it may open, and report it.

    Parameters
    ----------
    site : Site
        Where.
    call : Call
        Model, and config as in `clients.ops.local_plan`.
    step : callable
        ``(wrapped model, sets, plan) -> LocalRun``; changes the model in place.
    records : {"forget", "retain", "both"}
        Which records it may open. A site without any of them does nothing.
    """
    plan, state, worker = local_plan(site, call), model_of(call), site.worker

    def chosen(which: Literal["forget", "retain"]) -> Records:
        open_ = records in (which, "both")
        return Records(site, site.records(which, *request_of(call)) if open_ else np.zeros(0, np.int64), which)

    def work(_: np.ndarray) -> LocalResult:
        started = time.perf_counter()
        model, sets = worker.load(state), Sets(chosen("forget"), chosen("retain"))
        with worker.computing(plan.seed):
            run = step(model, sets, plan)
        after = worker.state()
        return LocalResult(
            state=after,
            num_examples=len(sets.forget) + len(sets.retain),
            num_batches=run.steps,
            examples=run.examples,
            loss=run.loss,
            metric=float("nan"),
            seconds=time.perf_counter() - started,
            status=run.status if after.is_finite() else "not-finite",
            reason=run.reason,
        )

    return work_on(site, call, records, work)
