"""Random labels at a site (METHODS 2.4): wrong labels on forget records, their own on the others."""

from __future__ import annotations

from torch import nn

from clients.forgetting import Sets
from clients.inside import stepping, unlearn_inside
from clients.ops import Call, Op, Reply, asked, request_of
from clients.site import Site
from clients.training import LocalPlan
from partitions.requests import parse_request
from unlearning.local import LocalRun, run_epochs
from unlearning.random_labels import relabel


def run(site: Site, call: Call) -> Reply:
    """Train: config as in `unlearn_inside`, and ``label-seed``, from which and a record's id its new label follows.

    No record gets its true label, nor, while another is left, a class that the request or an earlier one forgets.
    """
    worker = site.worker

    def step(model: nn.Module, sets: Sets, plan: LocalPlan) -> LocalRun:
        records, forget = sets.mixed()
        labels = records.targets().copy()
        labels[forget] = relabel(
            sets.forget.targets(),
            sets.forget.ids(),
            worker.settings.num_classes,
            asked(call.config, "label-seed", int),
            forgotten_classes(request_of(call)[0]),
        )
        return run_epochs(model, worker.task.loss, records.labelled(labels, plan), **stepping(site, call, plan))

    return unlearn_inside(site, call, step)


def forgotten_classes(request: str) -> set[int]:
    """Return the classes that some step of a request forgets."""
    steps = parse_request(request).steps
    return {int(value) for step in steps if step.granularity == "class" for value in step.values}


OPS = [Op("relabel", "train", run)]
