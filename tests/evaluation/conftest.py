"""A made-up federation of four sites, scored as the sites would score it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from evaluation.evidence import DIVERGENCES, Evidence
from evaluation.panel import ScoredModel
from unlearning.state import State

Maker = Callable[..., Any]


def scorecard(
    granularity: str = "client",
    *,
    train: int = 60,
    holdout: int = 30,
    reference: int = 0,
    sites: int = 4,
    seed: int = 0,
    shift: float = 0.0,
) -> pd.DataFrame:
    """Score `sites` sites with three strata; the request removes site-0, stratum 0, or a tenth of the train records."""
    rng = np.random.default_rng(seed)
    parts = [(f"site-{k}", split, n) for k in range(sites) for split, n in (("train", train), ("holdout", holdout))]
    rows = []
    for site, split, count in [*parts, ("", "reference", reference)]:
        for index in range(count):
            stratum, hit = str(index % 3), float(rng.random() < 0.7)
            selected = {
                "client": site == "site-0",
                "class": stratum == "0",
                "sample": split == "train" and index % 10 == 0,
            }[granularity]
            rows.append(
                {
                    "record": f"{site}-{split}-{index:04d}",
                    "site": site,
                    "patient": f"{site}-{split}-p{index}",
                    "split": split,
                    "stratum": stratum,
                    "selected": selected,
                    "retained": not selected,
                    "step": int(selected),
                    "metric": hit,
                    "loss": float(rng.exponential(0.2 if hit else 2.0)) + shift,
                    "phi": 0.0,
                    "entropy": 0.0,
                    "hinge": 0.0,
                }
            )
    return pd.DataFrame(rows)


def comparison(card: pd.DataFrame, value: float = 0.25) -> pd.DataFrame:
    """Compare every record of a scorecard with gold, with one value everywhere."""
    return card[["record", "split", "selected", "retained"]].assign(**dict.fromkeys(DIVERGENCES, value))


def state(*values: float, buffer: float = 0.0) -> State:
    """Make a state with one parameter tensor a value and one float buffer."""
    params = {f"layer{i}.weight": torch.tensor([value]) for i, value in enumerate(values)}
    return State(params, {"bn.running_mean": torch.tensor([buffer])}, {"bn.num_batches_tracked": torch.tensor(3)})


def model(method: str = "ga", checkpoint: str = "unlearned", **changes: Any) -> ScoredModel:
    """Make a scored model with a fixed cost; keywords replace its parts."""
    timing = {"host": "h", "workers": 2, "threads": 1, "jobs": 1}
    cost = {"seconds": 4.0, "client_seconds": 6.0, "client_examples": 200, "gradient_steps": 9, **timing}
    cost |= {"bytes_down": 100, "bytes_up": 50, "disk_read": 0}
    parts = {"status": "ok", "reason": "", "scorecard": scorecard(), "state": state(1.0, 2.0), "cost": cost} | changes
    return ScoredModel(method=method, preset="lethe", checkpoint=checkpoint, **parts)


def evidence(subject: ScoredModel, gold: ScoredModel | None = None, **changes: Any) -> Evidence:
    """Make the evidence of a client request; keywords replace its parts."""
    parts: dict[str, Any] = {
        "other_gold": None,
        "comparison": None,
        "granularity": "client",
        "metric_name": "accuracy",
        "higher_is_better": True,
        "has_reference": False,
        "seed": 0,
    }
    return Evidence(model=subject, gold=gold, **(parts | changes))


@pytest.fixture
def make_scorecard() -> Maker:
    return scorecard


@pytest.fixture
def make_comparison() -> Maker:
    return comparison


@pytest.fixture(scope="session")
def make_state() -> Maker:
    return state


@pytest.fixture
def make_model() -> Maker:
    return model


@pytest.fixture
def make_evidence() -> Maker:
    return evidence
