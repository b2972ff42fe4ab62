"""Training part of a model: masks of what may change, and the rest put back bit for bit."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from unlearning.state import State


def confined(before: State, after: State, trainable: Mapping[str, Tensor]) -> State:
    """Return `after` with every parameter entry that may not change as it is in `before`.

    Parameters
    ----------
    before, after : State
        Of the same model.
    trainable : mapping of str to Tensor
        By parameter name, booleans that broadcast to the parameter: where True it may change. Parameters that are not
        named may not. Buffers are those of `after`.
    """
    params = {
        name: torch.where(trainable[name], after.params[name], old) if name in trainable else old
        for name, old in before.params.items()
    }
    return State(params, after.float_buffers, after.int_buffers)
