"""What methods share that train part of the model at the sites: the masks that travel, and a recovery held to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from strategies.recovery import RecoveryHook
from unlearning.partial import confined
from unlearning.state import State

TRAINABLE = "trainable"
"""Name of the further model whose parameters are masks of what may change (`clients.training.PartlyTrainable`)."""


def whole(names: Iterable[str]) -> dict[str, Tensor]:
    """Return masks that let every entry of the named parameters change."""
    return {name: torch.tensor(True) for name in names}


def masks_to_send(trainable: Mapping[str, Tensor]) -> dict[str, State]:
    """Return the further models of a message whose sites may change only that."""
    return {TRAINABLE: State(dict(trainable), {}, {})}


@dataclass(frozen=True)
class PartialRecovery(RecoveryHook):
    """A recovery that changes part of the model, at the sites and at the server.

    Attributes
    ----------
    trainable : mapping of str to Tensor
        Masks by parameter name, see `unlearning.partial.confined`; not empty.
    """

    trainable: Mapping[str, Tensor] = field(default_factory=dict)

    def message_states(self, round_: int) -> Mapping[str, State]:
        """Send the masks."""
        return masks_to_send(self.trainable)

    def after_round(self, round_: int, before: State, after: State) -> State:
        """Put back what may not change."""
        return confined(before, after, self.trainable)
