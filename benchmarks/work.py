"""The work that everything in one benchmark run does: the same records, split, network, epochs and batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from clients.catalogue import MODELS
from clients.site import SiteSettings
from flower_apps.control import Scalar
from partitions.catalogue import DATASETS
from partitions.partition import Partition, SplitSpec, make_partition
from partitions.records import LoadedData


@dataclass(frozen=True)
class Mode:
    """How a network computes: a precision of Lightning Fabric and a memory format."""

    precision: str
    channels_last: bool

    @property
    def label(self) -> str:
        """Name in tables."""
        return f"{self.precision} {'channels_last' if self.channels_last else 'contiguous'}"


FP32 = Mode("32-true", False)
FP32_LAST = Mode("32-true", True)
BF16 = Mode("bf16-mixed", False)
BF16_LAST = Mode("bf16-mixed", True)
MODES = (FP32, FP32_LAST, BF16, BF16_LAST)


@dataclass(frozen=True)
class Work:
    """What is done, and how much of it.

    Attributes
    ----------
    home : Path
        LETHE_HOME, for the data set.
    folder : Path
        Everything that the benchmark writes goes below it.
    dataset, cap, sites : str, int, int
        Records, spread evenly over the sites (``iid``).
    rounds, epochs, batch_size, lr : int, int, int, float
        Of the federated training; the plain loop does the same.
    workers : int
        Sites at work at once, one torch thread each.
    repeats : int
        How often measurements within this process are repeated.
    """

    home: Path
    folder: Path
    dataset: str = "lung-ct"
    cap: int = 600
    sites: int = 20
    rounds: int = 10
    epochs: int = 2
    batch_size: int = 64
    lr: float = 0.01
    workers: int = 2
    repeats: int = 5

    model = "cnn"

    @property
    def split(self) -> SplitSpec:
        """How the records are spread."""
        return SplitSpec(name="iid", sites=self.sites, alpha=0.1, sole_holder="", holdout=0.2, seed=0)

    @cached_property
    def data(self) -> LoadedData:
        """The records; fetched and prepared at first use."""
        return DATASETS.get(self.dataset).load(self.home, self.cap)

    @cached_property
    def partition(self) -> Partition:
        """Which site has which."""
        return make_partition(self.data, self.split)

    @property
    def samples(self) -> int:
        """Records processed in a round, a record counting once an epoch."""
        return self.epochs * sum(len(own) for own in self.partition.train.values())

    def arrays(self, site: str) -> tuple[np.ndarray, np.ndarray]:
        """Return copies of a site's training inputs (uint8) and targets (int64)."""
        own = self.partition.train[site]
        return np.asarray(self.data.inputs)[own], np.asarray(self.data.targets)[own]

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.data.classes)

    def parameters(self) -> int:
        """Return the parameters of the network."""
        network = MODELS.get(self.model).build((3, 32, 32), self.classes)
        return sum(p.numel() for p in network.parameters())

    def settings(self, mode: Mode) -> dict[str, Scalar]:
        """Return the work as flat Lethe settings; the request is only there because a run must have one."""
        return {
            "dataset": self.dataset,
            "cap": self.cap,
            "split": "iid",
            "sites": self.sites,
            "model": self.model,
            "rounds": self.rounds,
            "local-epochs": self.epochs,
            "batch-size": self.batch_size,
            "lr": self.lr,
            "precision": mode.precision,
            "channels-last": mode.channels_last,
            "threads": 1,
            "device": "cpu",
            "requests": "client:site-0",
            "methods": "ga",
        }

    def site_settings(self, mode: Mode) -> SiteSettings:
        """Return the work as the settings of a site."""
        return SiteSettings(
            home=self.home,
            dataset=self.dataset,
            cap=self.cap,
            split=self.split,
            model=self.model,
            batch_size=self.batch_size,
            precision=mode.precision,
            channels_last=mode.channels_last,
            threads=1,
            device="cpu",
        )
