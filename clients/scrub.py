"""SCRUB at a site (METHODS 2.10): max steps on its forget records, min steps on its retain records."""

from __future__ import annotations

from torch import nn

from clients.forgetting import Sets
from clients.inside import stepping, unlearn_inside
from clients.ops import Call, Op, Reply, asked, model_of
from clients.site import Site
from clients.training import LocalPlan
from unlearning.local import LocalRun, run_epochs
from unlearning.scrub import decayed, scrub_epochs, scrub_objective


def run(site: Site, call: Call) -> Reply:
    """Leave and keep to the teacher: the further model ``teacher``, or the model received.

    Config: as in `unlearn_inside`, and temperature, gamma, alpha, smoothing, msteps (max epochs), order (max-first or
    min-first) and decay-after (epochs, comma separated). A site with one kind of record takes that kind's steps.
    """
    config, worker = call.config, site.worker

    def step(model: nn.Module, sets: Sets, plan: LocalPlan) -> LocalRun:
        objective = scrub_objective(
            worker.frozen(call.states.get("teacher", model_of(call))),
            worker.task.loss,
            temperature=asked(config, "temperature", float, 2.0),
            gamma=asked(config, "gamma", float, 1.0),
            alpha=asked(config, "alpha", float, 0.5),
            smoothing=asked(config, "smoothing", float, 0.0),
        )
        epochs = scrub_epochs(
            sets.forget.epochs(plan, min(plan.epochs, asked(config, "msteps", int, 3))),
            sets.retain.epochs(plan),
            max_first=asked(config, "order", str, "max-first") == "max-first",
        )
        after = [int(epoch) for epoch in asked(config, "decay-after", str, "").split(",") if epoch]
        how = stepping(site, call, plan)
        how["lr"] = decayed(plan.lr, after)
        return run_epochs(model, objective, epochs, **how)

    return unlearn_inside(site, call, step)


OPS = [Op("scrub", "train", run)]
