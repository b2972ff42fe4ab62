"""UNSIR at a site (METHODS 2.5): noise for a class, or beside the forget records, learned where the records are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import starmap

import numpy as np
import torch
from torch import Tensor, nn

from clients.forgetting import Records, Sets, unlearn_locally
from clients.ops import Call, Op, Reply, asked, model_of
from clients.pairs import beside
from clients.site import Site
from clients.training import LocalPlan, batch_order
from partitions.seeds import derive_seed
from unlearning.local import Batch, LocalRun
from unlearning.unsir import Optimiser, class_noise, impair_and_repair, instance_objective


def run_class(site: Site, call: Call) -> Reply:
    """Impair with noise of the classes to forget and repair, both on retained records; no forget record is opened.

    Config as for `train`, and ``classes`` (to forget, as text), noise-steps, noise-lr, noise-weight, noise-repeats,
    retain-per-class, impair-lr, repair-lr, impair-epochs, repair-epochs, optimizer, bn-mode.
    """
    config, worker = call.config, site.worker

    def step(model: nn.Module, sets: Sets, plan: LocalPlan) -> LocalRun:
        noise = _noise(site, call, plan)
        retain = _some_of_each(sets.retain, asked(config, "retain-per-class", int), plan)
        epochs = asked(config, "impair-epochs", int)
        mixed = _mixed(retain, noise, asked(config, "noise-repeats", int), epochs, plan)
        return impair_and_repair(
            model,
            worker.task.loss,
            mixed,
            worker.task.loss,
            retain.epochs(plan, asked(config, "repair-epochs", int)),
            impair_lr=asked(config, "impair-lr", float),
            repair_lr=asked(config, "repair-lr", float),
            optimiser=_optimiser(site, call, plan),
        )

    return unlearn_locally(site, call, step, "retain")


def run_instance(site: Site, call: Call) -> Reply:
    """Impair with noise far from the forget records, one of their batches beside each retained one, and repair.

    Config as for `run_class` without what concerns classes: noise-steps, noise-lr, impair-lr, repair-lr, impair-epochs,
    repair-epochs, optimizer, bn-mode.
    """
    config, worker = call.config, site.worker
    low, high = _range_of_inputs(site)

    def step(model: nn.Module, sets: Sets, plan: LocalPlan) -> LocalRun:
        count = asked(config, "impair-epochs", int)
        both = zip(sets.forget.epochs(plan, count), sets.retain.epochs(plan, count), strict=True)
        objective = instance_objective(
            worker.task.loss,
            steps=asked(config, "noise-steps", int),
            lr=asked(config, "noise-lr", float),
            low=low,
            high=high,
            generator=torch.Generator().manual_seed(derive_seed(plan.seed, "noise")),
            engine=worker.fabric,
        )
        return impair_and_repair(
            model,
            objective,
            starmap(beside, both),
            worker.task.loss,
            sets.retain.epochs(plan, asked(config, "repair-epochs", int)),
            impair_lr=asked(config, "impair-lr", float),
            repair_lr=asked(config, "repair-lr", float),
            optimiser=_optimiser(site, call, plan),
        )

    return unlearn_locally(site, call, step, "both")


def _optimiser(site: Site, call: Call, plan: LocalPlan) -> Optimiser:
    return Optimiser(
        kind=asked(call.config, "optimizer", str, "sgd"),  # type: ignore[arg-type]
        momentum=plan.momentum,
        weight_decay=plan.weight_decay,
        bn_mode=asked(call.config, "bn-mode", str, "train"),  # type: ignore[arg-type]
        engine=site.worker.fabric,
    )


def _noise(site: Site, call: Call, plan: LocalPlan) -> list[tuple[Tensor, int]]:
    """Learn a batch of noise for each class to forget, against the model as it was received."""
    worker, config = site.worker, call.config
    shape = worker.task.to_inputs(np.zeros((1, *worker.settings.data_shape), dtype=np.uint8)).shape[1:]
    generator = torch.Generator().manual_seed(derive_seed(plan.seed, "noise"))
    learned = []
    for label in map(int, config["classes"]):
        start = torch.randn((plan.batch_size, *shape), generator=generator).to(worker.device)
        noise = class_noise(
            worker.frozen(model_of(call)),
            start,
            label,
            steps=asked(config, "noise-steps", int),
            lr=asked(config, "noise-lr", float),
            weight=asked(config, "noise-weight", float),
            engine=worker.fabric,
        )
        learned.append((noise, label))
    return learned


def _some_of_each(retain: Records, most: int, plan: LocalPlan) -> Records:
    """Take at most so many retained records of each class."""
    targets, rng = retain.targets(), np.random.default_rng(derive_seed(plan.seed, "some of each class"))
    chosen = []
    for label in np.unique(targets):
        of_it = retain.indices[targets == label]
        chosen.append(of_it if len(of_it) <= most else rng.choice(of_it, size=most, replace=False))
    return Records(retain.site, np.sort(np.concatenate(chosen)), retain.name)


def _mixed(
    retain: Records, noise: list[tuple[Tensor, int]], repeats: int, epochs: int, plan: LocalPlan
) -> Iterator[Iterator[Batch]]:
    """Yield epochs in which retained records and the repeated noise are shuffled into the same batches."""
    worker = retain.site.worker
    x = torch.cat([inputs for inputs, _ in noise])
    y = torch.cat([torch.full((len(inputs),), label, dtype=torch.int64) for inputs, label in noise]).to(worker.device)
    real, total = len(retain), len(retain) + repeats * len(y)

    def batches(epoch: int) -> Iterator[Batch]:
        seed = derive_seed(plan.seed, "impair", "", epoch)
        for places in batch_order(total, 1, plan.batch_size, plan.last_batch, seed):
            is_noise = torch.as_tensor((places[places >= real] - real) % len(y)).to(worker.device)
            records = retain.indices[places[places < real]]
            if not len(records):
                yield x[is_noise], y[is_noise]
                continue
            view = retain.site.train
            x_real, y_real = worker.batch(view.inputs, view.targets, records)
            yield torch.cat([x_real, x[is_noise].to(x_real)]), torch.cat([y_real, y[is_noise].to(y_real)])

    return map(batches, range(epochs))


def _range_of_inputs(site: Site) -> tuple[float, float]:
    worker = site.worker
    darkest = np.zeros((1, *worker.settings.data_shape), dtype=np.uint8)
    ends = worker.task.to_inputs(np.concatenate([darkest, darkest + 255]))
    return float(ends.min()), float(ends.max())


OPS = [Op("unsir_class", "train", run_class), Op("unsir_instance", "train", run_instance)]
