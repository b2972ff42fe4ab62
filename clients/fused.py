"""FUSED at the sites that stay, low-rank form (METHODS 1.13): train the adapters, send nothing else back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor, nn

from clients.forgetting import Sets, unlearn_locally
from clients.ops import Call, Op, Reply, asked, model_of
from clients.site import Site
from clients.training import LocalPlan
from partitions.errors import BadInput
from unlearning.fused import adapt
from unlearning.local import LocalRun
from unlearning.state import State


def run(site: Site, call: Call) -> Reply:
    """Train the factors on the retained records and answer them as ``adapter``.

    Config as for `train`, and scale, dropout, layers (names of modules). Further models: ``base`` has the layers'
    weights without adapters, which are put into the call's model; ``adapter`` has the factors ``<layer>.A`` and ``.B``.
    """
    if {"base", "adapter"} - call.states.keys():
        raise BadInput("op", call.op, "a message with the further models 'base' and 'adapter'")
    names, worker = asked(call.config, "layers", list), site.worker
    given = call.states["adapter"].params
    trained: list[tuple[Tensor, Tensor]] = []

    def step(model: nn.Module, sets: Sets, plan: LocalPlan) -> LocalRun:
        modules = dict(worker.module.named_modules())
        done, factors = adapt(
            model,
            [modules[name] for name in names],
            [(given[f"{name}.A"], given[f"{name}.B"]) for name in names],
            worker.task.loss,
            sets.retain.epochs(plan),
            scale=asked(call.config, "scale", float),
            dropout=asked(call.config, "dropout", float, 0.0),
            lr=plan.lr,
            momentum=plan.momentum,
            max_norm=plan.max_norm,
            engine=worker.fabric,
        )
        trained.extend(factors)
        return done

    received = model_of(call)
    base = State({**received.params, **call.states["base"].params}, received.float_buffers, received.int_buffers)
    reply = unlearn_locally(site, replace(call, state=base), step, "retain")
    if not trained:
        return reply
    adapter: dict[str, np.ndarray] = {}
    for name, (down, up) in zip(names, trained, strict=True):
        adapter |= {f"{name}.A": down.numpy(), f"{name}.B": up.numpy()}
    return replace(reply, state=None, arrays={"adapter": adapter})


OPS = [Op("adapt", "train", run)]
