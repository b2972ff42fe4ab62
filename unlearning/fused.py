"""FUSED (Zhong et al. 2025, CVPR; METHODS 1.13): small adapters in a few layers, which can be taken off again.

The model that is to forget stays as it is. What is learnt lies on top of it, in a fixed sparse set of entries of some
weights or in a low-rank term, so that putting the original entries back gives the original, bit for bit.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import dropout as drop_out

from unlearning.divergence import GROWTH
from unlearning.layers import Layer
from unlearning.local import Batch, Engine, LocalRun, Objective, run_epochs
from unlearning.state import State, Tensors

FEWEST = 2
"""Layers that get an adapter, at least [our choice]."""


# ---------------------------------------------------------------------- which layers
def layer_scores(layers: Sequence[Layer], updates: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """Return how much each layer moved: ``mean_k ||update_k||_1 / entries``, by layer name.

    Parameters
    ----------
    layers : sequence of Layer
        All of the network's.
    updates : sequence of mapping of str to Tensor
        Parameter updates, of those that hold what must be forgotten for a choice that knows of it; at least one.
    """
    return {
        layer.name: sum(_mean_size([update[name] for name in layer.own]) for update in updates) / len(updates)
        for layer in layers
    }


def critical_layers(layers: Sequence[Layer], scores: Mapping[str, float], share: float) -> tuple[Layer, ...]:
    """Return the ``ceil(share * layers)`` layers with the highest scores, at least two, in the order of `layers`.

    Ties go to the earlier layer.
    """
    count = max(FEWEST, math.ceil(share * len(layers) - 1e-9))
    best = sorted(layers, key=lambda layer: -scores[layer.name])[:count]
    return tuple(layer for layer in layers if layer in best)


# ---------------------------------------------------------------------- sparse adapters
def sparse_mask(shape: Sequence[int], density: float, seed: int) -> Tensor:
    """Return a random bool mask with ``round(density * entries)`` entries set, at least one."""
    size = math.prod(shape)
    mask = torch.zeros(size, dtype=torch.bool)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    mask[order[: max(1, round(density * size))]] = True
    return mask.view(*shape)


# ---------------------------------------------------------------------- low-rank adapters
def low_rank_start(weight: Tensor, rank: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the factors A (rank, in) and B (out, rank) of an adapter that does nothing yet.

    A convolution's weight is viewed as ``(out, in * positions)``. A is drawn uniformly, with the bound
    ``1 / sqrt(in)`` that PEFT uses, and B is zero.

    Parameters
    ----------
    weight : Tensor
        Of the layer; at least two dimensions.
    rank : int
        At least 1.
    seed : int
        Of A.
    """
    out, inside = weight.flatten(1).shape
    down = torch.empty(rank, inside, dtype=weight.dtype)
    nn.init.uniform_(down, -1 / math.sqrt(inside), 1 / math.sqrt(inside), generator=torch.Generator().manual_seed(seed))
    return down, torch.zeros(out, rank, dtype=weight.dtype)


def merged_weight(weight: Tensor, down: Tensor, up: Tensor, scale: float) -> Tensor:
    """Return ``weight + scale * B A``, computed in fp64, in the dtype of `weight`; the same bits where B is 0."""
    return (weight.double() + scale * (up.double() @ down.double()).view_as(weight)).to(weight.dtype)


