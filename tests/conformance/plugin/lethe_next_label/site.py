"""What a site does for the method."""

from __future__ import annotations

from torch import Tensor, nn

from clients.forgetting import Sets, unlearn_locally
from clients.ops import Call, Op, Reply
from clients.site import Site
from clients.training import LocalPlan
from lethe_next_label.maths import next_label
from unlearning.local import LocalRun, run_epochs


def run(site: Site, call: Call) -> Reply:
    """Descend the loss of the forget records under the next class's label."""
    worker = site.worker

    def objective(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return worker.task.loss(model, x, next_label(y, worker.settings.num_classes))

    def step(model: nn.Module, sets: Sets, plan: LocalPlan) -> LocalRun:
        epochs = sets.forget.epochs(plan)
        return run_epochs(model, objective, epochs, lr=plan.lr, momentum=plan.momentum, engine=worker.fabric)

    return unlearn_locally(site, call, step)


OP = Op("learn_next_label", "train", run)
