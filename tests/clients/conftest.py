"""Small sites in memory: no data set, no split, nothing on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from clients.catalogue import TASKS
from clients.site import Site, SiteSettings
from partitions.partition import SplitSpec
from partitions.records import LoadedData
from unlearning.state import State

CLASSES = ("air", "lung", "bone")


def _data(n: int, side: int = 10, seed: int = 0) -> LoadedData:
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, len(CLASSES), n).astype(np.int64)
    inputs = rng.integers(0, 60, (n, side, side), dtype=np.uint8)
    inputs[np.arange(n), targets] += 150
    table = pd.DataFrame(
        {
            "record": [f"{i:016x}" for i in range(n)],
            "patient": [f"patient-{i % 4}" for i in range(n)],
            "stratum": [str(t) for t in targets],
            "site": "",
            "split": "",
            "position": -1,
        }
    )
    return LoadedData(
        name="toy",
        inputs=inputs,
        targets=targets,
        table=table,
        classes=CLASSES,
        licence="none",
        source="made up",
        citation="",
        fingerprint="ab" * 32,
        available=n,
    )


@pytest.fixture
def make_site() -> Callable[..., Site]:
    """Return a factory of sites with `train` training and `holdout` held-out records."""

    def make(train: int = 30, holdout: int = 8, name: str = "site-0", seed: int = 0, **settings: Any) -> Site:
        data = _data(train + holdout, seed=seed)
        spec = SplitSpec(name="iid", sites=1, alpha=0.1, sole_holder="", holdout=0.2, seed=0)
        chosen = {"batch_size": 8, "device": "cpu", **settings}
        made = SiteSettings(home=Path("nowhere"), dataset="toy", cap=0, split=spec, **chosen)
        if not name:
            return Site("", made, data, {"reference": np.arange(train)})
        return Site(name, made, data, {"train": np.arange(train), "holdout": np.arange(train, train + holdout)})

    return make


@pytest.fixture
def initial() -> Callable[..., State]:
    """Return a factory of seeded initial states."""

    def make(model: str = "cnn", seed: int = 0, dtype: torch.dtype = torch.float32) -> State:
        torch.manual_seed(seed)
        return State.from_module(TASKS.get("classification").build(model, (10, 10), len(CLASSES)).to(dtype))

    return make
