"""BFU at the sites that hold forget records (METHODS 1.11), sharing with the records that the site itself retains."""

from __future__ import annotations

import math

from torch import nn

from clients.forgetting import Sets, unlearn_locally
from clients.ops import Call, Op, Reply, asked
from clients.pairs import paired_epochs
from clients.site import Site
from clients.training import LocalPlan
from partitions.errors import BadInput
from unlearning.bfu import unlearn
from unlearning.local import LocalRun


def run(site: Site, call: Call) -> Reply:
    """Minimise BFU's objective.

    Config as for `train`, and beta, eta-forget, eta-share, scale, optimizer, bn-mode, ``loss-cap`` (0: 2 ln C) and
    ``stop`` (0: the larger of 0.1 and chance).
    """
    config, worker = call.config, site.worker
    classes = worker.settings.num_classes
    loss_cap = asked(config, "loss-cap", float, 0.0)
    if not loss_cap and not worker.task.has_logits:
        raise BadInput("bfu.loss-cap", loss_cap, "above 0 for a task without classes", "0 means 2 ln C")

    def step(model: nn.Module, sets: Sets, plan: LocalPlan) -> LocalRun:
        return unlearn(
            model,
            worker.task.loss_and_metric,
            paired_epochs(sets, plan),
            beta=asked(config, "beta", float),
            eta_forget=asked(config, "eta-forget", float),
            eta_share=asked(config, "eta-share", float),
            scale=asked(config, "scale", float),
            loss_cap=loss_cap or 2 * math.log(classes),
            stop=(asked(config, "stop", float, 0.0) or max(0.1, 1 / classes)) if worker.task.has_logits else 0.0,
            lr=plan.lr,
            momentum=plan.momentum,
            optimizer=asked(config, "optimizer", str, "sgd"),  # type: ignore[arg-type]
            max_norm=plan.max_norm,
            bn_mode=asked(config, "bn-mode", str, "eval"),  # type: ignore[arg-type]
            engine=worker.fabric,
        )

    return unlearn_locally(site, call, step, "both")


OPS = [Op("unlearn_bayesian", "train", run)]
