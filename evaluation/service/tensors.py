"""Weights and arrays as safetensors, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from evaluation.service.formats import ORDER, BadBlob, first_line, tensors_header
from evaluation.service.limits import DEFAULT, Limits
from unlearning.state import State, Tensors

GROUPS = ("params", "float_buffers", "int_buffers")


def state_bytes(state: State) -> bytes:
    """Return a model's state as safetensors, with the order of its names, in which sums over it are taken."""
    named = {
        f"{group}/{name}": tensor
        for group, tensors in zip(GROUPS, (state.params, state.float_buffers, state.int_buffers), strict=True)
        for name, tensor in tensors.items()
    }
    return save({name: t.contiguous() for name, t in named.items()}, {ORDER: json.dumps(list(named))})


def read_state(data: bytes, limits: Limits = DEFAULT) -> State:
    """Read a state written by `state_bytes`; raises `BadBlob` when it is none."""
    header = tensors_header(data, limits)
    tensors = _loaded(data)
    order = json.loads(header.get("__metadata__", {}).get(ORDER, "null")) or sorted(tensors)
    named = isinstance(order, list) and all(isinstance(name, str) for name in order)
    if not named or sorted(order) != sorted(tensors):
        raise BadBlob("the order of its tensors does not name each of them once")
    groups: dict[str, Tensors] = {group: {} for group in GROUPS}
    for key in order:
        group, _, name = key.partition("/")
        if group not in groups or not name:
            raise BadBlob(f"tensor {key!r} is in none of the groups {', '.join(GROUPS)}")
        groups[group][name] = tensors[key]
    return State(**groups)


def arrays_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return numpy arrays of numbers or booleans as safetensors."""
    return save({name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()})


def read_arrays(data: bytes, limits: Limits = DEFAULT) -> dict[str, np.ndarray]:
    """Read what `arrays_bytes` wrote; raises `BadBlob` when it is not safetensors or a dtype that numpy lacks."""
    tensors_header(data, limits)
    try:
        return {name: tensor.numpy() for name, tensor in _loaded(data).items()}
    except TypeError as error:
        raise BadBlob(f"a dtype that numpy does not have ({first_line(error)})") from None


def _loaded(data: bytes) -> Tensors:
    try:
        return load(data)
    except (SafetensorError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise BadBlob(f"not safetensors: {first_line(error)}") from None
