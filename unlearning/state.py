"""A model's state as three groups that are never mixed: parameters, float buffers, integer buffers (METHODS 0.4)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Update:
    """The change of one site in one round, ``after - before``, without integer buffers.

    Attributes
    ----------
    params, float_buffers : dict of str to Tensor
        CPU tensors in the dtype of the state.
    """

    params: Tensors
    float_buffers: Tensors

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return numpy views keyed ``params/<name>`` and ``float_buffers/<name>``."""
        return _to_arrays(params=self.params, float_buffers=self.float_buffers)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Update:
        """Rebuild an update from `to_arrays`."""
        groups = _from_arrays(arrays)
        return cls(groups["params"], groups["float_buffers"])


@dataclass(frozen=True)
class State:
    """A model's whole state on the CPU, contiguous, detached from any module.

    Attributes
    ----------
    params : dict of str to Tensor
        ``named_parameters()``: the only group that arithmetic methods touch.
    float_buffers : dict of str to Tensor
        For example BatchNorm running statistics: plain FedAvg only.
    int_buffers : dict of str to Tensor
        For example ``num_batches_tracked``: copied, never averaged. 0-d shapes are kept.
    """

    params: Tensors
    float_buffers: Tensors
    int_buffers: Tensors

    @classmethod
    def from_module(cls, module: nn.Module) -> State:
        """Copy the state of `module` (non-persistent buffers are left out, shared tensors once)."""
        persistent = set(module.state_dict().keys())
        params = {n: _copy(p) for n, p in module.named_parameters()}
        buffers = {n: b for n, b in module.named_buffers() if n in persistent}
        return cls(
            params,
            {n: _copy(b) for n, b in buffers.items() if b.is_floating_point()},
            {n: _copy(b) for n, b in buffers.items() if not b.is_floating_point()},
        )

    def load_into(self, module: nn.Module) -> None:
        """Copy this state into `module` in place; raises `ValueError` when names or shapes differ."""
        targets = dict(module.named_parameters()) | {
            n: b for n, b in module.named_buffers() if n in module.state_dict()
        }
        mine = self.params | self.float_buffers | self.int_buffers
        if targets.keys() != mine.keys():
            differing = sorted(targets.keys() ^ mine.keys())
            raise ValueError(f"state and model differ in {len(differing)} tensors, first {differing[0]!r}")
        with torch.no_grad():
            for name, target in targets.items():
                if target.shape != mine[name].shape:
                    raise ValueError(f"{name}: state has shape {tuple(mine[name].shape)}, model {tuple(target.shape)}")
                target.copy_(mine[name])

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return numpy views keyed ``params/<name>``, ``float_buffers/<name>``, ``int_buffers/<name>``."""
        return _to_arrays(params=self.params, float_buffers=self.float_buffers, int_buffers=self.int_buffers)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> State:
        """Rebuild a state from `to_arrays`."""
        return cls(**_from_arrays(arrays))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> State:
        """Make a state of tensors keyed like `to_arrays`; they are not copied."""
        return cls(**_grouped(tensors))

    def is_finite(self) -> bool:
        """Tell whether every floating-point tensor is finite."""
        return all_finite(self.params) and all_finite(self.float_buffers)

    def sha256(self) -> str:
        """Return the hex SHA-256 over names, dtypes, shapes and bytes, in sorted order."""
        digest = hashlib.sha256()
        for name, array in sorted(self.to_arrays().items()):
            digest.update(f"{name}|{array.dtype.str}|{array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()

    def norm(self) -> float:
        """Return the L2 norm over parameters, accumulated in fp64."""
        return norm(self.params)


def update_of(after: State, before: State) -> Update:
    """Return ``after - before`` for parameters and float buffers."""
    return Update(
        {n: after.params[n] - before.params[n] for n in before.params},
        {n: after.float_buffers[n] - before.float_buffers[n] for n in before.float_buffers},
    )


def apply_updates(start: State, updates: Sequence[Update], weights: Sequence[float]) -> State:
    """Return ``start + sum_k weights[k] * updates[k]``: FedAvg when the weights sum to one.

    Sums are accumulated in fp64 in the order given (sort by site first) and cast back to the dtype of `start`.
    ``running_var`` is clamped to be non-negative, integer buffers are copied from `start`. Weights are used as given,
    for parameters and float buffers alike; they may sum to less than one.
    """
    params = _combine(start.params, [u.params for u in updates], weights)
    buffers = _combine(start.float_buffers, [u.float_buffers for u in updates], weights)
    for name, tensor in buffers.items():
        if name.endswith("running_var"):
            tensor.clamp_(min=0)
    return State(params, buffers, {n: t.clone() for n, t in start.int_buffers.items()})


def all_finite(tensors: Mapping[str, Tensor]) -> bool:
    """Tell whether every tensor is finite; integers and booleans are."""
    return all(_is_finite(t) for t in tensors.values())


def norm(tensors: Mapping[str, Tensor]) -> float:
    """Return the L2 norm over all tensors, accumulated in fp64; 0.0 for none."""
    return math.sqrt(sum(float(t.double().pow(2).sum()) for t in tensors.values()))


def distance(a: State, b: State) -> float:
    """Return the L2 distance between the parameters of two states; raises `ValueError` when their names differ."""
    if a.params.keys() != b.params.keys():
        differing = sorted(a.params.keys() ^ b.params.keys())
        raise ValueError(f"the models differ in {len(differing)} tensors, first {differing[0]!r}")
    return norm({n: a.params[n].double() - b.params[n].double() for n in a.params})


def _combine(start: Tensors, updates: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
    combined: Tensors = {}
    for name, tensor in start.items():
        total = tensor.to(torch.float64, copy=True)
        addend = torch.empty_like(total)
        for update, weight in zip(updates, weights, strict=True):
            total.add_(addend.copy_(update[name]).mul_(weight))
        combined[name] = total.to(tensor.dtype)
    return combined


def _is_finite(tensor: Tensor) -> bool:
    # A sum is finite only if every term is, and costs a fraction of `isfinite`; finite terms can still overflow it.
    return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _to_arrays(**groups: Tensors) -> dict[str, np.ndarray]:
    return {f"{group}/{name}": t.contiguous().numpy() for group, ts in groups.items() for name, t in ts.items()}


def _from_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensors]:
    return _grouped({key: torch.from_numpy(np.array(array, order="C", ndmin=0)) for key, array in arrays.items()})


def _grouped(tensors: Mapping[str, Tensor]) -> dict[str, Tensors]:
    groups: dict[str, Tensors] = {"params": {}, "float_buffers": {}, "int_buffers": {}}
    for key, tensor in tensors.items():
        group, _, name = key.partition("/")
        if group not in groups or not name:
            raise ValueError(f"array {key!r} is in none of the groups {', '.join(groups)}")
        groups[group][name] = tensor
    return groups
