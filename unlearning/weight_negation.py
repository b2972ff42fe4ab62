"""NoT (Khalil et al. 2025, CVPR; METHODS 1.7): negate one layer's weights. Called `not` in the registry, a keyword."""

from __future__ import annotations

from collections.abc import Sequence

from unlearning.layers import Layer
from unlearning.state import State


def first_layer(layers: Sequence[Layer]) -> Layer | None:
    """Return the convolution that runs first; without any, the linear layer that does; without any, None."""
    return next((layer for layer in layers if layer.kind == "conv"), next(iter(layers), None))


def negate(state: State, layer: Layer, *, negate_bn_mean: bool = False) -> State:
    """Return `state` with the weight of `layer` multiplied by -1; its bias and every other tensor as they are.

    Parameters
    ----------
    state : State
        The model; not changed.
    layer : Layer
        One of its layers.
    negate_bn_mean : bool
        Also move the running mean of the BatchNorm right behind to the mean that the negated layer has: from ``m`` to
        ``2 b - m`` with the layer's bias ``b``, which is ``-m`` where it has none. Ours; the original leaves it.
    """
    params = {**state.params, layer.weight: -state.params[layer.weight]}
    buffers = dict(state.float_buffers)
    mean = f"{layer.norm}.running_mean"
    if negate_bn_mean and mean in buffers:
        buffers[mean] = (2 * state.params[layer.bias] if layer.bias else 0.0) - buffers[mean]
    return State(params, buffers, state.int_buffers)
