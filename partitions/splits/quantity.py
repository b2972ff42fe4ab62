"""quantity: sites of very different size, alike in what they hold."""

from __future__ import annotations

import numpy as np

from partitions.assignment import Assignment, divide, follow, numbered_sites, shares, shuffled
from partitions.records import LoadedData
from partitions.seeds import generator
from partitions.splits.base import SplitSpec


class Quantity:
    """Sizes drawn from a symmetric Dirichlet distribution, at least one training record each; records shuffled.

    The cut itself is flwr-datasets' `SizePartitioner`.
    """

    name = "quantity"

    def assign(self, data: LoadedData, indices: np.ndarray, spec: SplitSpec) -> Assignment:
        """See `Split.assign`; `alpha` is the concentration of the sizes."""
        from datasets import Dataset
        from flwr_datasets.partitioner import SizePartitioner

        trainable, held = divide(data, indices)
        sites = numbered_sites(data, trainable, spec)
        partitioner = SizePartitioner([int(size) for size in _sizes(len(trainable), len(sites), spec)])
        partitioner.dataset = Dataset.from_dict({"index": shuffled(trainable, spec.seed, "split-quantity")})
        parts = [np.asarray(partitioner.load_partition(k)[:]["index"], dtype=np.int64) for k in range(len(sites))]
        return follow(data, dict(zip(sites, parts, strict=True)), held, spec.seed)


def _sizes(records: int, sites: int, spec: SplitSpec) -> np.ndarray:
    """Return sizes of at least one that sum to `records`."""
    drawn = generator(spec.seed, "split-quantity-sizes").dirichlet(np.full(sites, spec.alpha))
    return 1 + shares(records - sites, drawn)


SPLIT = Quantity()
