"""Bad Teacher at a site (METHODS 2.3): forget records and a share of the others, each with its teacher."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from clients.forgetting import Sets
from clients.inside import stepping, unlearn_inside
from clients.ops import Call, Op, Reply, asked, model_of
from clients.site import Site
from clients.training import LocalPlan
from partitions.seeds import derive_seed
from unlearning.bad_teacher import two_teachers
from unlearning.local import LocalRun, run_epochs


def run(site: Site, call: Call) -> Reply:
    """Distil from both teachers: the good one is the further model ``teacher``, or the model received.

    Config: as in `unlearn_inside`, and teacher-seed (of the bad teacher's weights), temperature, reduction, and
    retain-share, of which the site takes the same records in every round.
    """
    config, worker = call.config, site.worker

    def step(model: nn.Module, sets: Sets, plan: LocalPlan) -> LocalRun:
        own_seed = derive_seed(asked(config, "seed", int), "bad-teacher-retain", site.name)
        share = sets.retain.sample(asked(config, "retain-share", float, 0.3), own_seed)
        records, forget = replace(sets, retain=share).mixed()
        objective = two_teachers(
            worker.frozen(worker.initial(asked(config, "teacher-seed", int)), slot=1),
            worker.frozen(call.states.get("teacher", model_of(call))),
            temperature=asked(config, "temperature", float, 1.0),
            reduction=asked(config, "reduction", str, "batchmean"),  # type: ignore[arg-type]
        )
        return run_epochs(model, objective, records.labelled(forget, plan), **stepping(site, call, plan))

    return unlearn_inside(site, call, step)


OPS = [Op("two_teachers", "train", run)]
