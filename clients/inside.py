"""What the methods that run inside a site share: on which records they work, and how the message says to step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypedDict

from torch import nn

from clients.forgetting import Sets, Step, unlearn_locally
from clients.ops import Call, Reply, asked
from clients.site import Site
from clients.training import LocalPlan
from unlearning.local import BatchNormMode, Engine, LocalRun


class Stepping(TypedDict):
    """Arguments of `unlearning.local.run_epochs` that a message decides."""

    lr: float | Callable[[int], float]
    momentum: float
    weight_decay: float
    optimizer: Literal["sgd", "adam"]
    max_norm: float
    bn_mode: BatchNormMode
    engine: Engine


def unlearn_inside(site: Site, call: Call, step: Step) -> Reply:
    """Run `step` on the records that the call names, with the optimiser that it names.

    Config: as in `clients.ops.local_plan`, and ``records`` (forget, retain or both); ``momentum``, ``weight-decay`` and
    ``batch-size`` stand in for the site's own settings.
    """

    def with_own_settings(model: nn.Module, sets: Sets, plan: LocalPlan) -> LocalRun:
        own = replace(
            plan,
            momentum=asked(call.config, "momentum", float, plan.momentum),
            weight_decay=asked(call.config, "weight-decay", float, plan.weight_decay),
            batch_size=asked(call.config, "batch-size", int, plan.batch_size),
        )
        return step(model, sets, own)

    return unlearn_locally(site, call, with_own_settings, asked(call.config, "records", str, "both"))  # type: ignore[arg-type]


def stepping(site: Site, call: Call, plan: LocalPlan) -> Stepping:
    """Return how to step: from the plan, and from the call's ``optimizer`` and ``bn-mode``."""
    return Stepping(
        lr=plan.lr,
        momentum=plan.momentum,
        weight_decay=plan.weight_decay,
        optimizer="adam" if asked(call.config, "optimizer", str, "sgd") == "adam" else "sgd",
        max_norm=plan.max_norm,
        bn_mode="eval" if asked(call.config, "bn-mode", str, "train") == "eval" else "train",
        engine=site.worker.fabric,
    )
