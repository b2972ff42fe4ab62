"""Small networks with the traits that matter: norms, a shortcut that is listed after it runs, a head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unlearning.layers import Layer, layers_of
from unlearning.state import State

CLASSES = 4


class Block(nn.Module):
    """A residual block; like torchvision's it lists the shortcut last and runs it last."""

    def __init__(self, inside: int, out: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inside, out, 3, padding=1, bias=False), nn.BatchNorm2d(out)
        self.shortcut = nn.Conv2d(inside, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn1(self.conv1(x)) + self.shortcut(x))


class ShortcutFirst(Block):
    """The same block, which runs its shortcut before the path it is listed behind."""

    def forward(self, x: Tensor) -> Tensor:
        short = self.shortcut(x)
        return torch.relu(self.bn1(self.conv1(x)) + short)


def plain() -> nn.Sequential:
    """Return two convolutions, a hidden linear layer and a head, without norms, for 1x8x8 inputs."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(8 * 2 * 2, 10), nn.ReLU(), nn.Linear(10, CLASSES)),
    )


def normed(block: type[Block] = Block) -> nn.Sequential:
    """Return a network with BatchNorm and a block, for 1x8x8 inputs."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), block(6, 8)),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, CLASSES)),
    )


def seeded(build, seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a network with seeded weights, and statistics that are not those of a fresh one."""
    torch.manual_seed(seed)
    model = build().to(dtype)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.5, 2.0)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.3, 0.3)
    return model


def layers(model: nn.Module) -> tuple[Layer, ...]:
    """Return the layers of one of these networks."""
    return layers_of(model, torch.zeros(1, 1, 8, 8, dtype=next(model.parameters()).dtype))


def data(n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return inputs and classes."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, 8, 8, generator=generator, dtype=dtype)
    return x, torch.randint(0, CLASSES, (n,), generator=generator)


def cut(x: Tensor, y: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    """Return batches in order."""
    return list(zip(x.split(size), y.split(size), strict=True))


def changed(a: State, b: State) -> set[str]:
    """Return the names of the tensors, buffers too, that are not the same bits."""
    left, right = ({**s.params, **s.float_buffers, **s.int_buffers} for s in (a, b))
    return {name for name in left if not torch.equal(left[name], right[name])}
