"""The data sets and splits that can be named in a manifest, shipped or from another distribution."""

from __future__ import annotations

from partitions.datasets.base import DataSet
from partitions.registry import Registry
from partitions.splits.base import Split

DATASETS: Registry[DataSet] = Registry("dataset", "partitions.datasets", "DATASET", "lethe.datasets")
SPLITS: Registry[Split] = Registry("split", "partitions.splits", "SPLIT", "lethe.splits")
