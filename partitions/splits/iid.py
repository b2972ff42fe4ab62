"""iid: records shuffled and dealt out evenly."""

from __future__ import annotations

import numpy as np

from partitions.assignment import Assignment, divide, follow, numbered_sites, shuffled
from partitions.records import LoadedData
from partitions.splits.base import SplitSpec


class Iid:
    """Every site gets the same number of training records, give or take one, whatever their class or patient."""

    name = "iid"

    def assign(self, data: LoadedData, indices: np.ndarray, spec: SplitSpec) -> Assignment:
        """See `Split.assign`."""
        trainable, held = divide(data, indices)
        sites = numbered_sites(data, trainable, spec)
        parts = np.array_split(shuffled(trainable, spec.seed, "split-iid"), len(sites))
        return follow(data, dict(zip(sites, parts, strict=True)), held, spec.seed)


SPLIT = Iid()
