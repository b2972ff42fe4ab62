"""slabs: each patient cut along the body axis into several sites."""

from __future__ import annotations

import numpy as np

from partitions.assignment import Assignment, divide, natural_order
from partitions.errors import BadInput
from partitions.records import LoadedData
from partitions.splits.base import SplitSpec


class Slabs:
    """Sites ``patient-1-slab-0``, ...: consecutive slices of one patient, equally many a slab, give or take one.

    `sites` is their total number, divided over the patients as evenly as it goes, the patients with most slices first;
    0 means two slabs a patient. The patient stays the identity of the records.
    """

    name = "slabs"

    def assign(self, data: LoadedData, indices: np.ndarray, spec: SplitSpec) -> Assignment:
        """See `Split.assign`. Held-out records go to the slab they lie in."""
        trainable, _ = divide(data, indices)
        patients, position = data.table["patient"].to_numpy(), data.table["position"].to_numpy()
        if "" in set(patients[indices]) or position[indices].min() < 0:
            remedy = "use split: iid, dirichlet or quantity"
            raise BadInput(
                "split", spec.name, f"a split that {data.name} has: its records have no place in a patient", remedy
            )
        slices = {
            patient: np.unique(position[trainable[patients[trainable] == patient]])
            for patient in natural_order([str(patient) for patient in patients[indices]])
        }
        assignment: Assignment = {}
        for patient, slabs in _slabs_of_each(slices, spec).items():
            own = indices[patients[indices] == patient]
            starts = [part[0] for part in np.array_split(slices[patient], slabs)]
            slab = np.searchsorted(starts[1:], position[own], side="right")
            assignment |= {f"{patient}-slab-{k}": own[slab == k] for k in range(slabs)}
        return assignment


def _slabs_of_each(slices: dict[str, np.ndarray], spec: SplitSpec) -> dict[str, int]:
    """Return the number of slabs of each patient; raises `BadInput` when there are fewer slices than slabs."""
    total = spec.sites or 2 * len(slices)
    each, more = divmod(total, len(slices))
    by_size = sorted(slices, key=lambda patient: -len(slices[patient]))
    slabs = {patient: each + (by_size.index(patient) < more) for patient in slices}
    if each < 1 or any(slabs[patient] > len(slices[patient]) for patient in slices):
        most = len(slices) * min(len(found) for found in slices.values())
        allowed = f"{len(slices)} to {most}: every patient a slab, every slab a slice to train on"
        raise BadInput("sites", spec.sites, allowed)
    return slabs


SPLIT = Slabs()
