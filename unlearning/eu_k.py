"""EU-k (Goel et al. 2022, arXiv 2201.06640; METHODS 2.2): start the last k layers afresh."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from unlearning.layers import Layer
from unlearning.state import State


def reinitialised(state: State, chosen: Sequence[Layer], seed: int) -> State:
    """Return `state` with fresh chosen layers: weights Kaiming normal (fan in, ReLU gain), biases 0.

    Normalisations keep what they learnt, as in the authors' code, and so does everything else, bit for bit.

    Parameters
    ----------
    state : State
        The model that is to forget.
    chosen : sequence of Layer
        From `unlearning.cf_k.last_layers`.
    seed : int
        Of the weights.
    """
    generator = torch.Generator().manual_seed(seed)
    params = dict(state.params)
    for layer in chosen:
        fresh = torch.empty_like(params[layer.weight])
        params[layer.weight] = nn.init.kaiming_normal_(fresh, generator=generator)
        if layer.bias:
            params[layer.bias] = torch.zeros_like(params[layer.bias])
    return State(params, state.float_buffers, state.int_buffers)
