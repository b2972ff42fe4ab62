"""Pruning at every site (METHODS 1.5): how active each channel is for each class."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from clients.forgetting import Records
from clients.ops import Call, Op, Reply, asked
from clients.site import Site
from clients.statistics import Statistics, in_fixed_order, measure_locally
from unlearning.prune import class_activations


def run(site: Site, call: Call) -> Reply:
    """Answer ``sums`` by layer and class, and ``counts`` by class: config request, request-seed, layers (names)."""
    names = asked(call.config, "layers", list)

    def measure(model: nn.Module, everything: Records, _: Records) -> Statistics:
        read = _with_classes(site, everything)
        found = class_activations(model, names, read, site.worker.settings.num_classes)
        arrays = {"sums": found.sums, "counts": {"counts": found.counts}}
        return Statistics(arrays, examples=len(everything))

    return measure_locally(site, call, measure)


def _with_classes(site: Site, records: Records) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and what a class request calls each record's class, which is not the target for every task."""
    strata = site.known("stratum", records.indices)
    classes = np.array([int(s) if s.isdecimal() else -1 for s in strata], dtype=np.int64)
    size = site.settings.batch_size
    ordered = torch.as_tensor(classes[np.argsort(np.array(records.ids()), kind="stable")])
    for number, (x, _) in enumerate(in_fixed_order(records, size)):
        yield x, ordered[number * size : (number + 1) * size]


OPS = [Op("activations", "train", run)]
