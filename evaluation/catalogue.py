"""The metrics of the panel: this package's own and those of the entry-point group ``lethe.metrics``."""

from __future__ import annotations

import re
from functools import cache

from evaluation.metrics.base import Family, Metric
from partitions.registry import Registry

METRICS: Registry[Metric | Family] = Registry("metric", "evaluation.metrics", "METRIC", "lethe.metrics")

PREFIX = re.compile(r"^(?:delta_)?(?:step\d+_)?")
"""What the name of a metric may begin with in the results: a difference to gold, an earlier request of a sequence."""


def declared(name: str) -> tuple[Metric | Family, str] | None:
    """Return the metric behind a name in the results, and the task's metric in that name; None for an unknown one.

    Where several could be meant, the one of which more is spelled out is.
    """
    plain = PREFIX.sub("", name)
    found = [(METRICS.get(one), _pattern(one).fullmatch(plain)) for one in METRICS.names()]
    matched = [(metric, match.groupdict().get("metric", "")) for metric, match in found if match]
    return max(matched, key=lambda one: len(one[0].name.replace("{metric}", "").replace("{each}", "")), default=None)


def is_timed(name: str) -> bool:
    """Tell whether the rows of a name in the results depend on how long something took (`Metric.clock`).

    All else that a run computes is the same whenever it is run again.
    """
    found = declared(name)
    return found is not None and found[0].clock


@cache
def _pattern(name: str) -> re.Pattern[str]:
    spelled = re.escape(name).replace(r"\{metric\}", r"(?P<metric>\w+)").replace(r"\{each\}", ".+")
    return re.compile(spelled)
