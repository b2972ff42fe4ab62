"""Task metric and loss on forget, retain and test records, and their differences to gold (METRICS 0.5, 3.5)."""

from __future__ import annotations

import math

from evaluation.evidence import SPLITS, SplitName
from evaluation.metrics.base import Metric

_WHICH: dict[SplitName, str] = {
    "forget": "held-out records like the forgotten ones (sample requests: the removed records)",
    "retain": "held-out records like the retained ones (sample requests: test)",
    "forget_train": "the removed training records",
    "retain_train": "the retained training records",
    "test": "the reference set, else all sites' holdouts",
}


def _task_metric(which: SplitName) -> Metric:
    return Metric(
        name=f"{which}_{{metric}}",
        title=f"task metric on {_WHICH[which]}",
        unit="",
        low=-math.inf,
        high=math.inf,
        better="gold",
        compute=lambda evidence: evidence.mean("metric", which),
        difference=lambda evidence: evidence.mean_difference("metric", which),
        of_forgotten=which.startswith("forget"),
    )


def _loss(which: SplitName) -> Metric:
    return Metric(
        name=f"{which}_loss",
        title=f"mean loss on {_WHICH[which]}",
        unit="nats",
        low=-math.inf,
        high=math.inf,
        better="gold",
        compute=lambda evidence: evidence.mean("loss", which),
        difference=lambda evidence: evidence.mean_difference("loss", which),
        of_forgotten=which.startswith("forget"),
    )


METRIC = [make(which) for make in (_task_metric, _loss) for which in SPLITS]
