"""NegGrad at the holders of forget records (METHODS 2.8)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from torch import nn

from clients.forgetting import Records, Sets
from clients.inside import stepping, unlearn_inside
from clients.ops import Call, Op, Reply, asked, request_of
from clients.site import Site
from clients.training import LocalPlan, batch_order
from unlearning.local import Batch, LocalRun, run_epochs
from unlearning.neggrad import negated


def run(site: Site, call: Call) -> Reply:
    """Descend the negated task loss: config as in `unlearn_inside`, and ``paced-by`` (forget or retain).

    Paced by retain records, an epoch has as many steps as the site has retain batches, and the forget records come
    round again; they are not opened, only counted. A site that has none is paced by its forget records.
    """

    def step(model: nn.Module, sets: Sets, plan: LocalPlan) -> LocalRun:
        kept = len(site.records("retain", *request_of(call)))
        epochs: Iterable[Iterable[Batch]] = sets.forget.epochs(plan)
        if kept and asked(call.config, "paced-by", str, "forget") == "retain":
            epochs = paced(sets.forget, plan, kept)
        done = run_epochs(model, negated(site.worker.task.loss), epochs, **stepping(site, call, plan))
        return replace(done, loss=-done.loss)

    return unlearn_inside(site, call, step)


def paced(forget: Records, plan: LocalPlan, kept: int) -> list[Iterator[Batch]]:
    """Return as many forget batches an epoch as `kept` records have, coming round again and again."""
    again = forget.cycled(plan)
    steps = len(batch_order(kept, 1, plan.batch_size, plan.last_batch, plan.seed))
    return [islice(again, steps) for _ in range(plan.epochs)]


OPS = [Op("negate", "train", run)]
