"""The layers of a network in the order in which it runs them, for methods that choose some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

Kind = Literal["conv", "linear"]


@dataclass(frozen=True)
class Layer:
    """A convolution or linear layer, and the normalisation right behind it.

    Attributes
    ----------
    name : str
        Of the module, as in ``named_modules()``.
    kind : {"conv", "linear"}
        What it is.
    weight, bias : str
        Names of its parameters; `bias` is empty where it has none.
    norm : str
        Name of the BatchNorm module that follows it; empty where none does.
    width : int
        Output channels or features.
    """

    name: str
    kind: Kind
    weight: str
    bias: str
    norm: str
    width: int

    @property
    def own(self) -> tuple[str, ...]:
        """Return the names of the layer's own parameters."""
        return (self.weight, self.bias) if self.bias else (self.weight,)


@torch.no_grad()
def layers_of(model: nn.Module, example: Tensor) -> tuple[Layer, ...]:
    """Return the convolutions and linear layers that `model` runs on `example`, in order of their first use.

    The order of modules is not that of execution: a ResNet lists a block's shortcut after its main path. The last layer
    is the head. The model is left in the mode it was in, and its statistics are not touched.

    Parameters
    ----------
    model : nn.Module
        The network, not wrapped.
    example : Tensor
        A batch of one record.
    """
    names = {module: name for name, module in model.named_modules()}
    modes = {module: module.training for module in names}
    ran: list[nn.Module] = []

    def note(module: nn.Module, *_: object) -> None:
        if module not in ran:
            ran.append(module)

    interesting = [module for module in names if isinstance(module, (_ConvNd, nn.Linear, _BatchNorm))]
    handles = [module.register_forward_hook(note) for module in interesting]
    try:
        model.eval()(example)
    finally:
        for handle in handles:
            handle.remove()
        for module, training in modes.items():
            module.training = training
    return tuple(
        _layer(names[module], module, _norm_behind(ran[place + 1 :], names))
        for place, module in enumerate(ran)
        if isinstance(module, (_ConvNd, nn.Linear))
    )


def _layer(name: str, module: _ConvNd | nn.Linear, norm: str) -> Layer:
    stem = f"{name}." if name else ""
    kind: Kind = "linear" if isinstance(module, nn.Linear) else "conv"
    width = module.out_features if isinstance(module, nn.Linear) else module.out_channels
    return Layer(name, kind, f"{stem}weight", f"{stem}bias" if module.bias is not None else "", norm, width)


def _norm_behind(later: Sequence[nn.Module], names: dict[nn.Module, str]) -> str:
    return names[later[0]] if later and isinstance(later[0], _BatchNorm) else ""
