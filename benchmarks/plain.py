"""The yardstick: federated averaging as a plain PyTorch loop over the sites, in one process and one thread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.work import Mode, Work
from clients.catalogue import MODELS, TASKS

State = dict[str, Tensor]


@dataclass(frozen=True)
class PlainSite:
    """A site's records as float tensors in memory: inputs (n, H, W, 3) for channels_last, else (n, 3, H, W)."""

    inputs: Tensor
    targets: Tensor


class PlainLoop:
    """Everything prepared, so that `round` times training and averaging and nothing else."""

    def __init__(self, work: Work, mode: Mode, sites: int | None = None) -> None:
        self._work, self._mode = work, mode
        memory_format = torch.channels_last if mode.channels_last else torch.contiguous_format
        torch.manual_seed(0)
        self._network = MODELS.get(work.model).build((3, 32, 32), work.classes).to(memory_format=memory_format)
        self._state = _copied(self._network)
        self._sites = [self._prepared(*work.arrays(site)) for site in work.partition.sites[:sites]]

    @property
    def samples(self) -> int:
        """Records processed in a round."""
        return self._work.epochs * sum(len(site.targets) for site in self._sites)

    def round(self) -> float:
        """Do one round and return its seconds."""
        torch.set_num_threads(1)
        started = time.perf_counter()
        total = sum(len(site.targets) for site in self._sites)
        mean = {name: torch.zeros_like(tensor) for name, tensor in self._state.items()}
        for site in self._sites:
            self._network.load_state_dict(self._state)
            self._train(site)
            for name, tensor in self._network.state_dict().items():
                mean[name].add_(tensor, alpha=len(site.targets) / total)
        self._state = mean
        return time.perf_counter() - started

    def _train(self, site: PlainSite) -> None:
        optimizer = torch.optim.SGD(self._network.parameters(), lr=self._work.lr)
        self._network.train()
        for _ in range(self._work.epochs):
            for chosen in torch.split(torch.randperm(len(site.targets)), self._work.batch_size):
                x, y = site.inputs[chosen], site.targets[chosen]
                x = x.permute(0, 3, 1, 2) if self._mode.channels_last else x
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=self._mode.precision == "bf16-mixed"):
                    loss = cross_entropy(self._network(x), y)
                torch.autograd.backward(loss)
                optimizer.step()

    def _prepared(self, inputs: np.ndarray, targets: np.ndarray) -> PlainSite:
        x = TASKS.get("classification").to_inputs(torch.from_numpy(inputs))
        x = x.permute(0, 2, 3, 1) if self._mode.channels_last else x
        return PlainSite(x.contiguous(), torch.from_numpy(targets))


def plain_rounds(work: Work, mode: Mode, rounds: int) -> list[float]:
    """Return the seconds of `rounds` rounds after one round of a single site to warm up."""
    PlainLoop(work, mode, sites=1).round()
    loop = PlainLoop(work, mode)
    return [loop.round() for _ in range(rounds)]


def middle(values: Sequence[float]) -> float:
    """Return the median."""
    return float(np.median(values))


def _copied(network: nn.Module) -> State:
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}
