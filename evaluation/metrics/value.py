"""The result of one metric: a number, how sure it is, and why it is missing when it is (METRICS 0.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

Status = Literal["ok", "undefined", "underpowered", "not_applicable"]


@dataclass(frozen=True)
class Value:
    """One computed metric.

    Attributes
    ----------
    value : float
        NaN when it cannot be computed; never a stand-in such as 0, 0.5 or 1.
    n : int
        Records (or other units) it rests on.
    ci_low, ci_high : float
        95 % interval, NaN where there is none.
    status : {"ok", "undefined", "underpowered", "not_applicable"}
        ``underpowered`` values are numbers; ``undefined`` and ``not_applicable`` ones are NaN.
    reason : str
        Why the status is not ``ok``, or what to keep in mind.
    """

    value: float
    n: int = 0
    ci_low: float = math.nan
    ci_high: float = math.nan
    status: Status = "ok"
    reason: str = ""

    def because(self, note: str) -> Value:
        """Return the same value with `note` added to its reason."""
        return replace(self, reason="; ".join(part for part in (self.reason, note) if part))


def undefined(reason: str, n: int = 0) -> Value:
    """Return a missing value: it should exist, and `reason` says why it does not."""
    return Value(math.nan, n, status="undefined", reason=reason)


def not_applicable(reason: str) -> Value:
    """Return a missing value: the metric makes no sense for this model or request."""
    return Value(math.nan, status="not_applicable", reason=reason)
