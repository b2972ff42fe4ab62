"""Network, data and training, in the manner of Flower's PyTorch quickstart."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import Compose, Normalize, Pad, ToTensor

TRANSFORMS = Compose([ToTensor(), Pad(2), Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))])


class Net(nn.Module):
    """Two 5x5 convolutions, each pooled, and two linear layers, on 3x32x32."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 5), nn.Conv2d(32, 64, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1, self.fc2 = nn.Linear(64 * 5 * 5, 512), nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Records(Dataset[dict[str, Tensor]]):
    """A site's 28x28 RGB images, transformed as each batch is fetched."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as arrays:
            self.images, self.labels = arrays["images"], arrays["labels"]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: list[int]) -> list[dict[str, Tensor]]:
        """Return a batch's records."""
        return [{"img": TRANSFORMS(self.images[i]), "label": torch.tensor(self.labels[i])} for i in indices]


@cache
def load_records(folder: str, partition_id: int) -> Records:
    """Read a site's records once a process."""
    return Records(Path(folder) / f"{partition_id}.npz")


def load_data(folder: str, partition_id: int, batch_size: int) -> DataLoader[dict[str, Tensor]]:
    """Return a site's DataLoader."""
    return DataLoader(load_records(folder, partition_id), batch_size=batch_size, shuffle=True)


def train(net: nn.Module, loader: DataLoader[dict[str, Tensor]], epochs: int, lr: float, device: torch.device) -> float:
    """Train in place and return the mean loss."""
    net.to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for batch in loader:
            images, labels = batch["img"].to(device), batch["label"].to(device)
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(loader))
