"""CF-k (Goel et al. 2022, arXiv 2201.06640; METHODS 2.2): which parameters belong to a network's last k layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from unlearning.layers import Layer

Definition = Literal["goel", "mufac"]


def last_layers(layers: Sequence[Layer], k: int, definition: Definition = "goel") -> tuple[Layer, ...]:
    """Return the last k layers, in the order in which the network runs them.

    Parameters
    ----------
    layers : sequence of Layer
        All of the network's, in that order. The order of modules would count a ResNet's shortcut after the convolutions
        that run behind it.
    k : int
        How many, at least 1; all of them where there are fewer.
    definition : {"goel", "mufac"}
        A layer is a convolution or linear layer (Goel et al.), or a top-level module that has some (Choi & Na 2023,
        whose CF-3 trains ``layer3``, ``layer4`` and ``fc`` of a ResNet: many more than three).
    """
    if definition == "goel":
        return tuple(layers[-k:])
    last = list(dict.fromkeys(_top(layer.name) for layer in layers))[-k:]
    return tuple(layer for layer in layers if _top(layer.name) in last)


def parameters_of(chosen: Sequence[Layer], names: Iterable[str], definition: Definition = "goel") -> tuple[str, ...]:
    """Return the names of the parameters that train with the chosen layers, in the order of `names`.

    Parameters
    ----------
    chosen : sequence of Layer
        From `last_layers`.
    names : iterable of str
        All parameters of the network.
    definition : {"goel", "mufac"}
        With "goel" the layers' own and those of the normalisation right behind each, which is passed on the way to it
        and is not counted; with "mufac" everything below the same top-level modules.
    """
    if definition == "mufac":
        tops = {_top(layer.name) for layer in chosen}
        return tuple(name for name in names if _top(name) in tops)
    own = {name for layer in chosen for name in layer.own}
    norms = {f"{layer.norm}.{kind}" for layer in chosen if layer.norm for kind in ("weight", "bias")}
    return tuple(name for name in names if name in own | norms)


def _top(name: str) -> str:
    return name.partition(".")[0]
