"""What a method cost, and how much faster than retraining it was (METRICS 3.6)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from evaluation.evidence import Evidence
from evaluation.metrics.base import Metric
from evaluation.metrics.value import Value, not_applicable, undefined

Part = Literal["unlearn", "total"]
"""The unlearning step alone (for gold: retraining), or all up to the checkpoint, recovery included."""

RECOVERY = "recovery_"
CONDITIONS = ("host", "workers", "threads", "jobs")
"""Timings are divided only where these agree."""
SHORT = 1e-3
"""Seconds below which a time says little."""

_MEASURED = {
    "seconds": "s",
    "client_seconds": "s",
    "client_examples": "records",
    "gradient_steps": "",
    "bytes_down": "bytes",
    "bytes_up": "bytes",
    "disk_read": "bytes",
}


def _amount(cost: Mapping[str, Any] | None, key: str, part: Part) -> float | None:
    """Return what was spent, None where it was not measured."""
    if cost is None or key not in cost:
        return None
    return float(cost[key]) + (float(cost.get(RECOVERY + key, 0.0)) if part == "total" else 0.0)


def _comparable(mine: Mapping[str, Any], gold: Mapping[str, Any], part: Part) -> bool:
    """Tell whether a timing was taken where and as gold's was; an unrecorded recovery agrees with anything."""
    same = all(mine.get(name) == gold.get(name) for name in CONDITIONS)
    if part == "unlearn":
        return same
    return same and all(mine.get(RECOVERY + name, gold.get(name)) == gold.get(name) for name in CONDITIONS)


def _spent(key: str, part: Part) -> Callable[[Evidence], Value]:
    def compute(evidence: Evidence) -> Value:
        if part == "unlearn" and evidence.model.method == "original":
            return not_applicable("the original model unlearned nothing")
        amount = _amount(evidence.model.cost, key, part)
        return undefined("not measured") if amount is None else Value(amount, 1, reason=_flag(key, amount))

    return compute


def _speedup(key: str, part: Part) -> Callable[[Evidence], Value]:
    """Make what retraining cost over what the method cost."""

    def compute(evidence: Evidence) -> Value:
        model, gold = evidence.model, evidence.gold
        if model.method == "original":
            return not_applicable("the original model unlearned nothing")
        if gold is None:
            return undefined("needs gold")
        retraining, mine = _amount(gold.cost, key, "unlearn"), _amount(model.cost, key, part)
        if retraining is None or mine is None:
            return undefined("not measured")
        if key == "seconds" and not _comparable(model.cost or {}, gold.cost or {}, part):
            return undefined("timings not comparable")
        if mine == 0:
            return undefined("took no time" if key == "seconds" else "processed no records at the sites")
        return Value(retraining / mine, 1, reason=_flag(key, mine))

    return compute


def _flag(key: str, amount: float) -> str:
    return "under 1 ms" if key == "seconds" and amount < SHORT else ""


def _cost_metric(key: str, unit: str, part: Part) -> Metric:
    # the names of the paper's tables: seconds in both parts, everything else plain for the total
    name = f"{key}_{part}" if key == "seconds" or part == "unlearn" else key
    words = "of the unlearning step" if part == "unlearn" else "up to this checkpoint, recovery included"
    title = f"{key.replace('_', ' ')} {words}"
    return Metric(name, title, unit, 0.0, math.inf, "low", _spent(key, part), clock=unit == "s")


def _speedup_metric(name: str, title: str, key: str, part: Part) -> Metric:
    return Metric(name, title, "", 0.0, math.inf, "high", _speedup(key, part), clock=_MEASURED[key] == "s")


_PARTS: tuple[Part, ...] = ("unlearn", "total")

METRIC = [
    *[_cost_metric(key, unit, part) for key, unit in _MEASURED.items() for part in _PARTS],
    _speedup_metric("speedup", "seconds of retraining over those of the unlearning step", "seconds", "unlearn"),
    _speedup_metric("speedup_total", "seconds of retraining over those of step and recovery", "seconds", "total"),
    _speedup_metric(
        "speedup_examples", "records processed by retraining over the step's", "client_examples", "unlearn"
    ),
    _speedup_metric(
        "speedup_examples_total", "records processed by retraining over step and recovery's", "client_examples", "total"
    ),
]
