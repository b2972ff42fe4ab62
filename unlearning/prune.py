"""Class-discriminative pruning (Wang et al. 2022, WWW; METHODS 1.5): zero the channels that tell the class apart.

Channels are words, classes are documents, and a channel's mean activation for a class is how often the word is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unlearning.layers import Layer
from unlearning.state import State, Tensors

Scope = Literal["auto", "conv", "penultimate", "all"]

ENOUGH_CONVOLUTIONS = 4
"""From here on convolutions alone are pruned, unless another scope is asked for [our choice]."""
MOST_OF_A_LAYER = 0.5
"""No layer loses more of its channels [our choice]."""
FEW_CLASSES = 4
"""Below, the plain inverse document frequency is zero or less for almost every channel (for all of them at two)."""


def prunable(layers: Sequence[Layer], scope: Scope) -> tuple[Layer, ...]:
    """Return the layers whose channels may be pruned, in the order of `layers`; never the head, which is the last.

    Parameters
    ----------
    layers : sequence of Layer
        All of the network's.
    scope : {"auto", "conv", "penultimate", "all"}
        Convolutions, the layer before the head, or both; "auto" takes the convolutions where there are at least four.
    """
    body = layers[:-1]
    convolutions = [layer for layer in body if layer.kind == "conv"]
    if scope == "auto":
        scope = "conv" if len(convolutions) >= ENOUGH_CONVOLUTIONS else "all"
    wanted = {
        "conv": convolutions,
        "penultimate": list(body[-1:]),
        "all": [*convolutions, *body[-1:]],
    }[scope]
    return tuple(layer for layer in body if layer in wanted)


@dataclass(frozen=True)
class Activations:
    """Channel activations by class, as sums that can be added up over sites.

    Attributes
    ----------
    sums : dict of str to Tensor
        By layer name, of shape (channels, classes): over records, the spatial mean of the rectified output.
    counts : Tensor
        Records of each class, shape (classes,), int64.
    """

    sums: Tensors
    counts: Tensor

    @property
    def means(self) -> Tensors:
        """Return the mean activations, fp64; 0 for a class without records."""
        return {name: total.double() / self.counts.clamp(min=1) for name, total in self.sums.items()}


@torch.no_grad()
def class_activations(
    model: nn.Module, layers: Sequence[str], batches: Iterable[tuple[Tensor, Tensor]], num_classes: int
) -> Activations:
    """Run `model` in eval mode and sum what the layers put out.

    Parameters
    ----------
    model : nn.Module
        Not wrapped; put in eval mode.
    layers : sequence of str
        Names of convolution or linear modules. A layer that runs several times in a pass counts with its mean.
    batches : iterable of (inputs, classes)
        On the model's device; classes are int64 of shape (n,), and negative where a record has none: it is left out.
    num_classes : int
        Classes there are, here or elsewhere.
    """
    model.eval()
    modules = dict(model.named_modules())
    put_out: dict[str, list[Tensor]] = {name: [] for name in layers}
    sums: Tensors = {}
    counts = torch.zeros(num_classes, dtype=torch.int64)
    with ExitStack() as hooks:
        for name in layers:
            handle = modules[name].register_forward_hook(_keeping(put_out[name], modules[name]))
            hooks.callback(handle.remove)
        for x, classes in batches:
            model(x)
            known = (classes >= 0).cpu()
            marks = classes.cpu()[known]
            counts += torch.bincount(marks, minlength=num_classes)
            for name, outputs in put_out.items():
                means = torch.stack(outputs).mean(0).cpu().double()[known]
                outputs.clear()
                zero = torch.zeros(means.shape[1], num_classes, dtype=torch.float64)
                sums[name] = sums.get(name, zero).index_add(1, marks, means.t())
    return Activations(sums, counts)


def pooled(parts: Sequence[Activations]) -> Activations:
    """Add up the activations of several sites, in the order given, in fp64; at least one."""
    sums = {name: sum((part.sums[name].double() for part in parts[1:]), first) for name, first in _first(parts)}
    return Activations(sums, torch.stack([part.counts for part in parts]).sum(0))


def class_scores(
    means: Tensor, present: Tensor, forget: Sequence[int], coe: float = 0.0, smooth: bool | None = None
) -> Tensor:
    """Return how specific each channel of a layer is to the classes to forget: TF-IDF.

    Term frequency is a channel's share of a class's activation in the layer, inverse document frequency
    ``log(C / (1 + df))`` of the number of classes for which the channel is at least as active as on average.

    Parameters
    ----------
    means : Tensor
        Mean activations, fp64, shape (channels, classes), at least 0.
    present : Tensor
        Which classes have records, bool, shape (classes,); the others are left out of C, df and averages.
    forget : sequence of int
        Classes to forget; of several, a channel's largest score counts [our choice]. Absent ones score nothing.
    coe : float
        Balances layers of different width: times ``log(e * channels / coe)``; 0: not.
    smooth : bool, optional
        Take ``log((1 + C) / (1 + df))`` instead, which is positive for every df below C; where it is not given, below
        four classes [our choice].

    Returns
    -------
    Tensor
        fp64, shape (channels,); 0 where the layer is dead or no class to forget has records.
    """
    channels = len(means)
    wanted = [c for c in forget if bool(present[c])]
    if not wanted:
        return torch.zeros(channels, dtype=torch.float64)
    used = means[:, present]
    documents = used.shape[1]
    # Equal activations must not fall below their own mean through rounding.
    active = used >= used.mean(1, keepdim=True) * (1 - 1e-12)
    frequency = 1 + active.sum(1).double()
    smoothed = documents < FEW_CLASSES if smooth is None else smooth
    idf = torch.log((documents + smoothed) / frequency)
    total = means.sum(0)
    tf = torch.where(total > 0, means / torch.where(total > 0, total, 1.0), 0.0)
    if coe:
        tf = tf * math.log(math.e * channels / coe)
    return (tf[:, wanted] * idf[:, None]).amax(1)


def choose(scores: Mapping[str, Tensor], ratio: float, gone: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return which channels to prune: the highest scores of all layers together.

    Parameters
    ----------
    scores : mapping of str to Tensor
        By layer name, shape (channels,).
    ratio : float
        Share of all channels, 0 to 1; rounded down.
    gone : mapping of str to Tensor
        Channels that are zero already, bool: not chosen again, but they count towards a layer's limit of a half.

    Returns
    -------
    dict of str to Tensor
        bool, shape (channels,). Ties go to the earlier layer and channel.
    """
    chosen = {name: torch.zeros(len(values), dtype=torch.bool) for name, values in scores.items()}
    room = {name: math.floor(MOST_OF_A_LAYER * len(values)) - int(gone[name].sum()) for name, values in scores.items()}
    places = [(name, channel) for name, values in scores.items() for channel in range(len(values))]
    left = math.floor(ratio * len(places) + 1e-9)
    ranked = torch.cat(list(scores.values())).argsort(descending=True, stable=True)
    for place in ranked.tolist():
        name, channel = places[place]
        if left and room[name] > 0 and not gone[name][channel]:
            chosen[name][channel] = True
            room[name], left = room[name] - 1, left - 1
    return chosen


