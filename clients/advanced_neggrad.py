"""Advanced NegGrad at the sites that hold both kinds of record (METHODS 2.9)."""

from __future__ import annotations

import math

from torch import nn

from clients.forgetting import Sets
from clients.inside import stepping, unlearn_inside
from clients.ops import Call, Op, Reply, asked
from clients.site import Site
from clients.training import LocalPlan
from unlearning.advanced_neggrad import retain_minus_forget
from unlearning.local import LocalRun, run_epochs


def run(site: Site, call: Call) -> Reply:
    """Take a step on each pair of batches: config as in `unlearn_inside`, and forget-weight, and cap in ln C (0: none).

    A ``bn-mode`` of "joint" is train mode with one forward pass over both batches.
    """
    config, worker = call.config, site.worker

    def step(model: nn.Module, sets: Sets, plan: LocalPlan) -> LocalRun:
        cap = asked(config, "cap", float, 0.0) * math.log(worker.settings.num_classes)
        objective = retain_minus_forget(
            worker.task.loss,
            forget_weight=asked(config, "forget-weight", float, 1.0),
            cap=cap or math.inf,
            joint=asked(config, "bn-mode", str, "train") == "joint",
        )
        return run_epochs(model, objective, sets.paired(plan), **stepping(site, call, plan))

    return unlearn_inside(site, call, step)


OPS = [Op("negate_and_train", "train", run)]
