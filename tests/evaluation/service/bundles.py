"""Submissions of a made-up federation, complete and in every form that travels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from evaluation.shadows import Shadows
from evaluation.submission import Submission

Maker = Callable[..., Any]


def labels(method: str = "ga", checkpoint: str = "unlearned", **changes: Any) -> dict[str, Any]:
    return {
        "cell": f"cell-{method}",
        "experiment": "small",
        "task": "classification",
        "dataset": "digits",
        "partition": "dirichlet",
        "alpha": 0.1,
        "model": "cnn",
        "request": "client:site-0",
        "granularity": "client",
        "method": method,
        "preset": "lethe",
        "checkpoint": checkpoint,
        "train_seed": 0,
        "unlearn_seed": 0,
    } | changes


def shadows(records: list[str], seed: int = 0) -> Shadows:
    rng, count = np.random.default_rng(seed), len(records)
    return Shadows(
        records=tuple(records),
        unlearned=np.arange(count) % 2 == 0,
        clients=np.array([record[:6] for record in records]),
        forgotten=rng.random((4, count)) < 0.5,
        trained=rng.normal(size=(4, count)),
        forgot=rng.normal(size=(4, count)),
        retrained=rng.normal(size=(2, count)),
        seed_gaps=(0.25, 0.5),
        reason="",
    )


class Bundles:
    """Makes submissions; `make_model` and the other makers are those of tests/evaluation/conftest.py."""

    def __init__(self, make_model: Maker, make_scorecard: Maker, make_comparison: Maker, make_state: Maker) -> None:
        self.model, self.scorecard, self.comparison, self.state = (
            make_model,
            make_scorecard,
            make_comparison,
            make_state,
        )
        self.gold = make_model("retrain", "unlearned", scorecard=make_scorecard(seed=7), state=make_state(0.5, 2.5))
        self.other = make_model("retrain", "recovered", scorecard=make_scorecard(seed=8), state=make_state(0.25, 2.0))

    def __call__(self, method: str = "ga", seed: int = 1, **changes: Any) -> Submission:
        """Make a submission that uses everything; keywords replace its parts."""
        card = self.scorecard(seed=seed, shift=0.1 * seed)
        probed = pd.DataFrame({"epoch": np.arange(3), "curve": [0.5, np.nan, -0.0], "set": ["a", "b", "a"]})
        parts: dict[str, Any] = {
            "labels": labels(method),
            "model": self.model(
                method, "unlearned", scorecard=card, state=self.state(1.0 + seed, 2.0), tables={"probe": probed}
            ),
            "gold": self.gold,
            "other_gold": self.other,
            "comparison": self.comparison(card, 0.1 + seed / 7),
            "granularity": "client",
            "metric_name": "accuracy",
            "higher_is_better": True,
            "has_reference": False,
            "evaluate_seeds": (0,),
            "earlier": ("class",),
            "shadows": shadows(sorted(card.loc[card["site"] == "site-0", "record"])),
        }
        return Submission(**(parts | changes))

    def of_gold(self) -> Submission:
        """Make the submission of gold itself, which is its own gold."""
        return self("retrain", labels=labels("retrain"), model=self.gold, gold=self.gold, comparison=None)

    def unfit(self) -> Submission:
        """Make the submission of a method that cannot do the request."""
        model = self.model(
            "federaser", "unlearned", scorecard=None, state=None, cost=None, status="not_applicable", reason="a class"
        )
        labelled = labels("federaser", alpha=None, train_seed=None)
        return self("federaser", labels=labelled, model=model, comparison=None, shadows=None, earlier=())
