"""What a network is to the rest of the room."""

from __future__ import annotations

from typing import Protocol

from torch import nn


class Model(Protocol):
    """A network by name.

    Attributes
    ----------
    name : str
        Name in manifests and registries.
    title : str
        One line for people.
    """

    name: str
    title: str

    def build(self, input_shape: tuple[int, int, int], outputs: int) -> nn.Module:
        """Return a freshly initialised network, from torch's global random stream.

        Parameters
        ----------
        input_shape : tuple of int
            Channels, height, width of one input as `Task.to_inputs` makes it.
        outputs : int
            Number of outputs, for example classes.
        """
