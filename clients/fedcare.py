"""FedCARE at the sites (METHODS 1.9): ascent that spares a reference loss, and the retained gradient it may be."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle

import numpy as np
import torch
from torch import Tensor, nn

from clients.forgetting import Records, Sets, unlearn_locally
from clients.ops import Call, Op, Reply, asked, local_plan, model_of, work_on
from clients.pairs import paired_epochs
from clients.site import Site
from clients.training import LocalPlan, LocalResult
from partitions.errors import BadInput
from partitions.seeds import derive_seed
from unlearning.fedcare import ascend_beside, pseudo_images
from unlearning.local import Batch, LocalRun

Reference = Callable[[nn.Module, Batch], Tensor] | list[Tensor]


def run(site: Site, call: Call) -> Reply:
    """Climb the forget loss beside a reference.

    Config as for `train`, and ``reference`` (pseudo, retain or server-grad), margin, floor (0: chance; below 0: none),
    bn-mode; for pseudo also ``classes`` (to invert, as text), images-per-class, image-steps. The constant gradient of
    server-grad is the further model ``reference``. Answers ``reference-loss``: of the pseudo-images, else NaN.
    """
    config, worker = call.config, site.worker
    kind, floor = asked(config, "reference", str, "pseudo"), asked(config, "floor", float, 0.0)
    retained = kind == "retain"
    inverted_loss = math.nan

    def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return worker.task.loss_and_metric(model, x, y)[1]

    def step(model: nn.Module, sets: Sets, plan: LocalPlan) -> LocalRun:
        nonlocal inverted_loss
        if kind == "pseudo":
            reference, inverted_loss = _inverted(site, call, plan)
        else:
            reference = _retained_loss(site) if retained else _gradient_sent(site, call)
        return ascend_beside(
            model,
            worker.task.loss,
            paired_epochs(sets, plan) if retained else sets.forget.epochs(plan),
            reference,
            lr=plan.lr,
            momentum=plan.momentum,
            margin=asked(config, "margin", float, 0.0),
            max_norm=plan.max_norm,
            accuracy=accuracy if floor >= 0 and worker.task.metric_name == "accuracy" else None,
            floor=floor or 1 / worker.settings.num_classes,
            bn_mode=asked(config, "bn-mode", str, "eval"),  # type: ignore[arg-type]
            engine=worker.fabric,
        )

    reply = unlearn_locally(site, call, step, "both" if retained else "forget")
    return replace(reply, metrics={**reply.metrics, "reference-loss": inverted_loss})


def run_gradient(site: Site, call: Call) -> Reply:
    """Answer the ``gradient`` of the mean loss on the retained records, with BatchNorm in eval mode."""
    plan, state, worker = local_plan(site, call), model_of(call), site.worker
    found: dict[str, np.ndarray] = {}

    def work(indices: np.ndarray) -> LocalResult:
        started = time.perf_counter()
        records, losses, steps = Records(site, indices, "retain"), 0.0, 0
        # The fp32 model without Fabric: a scaled 16-bit loss would scale the gradient.
        model = worker.scorer(state).requires_grad_(True)
        model.zero_grad()
        with worker.computing(plan.seed):
            for x, y in records.epochs(plan, 1)[0]:
                loss = worker.task.loss(model, x, y)
                torch.autograd.backward(loss * (len(x) / len(records)))
                losses, steps = losses + float(loss.detach()), steps + 1
        for name, parameter in model.requires_grad_(False).named_parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            found[name] = gradient.cpu().contiguous().numpy().copy()
        return LocalResult(
            state=state,
            num_examples=len(records),
            num_batches=steps,
            examples=len(records),
            loss=losses / steps,
            metric=math.nan,
            seconds=time.perf_counter() - started,
        )

    reply = work_on(site, call, "retain", work)
    return replace(reply, state=None, arrays={"gradient": found} if found else {})


IMAGES_AT_ONCE = 64
"""Pseudo-images optimised together at least: in a site's batches of one they would take hours."""


def _inverted(site: Site, call: Call, plan: LocalPlan) -> tuple[Reference, float]:
    worker, config = site.worker, call.config
    if not worker.task.has_logits:
        raise BadInput("fedcare.ref", "pseudo", "retain or server-grad for a task without class logits")
    shape = worker.task.to_inputs(np.zeros((1, *worker.settings.data_shape), dtype=np.uint8)).shape[1:]
    x, y, loss = pseudo_images(
        worker.frozen(model_of(call)),
        shape,
        [int(label) for label in config["classes"]],
        per_class=asked(config, "images-per-class", int, 16),
        steps=asked(config, "image-steps", int, 200),
        batch_size=max(plan.batch_size, IMAGES_AT_ONCE),
        generator=torch.Generator().manual_seed(derive_seed(plan.seed, "pseudo-images")),
        device=worker.device,
        engine=worker.fabric,
    )
    shuffle = torch.Generator().manual_seed(derive_seed(plan.seed, "pseudo-order"))
    order = torch.randperm(len(y), generator=shuffle).to(worker.device)
    places = torch.split(order, plan.batch_size)
    batches = cycle([(x[some], y[some]) for some in places])
    return lambda model, _: worker.task.loss(model, *next(batches)), loss


def _retained_loss(site: Site) -> Reference:
    return lambda model, batch: site.worker.task.loss(model, *batch[2:])


def _gradient_sent(site: Site, call: Call) -> Reference:
    if "reference" not in call.states:
        raise BadInput("op", call.op, "a message with the further model 'reference'")
    sent = call.states["reference"].params
    return [sent[name].to(parameter) for name, parameter in site.worker.module.named_parameters()]


OPS = [Op("ascend_beside", "train", run), Op("retained_gradient", "train", run_gradient)]
