"""natural: each record stays at the site it comes from."""

from __future__ import annotations

import numpy as np

from partitions.assignment import Assignment, natural_order
from partitions.errors import BadInput
from partitions.records import LoadedData
from partitions.splits.base import SplitSpec


class Natural:
    """The hospitals, scanners or patients that the data set itself names."""

    name = "natural"

    def assign(self, data: LoadedData, indices: np.ndarray, spec: SplitSpec) -> Assignment:
        """See `Split.assign`; `sites` must be 0 or the number that there are."""
        sites = data.table["site"].to_numpy()[indices]
        names = natural_order([str(site) for site in sites])
        if "" in names:
            remedy = "use split: iid, dirichlet or quantity"
            raise BadInput("split", spec.name, f"a split that {data.name} has: it names no sites of its own", remedy)
        if spec.sites not in (0, len(names)):
            remedy = "use split: slabs, iid, dirichlet or quantity for another number"
            raise BadInput("sites", spec.sites, f"{len(names)}, the natural sites of {data.name}", remedy)
        return {name: indices[sites == name] for name in names}


SPLIT = Natural()
