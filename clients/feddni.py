"""FedDNI's input mode at the forget holders: unlearn from ever noisier inputs (METHODS 1.12)."""

from __future__ import annotations

import torch
from torch import nn

from clients.forgetting import Sets, unlearn_locally
from clients.ops import Call, Op, Reply, asked
from clients.site import Site
from clients.training import LocalPlan
from partitions.seeds import derive_seed
from unlearning.feddni import forget_inputs
from unlearning.local import LocalRun


def run(site: Site, call: Call) -> Reply:
    """Train on noisy forget inputs: config as for `train`, and levels, last-level, bn-mode."""
    config, worker = call.config, site.worker

    def step(model: nn.Module, sets: Sets, plan: LocalPlan) -> LocalRun:
        return forget_inputs(
            model,
            sets.forget.epochs(plan),
            levels=asked(config, "levels", int, 5),
            last=asked(config, "last-level", float, 0.05),
            generator=torch.Generator().manual_seed(derive_seed(plan.seed, "noise")),
            lr=plan.lr,
            momentum=plan.momentum,
            max_norm=plan.max_norm,
            bn_mode=asked(config, "bn-mode", str, "eval"),  # type: ignore[arg-type]
            engine=worker.fabric,
        )

    return unlearn_locally(site, call, step)


OPS = [Op("diffuse", "train", run)]
