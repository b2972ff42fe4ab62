"""Gradient ascent at the departing site (METHODS 1.2)."""

from __future__ import annotations

from torch import nn

from clients.forgetting import Sets, unlearn_locally
from clients.ops import Call, Op, Reply, asked
from clients.site import Site
from clients.training import LocalPlan
from unlearning.ga import ascend
from unlearning.local import LocalRun


def run(site: Site, call: Call) -> Reply:
    """Climb the task loss on the forget records: config as for `train`, and ``bn-mode`` (eval or train)."""
    worker = site.worker

    def step(model: nn.Module, sets: Sets, plan: LocalPlan) -> LocalRun:
        return ascend(
            model,
            worker.task.loss,
            sets.forget.epochs(plan),
            lr=plan.lr,
            momentum=plan.momentum,
            max_norm=plan.max_norm,
            bn_mode=asked(call.config, "bn-mode", str, "eval"),  # type: ignore[arg-type]
            engine=worker.fabric,
        )

    return unlearn_locally(site, call, step)


OPS = [Op("ascend", "train", run)]