def average(factors: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Tensors:
    """Return the weighted mean of several sites' factors, in fp64, in the dtype of the first.

    A and B are averaged apart, as all federated LoRA does: their product is not the mean of the products.
    """
    mean: Tensors = {}
    for name, first in factors[0].items():
        total = torch.zeros_like(first, dtype=torch.float64)
        for part, weight in zip(factors, weights, strict=True):
            total += weight * part[name].double()
        mean[name] = total.to(first.dtype)
    return mean


def adapt(
    model: nn.Module,
    layers: Sequence[nn.Module],
    factors: Sequence[tuple[Tensor, Tensor]],
    loss: Objective,
    epochs: Iterable[Iterable[Batch]],
    *,
    scale: float,
    dropout: float,
    lr: float,
    momentum: float = 0.0,
    max_norm: float = 0.0,
    engine: Engine | None = None,
    growth: float = GROWTH,
) -> tuple[LocalRun, list[tuple[Tensor, Tensor]]]:
    """Train low-rank factors on top of a model that stays as it is, with its BatchNorm statistics.

    There is no weight decay: it would pull the adapter back to nothing, that is, to the model that must forget.

    Parameters
    ----------
    model : nn.Module
        Wrapped or not; neither its parameters nor its buffers change.
    layers : sequence of nn.Module
        The convolutions or linear modules in it that have an adapter.
    factors : sequence of (Tensor, Tensor)
        A and B of each, see `low_rank_start`.
    loss : callable
        ``(model, x, y) -> scalar Tensor``.
    epochs : iterable of iterables of (x, y)
        The retained batches of each epoch, on the model's device.
    scale : float
        Of B A; LoRA's alpha over rank.
    dropout : float
        Of what an adapter, not its layer, takes in: 0 (none) to below 1.
    lr, momentum, max_norm, engine, growth
        As in `unlearning.local.run_epochs`.

    Returns
    -------
    LocalRun
        What the loop did.
    list of (Tensor, Tensor)
        The factors after it, on the CPU.
    """
    wrapped = _LowRank(model, layers, factors)
    with _held(model), wrapped.attached(layers, scale, dropout):
        run = run_epochs(
            wrapped,
            loss,
            epochs,
            lr=lr,
            momentum=momentum,
            max_norm=max_norm,
            bn_mode="eval",
            engine=engine,
            growth=growth,
        )
    after = [
        (down.detach().to("cpu", copy=True), up.detach().to("cpu", copy=True))
        for down, up in zip(wrapped.down, wrapped.up, strict=True)
    ]
    return run, after


class _LowRank(nn.Module):
    """A model and the factors of its adapters, so that the loop sees both."""

    def __init__(self, body: nn.Module, layers: Sequence[nn.Module], factors: Sequence[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.body = body
        devices = [next(layer.parameters()).device for layer in layers]
        pairs = list(zip(factors, devices, strict=True))
        self.down = nn.ParameterList([nn.Parameter(a.to(d, copy=True)) for (a, _), d in pairs])
        self.up = nn.ParameterList([nn.Parameter(b.to(d, copy=True)) for (_, b), d in pairs])

    def forward(self, *inputs: Tensor) -> Tensor:
        output: Tensor = self.body(*inputs)
        return output

    @contextmanager
    def attached(self, layers: Sequence[nn.Module], scale: float, dropout: float) -> Iterator[None]:
        """Have each layer add ``scale * B A`` applied to its input in its own way (stride, padding, groups)."""
        handles = [
            layer.register_forward_hook(_adding(_without_bias(layer), down, up, scale, dropout))
            for layer, down, up in zip(layers, self.down, self.up, strict=True)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _adding(
    bare: nn.Module, down: Tensor, up: Tensor, scale: float, dropout: float
) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
    shape = dict(bare.named_parameters())["weight"].shape

    def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        weight = (scale * up @ down).view(shape).to(inputs[0].dtype)
        added: Tensor = functional_call(bare, {"weight": weight}, (drop_out(inputs[0], dropout),))
        return output + added

    return hook


def _without_bias(layer: nn.Module) -> nn.Module:
    bare = copy.deepcopy(layer)
    bare.register_parameter("bias", None)
    return bare


@contextmanager
def _held(model: nn.Module) -> Iterator[None]:
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    model.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, taken in before.items():
            parameter.requires_grad_(taken)


# ---------------------------------------------------------------------- putting on and taking off
@dataclass(frozen=True)
class Adapter:
    """The difference between a model with an adapter and without, as values to exchange and not to add.

    Attributes
    ----------
    entries : dict of str to Tensor
        By parameter name, bool: where the two differ. Parameters that do not are left out.
    original, adapted : dict of str to Tensor
        By parameter name, one dimension: the values there without and with the adapter.
    """

    entries: Tensors
    original: Tensors
    adapted: Tensors


def split(adapted: State, base: State) -> Adapter:
    """Return the adapter that makes `adapted` of `base`; raises `ValueError` when their buffers differ."""
    buffers = [{**state.float_buffers, **state.int_buffers} for state in (adapted, base)]
    moved = [name for name in buffers[1] if not torch.equal(buffers[0][name], buffers[1][name])]
    if moved:
        raise ValueError(f"{moved[0]} differs: an adapter leaves the buffers of its base as they are")
    differing = {name: _bits(adapted.params[name]) != _bits(base.params[name]) for name in base.params}
    entries = {name: mask for name, mask in differing.items() if bool(mask.any())}
    return Adapter(
        entries,
        {name: base.params[name][mask] for name, mask in entries.items()},
        {name: adapted.params[name][mask] for name, mask in entries.items()},
    )


def drop(adapted: State, adapter: Adapter) -> State:
    """Take the adapter off: the original, bit for bit, which a difference of sums would not be."""
    return _exchanged(adapted, adapter.entries, adapter.original)


def attach(base: State, adapter: Adapter) -> State:
    """Put the adapter on."""
    return _exchanged(base, adapter.entries, adapter.adapted)


def _exchanged(state: State, entries: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> State:
    params = dict(state.params)
    for name, mask in entries.items():
        params[name] = params[name].masked_scatter(mask, values[name])
    return State(params, state.float_buffers, state.int_buffers)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def _mean_size(tensors: Sequence[Tensor]) -> float:
    return sum(float(t.double().abs().sum()) for t in tensors) / sum(t.numel() for t in tensors)
