"""The metrics of the panel: this package's own and those of the entry-point group ``lethe.metrics``."""

from __future__ import annotations

from evaluation.metrics.base import Metric
from partitions.registry import Registry

METRICS: Registry[Metric] = Registry("metric", "evaluation.metrics", "METRIC", "lethe.metrics")
