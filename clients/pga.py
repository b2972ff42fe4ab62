"""PGA at the forget holders: ascent in the ball, with the site's own early stops (METHODS 1.3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from clients.forgetting import Sets, unlearn_locally
from clients.ops import Call, Op, Reply, asked, model_of, request_of
from clients.scoring import BATCH, evaluating
from clients.site import Site
from clients.training import LocalPlan
from partitions.seeds import derive_seed
from unlearning.local import LocalRun
from unlearning.pga import Ball, ascend_in_ball, auto_radius, gap
from unlearning.state import State, Tensors

DRAWN = 10
"""Initial models that the authors' radius is measured on."""


def run(site: Site, call: Call) -> Reply:
    """Climb the task loss on the forget records, no farther than a radius from the model received.

    Config as for `train`, and rho (a radius, L2; below 0: the authors', measured here), momentum, bn-mode, early-stop
    (val, distance or none), min-val, tau. Further models ``original`` (whose held-out metric an early stop by "val"
    compares with; the received one where it is missing) and ``last`` (from which "distance" is measured, likewise). The
    reply's metrics have the radius as rho, and the distance reached.
    """
    config, worker, start = call.config, site.worker, model_of(call)
    early, rho = asked(config, "early-stop", str, "none"), asked(config, "rho", float)
    stop_epoch = None
    if early == "val":
        original = call.states.get("original", start)
        unseen = np.setdiff1d(site.holdout.indices, site.records("both", *request_of(call)))  # a shadow trains on some
        stop_epoch = fallen_metric(site, unseen, original, asked(config, "min-val", float, 0.5))
    told: dict[str, int | float] = {}

    def step(model: nn.Module, sets: Sets, plan: LocalPlan) -> LocalRun:
        ball = Ball(model, rho if rho >= 0 else auto_radius(start.params, _drawn(site, asked(config, "seed", int))))
        far = (
            _far_from(site, call.states.get("last", start), asked(config, "tau", float))
            if early == "distance"
            else None
        )
        done = ascend_in_ball(
            model,
            worker.task.loss,
            sets.forget.epochs(plan),
            ball,
            lr=plan.lr,
            momentum=asked(config, "momentum", float, 0.0),
            max_norm=plan.max_norm,
            bn_mode=asked(config, "bn-mode", str, "eval"),  # type: ignore[arg-type]
            engine=worker.fabric,
            stop_step=far,
            stop_epoch=stop_epoch,
        )
        told.update({"rho": ball.radius, "distance": ball.distance()})
        return done

    reply = unlearn_locally(site, call, step)
    return replace(reply, metrics={**reply.metrics, **told})


def holdout_metric(site: Site, indices: np.ndarray, state: State) -> float:
    """Return the mean task metric over held-out records at `indices`, in fp32 and eval mode; NaN without any."""
    worker, view = site.worker, site.holdout
    model = worker.scorer(state)
    total = 0.0
    with evaluating(model), worker.scoring():
        for first in range(0, len(indices), BATCH):
            x, y = worker.batch(view.inputs, view.targets, indices[first : first + BATCH])
            total += float(worker.task.loss_and_metric(model, x, y)[1]) * len(x)
    return total / len(indices) if len(indices) else math.nan


def fallen_metric(site: Site, indices: np.ndarray, original: State, share: float) -> Callable[[int], bool]:
    """Return the early stop that ends when the metric on held-out records is below a share of what `original` has.

    Where lower is better, when it is above the original's over the share. Without held-out records it never ends.
    """
    # Asked here and not in the step: the scoring model must be built outside of the step's precision.
    before, worker = holdout_metric(site, indices, original), site.worker

    def fallen(_: int) -> bool:
        now = holdout_metric(site, indices, worker.state())
        return now < share * before if worker.task.higher_is_better else share * now > before

    return fallen


def _far_from(site: Site, state: State, tau: float) -> Callable[[], bool]:
    named = dict(site.worker.module.named_parameters())
    last = [state.params[name].to(parameter.device) for name, parameter in named.items()]
    return lambda: gap(named.values(), last) > tau


def _drawn(site: Site, seed: int) -> Iterator[Tensors]:
    """Draw initial models, the same at every site."""
    settings = site.worker.settings
    for number in range(DRAWN):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "pga-init", round_=number))
            module = site.worker.task.build(settings.model, settings.data_shape, settings.num_classes)
        yield State.from_module(module).params


OPS = [Op("ascend_in_ball", "train", run)]
