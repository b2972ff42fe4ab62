"""How much of a GPU a site takes, estimated before anything starts, so that no more sites are put on it than fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from clients.catalogue import TASKS
from clients.worker import resolve_device, resolve_precision
from flower_apps import schedule
from flower_apps.lanes import Means
from flower_apps.runs import group_id
from flower_apps.settings import GroupSettings
from flower_apps.sites import partition_of
from partitions.catalogue import DATASETS
from partitions.errors import BadInput, naming

PROCESS = 6e8
"""Bytes of a process's CUDA context and of the libraries' kernels in it."""
MODELS = 6
"""Copies of the weights: the model, its gradients and momentum, two teachers or references, one that scores."""
SLACK = 1.5
"""Activations in all for each that is kept for the backward pass: their gradients, workspaces, fragments."""
USABLE = 0.9
"""Share of a GPU's memory that sites may fill."""
WIDTH = {"64-true": (8, 8), "bf16-mixed": (4, 2), "16-mixed": (4, 2), "bf16-true": (2, 2), "16-true": (2, 2)}
"""Bytes of a weight and of an activation by precision; 4 and 4 in others."""


def site_bytes(group: GroupSettings, data_shape: Sequence[int], num_classes: int, kind: str = "cuda") -> float:
    """Return the bytes of GPU memory that one site at work takes, roughly.

    Counted on torch's meta device, where nothing is computed or allocated: the weights, and what autograd keeps of one
    batch. FLOPs, other processes and what a third-party method holds are not in it.

    Parameters
    ----------
    group : GroupSettings
        Its task, model, batch-size and precision.
    data_shape : sequence of int
        Of one stored record.
    num_classes : int
        Of the data set.
    kind : str
        Kind of device, which decides what precision "auto" is.
    """
    task = TASKS.get(group.task)
    with torch.device("meta"):
        model = task.build(group.model, tuple(data_shape), num_classes).train()
        records = torch.empty((group.batch_size, *data_shape), dtype=torch.uint8)
    own = {tensor.untyped_storage()._cdata for tensor in [*model.parameters(), *model.buffers()]}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(task.to_inputs(records))
    weight, activation = WIDTH.get(resolve_precision(group.precision, kind), (4, 4))
    weights = sum(parameter.numel() for parameter in model.parameters()) * weight
    del loss
    return PROCESS + MODELS * weights + SLACK * sum(kept.values()) * activation / 4


def check_memory(
    groups: Sequence[GroupSettings],
    means: Means,
    say: Callable[[str], None],
    memory: Sequence[float] | None = None,
) -> dict[str, int]:
    """Return how many sites may be on a GPU at once, by group id; empty where there is no GPU to fill.

    Parameters
    ----------
    groups : sequence of GroupSettings
        What is to run.
    means : Means
        Jobs, workers and GPUs.
    say : callable
        Told where fewer sites at once fit than were to be.
    memory : sequence of float, optional
        Bytes of each GPU; by default of those of this machine.

    Raises
    ------
    BadInput
        When one site alone does not fit, or ``gpu-share`` puts more on a GPU than fit.
    """
    if memory is None:
        memory = _memory(groups) if means.gpus else []
    if not memory:
        return {}
    found: dict[str, int] = {}
    said = set()
    for group in groups:
        if group.device in ("cpu", "mps"):
            continue
        data = DATASETS.get(group.dataset).load(Path(group.home), group.cap)
        each = site_bytes(group, data.inputs.shape[1:], len(data.classes))
        limit, smallest = int(USABLE * min(memory) / each), min(memory)
        sizes = f"{each / 1e9:.1f} GB a site (estimated) of {smallest / 1e9:.0f} GB"
        with naming(group.name):
            if limit < 1:
                raise BadInput("batch-size", group.batch_size, f"what fits: {sizes}", "or precision=bf16-mixed")
            if group.gpu_share and schedule.fitting(group.gpu_share) > limit:
                allowed = f"from {1 / limit:.3f} to 1: {sizes}"
                raise BadInput("gpu-share", group.gpu_share, allowed, "or lower batch-size")
        found[group_id(group)] = limit
        planned = max(_planned(group, means))
        if planned > limit and (group.name, limit) not in said:
            said.add((group.name, limit))
            say(f"{group.name}: {limit} sites at once on a GPU instead of {planned}, {sizes}; batch-size decides")
    return found


def _planned(group: GroupSettings, means: Means) -> list[int]:
    workers = means.workers_of(group, len(partition_of(group, Path(group.home)).sites))
    jobs = 1 if means.cluster else means.share
    return [schedule.at_once(group, workers, slot) for slot in schedule.slots(jobs, means.gpus)]


def _memory(groups: Sequence[GroupSettings]) -> list[float]:
    if not any(resolve_device(group.device) == "cuda" for group in groups):
        return []
    return [float(torch.cuda.get_device_properties(gpu).total_memory) for gpu in range(torch.cuda.device_count())]
