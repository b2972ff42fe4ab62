"""FedQUIT at the departing site (METHODS 1.8): the teacher is the model received, without the true class."""

from __future__ import annotations

from torch import nn

from clients.forgetting import Sets, unlearn_locally
from clients.ops import Call, Op, Reply, asked, model_of
from clients.site import Site
from clients.training import LocalPlan
from unlearning.fedquit import distil
from unlearning.local import LocalRun


def run(site: Site, call: Call) -> Reply:
    """Distil on the forget records: config as for `train`, and temperature, scale-t2, optimizer, bn-mode."""
    config, worker = call.config, site.worker

    def step(model: nn.Module, sets: Sets, plan: LocalPlan) -> LocalRun:
        return distil(
            model,
            worker.frozen(model_of(call)),
            sets.forget.epochs(plan),
            temperature=asked(config, "temperature", float, 4.0),
            scale_t2=asked(config, "scale-t2", bool, False),
            lr=plan.lr,
            momentum=plan.momentum,
            optimizer=asked(config, "optimizer", str, "sgd"),  # type: ignore[arg-type]
            max_norm=plan.max_norm,
            bn_mode=asked(config, "bn-mode", str, "train"),  # type: ignore[arg-type]
            engine=worker.fabric,
        )

    return unlearn_locally(site, call, step)


OPS = [Op("distil", "train", run)]
