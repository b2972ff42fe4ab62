"""ResNet-18 from scratch (torchvision), with BatchNorm."""

from __future__ import annotations

from torch import nn

SMALL = 64
"""Inputs below this side get the small-image stem."""


class ResNet18:
    """torchvision's ResNet-18 without pretrained weights.

    Below 64x64 the stem is the one usual for small images: a 3x3 convolution of stride 1 and no max-pooling, in place
    of the 7x7 convolution of stride 2 and the pooling, which would leave one position of a 32x32 input.
    """

    name = "resnet18"
    title = "ResNet-18 from scratch, 11.2 M parameters, BatchNorm"

    def build(self, input_shape: tuple[int, int, int], outputs: int) -> nn.Module:
        """Return the network; see `Model.build`."""
        from torchvision.models import resnet18  # brings in torch's compiler: 1.5 s that no other network needs

        channels, height, width = input_shape
        network: nn.Module = resnet18(num_classes=outputs)
        if min(height, width) < SMALL:
            network.conv1 = nn.Conv2d(channels, 64, kernel_size=3, stride=1, padding=1, bias=False)
            network.maxpool = nn.Identity()
        elif channels != 3:
            network.conv1 = nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
        return network


MODEL = ResNet18()
