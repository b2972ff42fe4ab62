"""SSD at every site (METHODS 2.6): how much each parameter matters for the records here, and for those to forget."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import nn

from clients.forgetting import Records
from clients.ops import Call, Op, Reply, asked
from clients.site import Site
from clients.statistics import Statistics, in_fixed_order, measure_locally
from unlearning.local import Batch
from unlearning.ssd import Importance, importance


def run(site: Site, call: Call) -> Reply:
    """Answer the importances: config request, request-seed, and fisher ("batch", or "sample" for batches of one)."""
    loss = site.worker.task.loss
    size = 1 if asked(call.config, "fisher", str, "batch") == "sample" else site.settings.batch_size
    return answer_importance(site, call, lambda model, read: importance(model, loss, read), size)


def answer_importance(
    site: Site, call: Call, measure: Callable[[nn.Module, Iterable[Batch]], Importance], size: int
) -> Reply:
    """Answer the sums over batches, ``all`` and (where there are such records) ``forget``, and the batches of each."""

    def statistics(model: nn.Module, everything: Records, forget: Records) -> Statistics:
        sets = {"all": everything, "forget": forget} if len(forget) else {"all": everything}
        found = {name: measure(model, in_fixed_order(records, size)) for name, records in sets.items()}
        return Statistics(
            arrays={name: part.sums for name, part in found.items()},
            metrics={f"{name}-batches": part.batches for name, part in found.items()},
            batches=sum(part.batches for part in found.values()),
            examples=sum(part.examples for part in found.values()),
        )

    return measure_locally(site, call, statistics)


OPS = [Op("importance", "train", run)]