def zeroed(state: State, layers: Sequence[Layer], channels: Mapping[str, Tensor]) -> State:
    """Return `state` with the filters of some channels set to zero: weight rows, biases, the norm right behind.

    Parameters
    ----------
    state : State
        The model.
    layers : sequence of Layer
        Those that `channels` names.
    channels : mapping of str to Tensor
        By layer name, bool of shape (channels,): True is set to zero.
    """
    params = dict(state.params)
    for layer in layers:
        for name in _filters(layer, params):
            mask = _along_rows(channels[layer.name], params[name])
            params[name] = params[name].masked_fill(mask, 0.0)
    return State(params, state.float_buffers, state.int_buffers)


def zero_channels(state: State, layers: Sequence[Layer]) -> dict[str, Tensor]:
    """Return which channels of the layers are exactly zero: weight row, bias, and norm right behind, in all entries."""
    found = {}
    for layer in layers:
        parts = [
            state.params[name].flatten(1) if state.params[name].dim() > 1 else state.params[name][:, None]
            for name in _filters(layer, state.params)
        ]
        found[layer.name] = torch.cat([part == 0 for part in parts], dim=1).all(1)
    return found


def trainable_filters(state: State, layers: Sequence[Layer]) -> Tensors:
    """Return masks that let everything change but the zero channels of the layers (see `unlearning.partial`)."""
    masks = {name: torch.tensor(True) for name in state.params}
    for layer in layers:
        alive = ~zero_channels(state, [layer])[layer.name]
        if not bool(alive.all()):
            masks |= {name: _along_rows(alive, state.params[name]) for name in _filters(layer, state.params)}
    return masks


def _filters(layer: Layer, params: Mapping[str, Tensor]) -> list[str]:
    norm = [f"{layer.norm}.{kind}" for kind in ("weight", "bias")] if layer.norm else []
    return [name for name in (*layer.own, *norm) if name in params]


def _along_rows(channels: Tensor, parameter: Tensor) -> Tensor:
    return channels.view(-1, *[1] * (parameter.dim() - 1))


def _first(parts: Sequence[Activations]) -> list[tuple[str, Tensor]]:
    return [(name, total.double()) for name, total in parts[0].sums.items()]


def _keeping(into: list[Tensor], module: nn.Module) -> Any:
    def hook(_: nn.Module, __: object, output: Tensor) -> None:
        active = output.relu().float()
        if isinstance(module, nn.Linear):
            into.append(active.flatten(1, -2).mean(1) if active.dim() > 2 else active)
        else:
            into.append(active.flatten(2).mean(2))

    return hook
