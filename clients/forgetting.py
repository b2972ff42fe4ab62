"""The forgetting step at a site, as every method that works on forget records runs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from torch import Tensor, nn

from clients.ops import Call, Reply, local_plan, model_of, work_on
from clients.site import Site
from clients.training import LocalPlan, LocalResult, batch_order, batches
from unlearning.local import LocalRun

Epochs = Iterable[Iterator[tuple[Tensor, Tensor]]]
Step = Callable[[nn.Module, Epochs, LocalPlan], LocalRun]


def forget_locally(site: Site, call: Call, step: Step) -> Reply:
    """Run `step` from the call's model on the site's forget records and report it.

    Parameters
    ----------
    site : Site
        Where.
    call : Call
        Model, and config as in `clients.ops.local_plan`.
    step : callable
        ``(wrapped model, batches of each epoch, plan) -> LocalRun``; changes the model in place.
    """
    plan, state, worker = local_plan(site, call), model_of(call), site.worker

    def work(indices: np.ndarray) -> LocalResult:
        started = time.perf_counter()
        order = batch_order(len(indices), plan.epochs, plan.batch_size, plan.last_batch, plan.seed)
        model = worker.load(state)
        with worker.computing(plan.seed):
            run = step(model, [batches(worker, site.train, indices, order)], plan)
        after = worker.state()
        return LocalResult(
            state=after,
            num_examples=len(indices),
            num_batches=run.steps,
            examples=run.examples,
            loss=run.loss,
            metric=float("nan"),
            seconds=time.perf_counter() - started,
            status=run.status if after.is_finite() else "not-finite",
            reason=run.reason,
        )

    return work_on(site, call, "forget", work)
