"""The two-block CNN of the studies (PROTOCOL): 0.88 M parameters at 3x32x32."""

from __future__ import annotations

from torch import nn


class TwoBlockCNN:
    """Two 5x5 convolutions, each pooled, and two linear layers: 873 408 + 513 C parameters for C classes.

    Inputs larger than 32x32 are averaged to the same 5x5 grid before the linear layers, so the count never changes.
    """

    name = "cnn"
    title = "two-block CNN, 0.88 M parameters"

    def build(self, input_shape: tuple[int, int, int], outputs: int) -> nn.Module:
        """Return the network; see `Model.build`."""
        channels, height, width = input_shape
        blocks = [
            *(nn.Conv2d(channels, 32, kernel_size=5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, kernel_size=5), nn.ReLU(), nn.MaxPool2d(2)),
        ]
        if (height, width) != (32, 32):
            blocks.append(nn.AdaptiveAvgPool2d(5))
        return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(64 * 5 * 5, 512), nn.ReLU(), nn.Linear(512, outputs))


MODEL = TwoBlockCNN()
