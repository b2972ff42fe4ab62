"""Sole holder: after a split, one site is made the only one that holds a class."""

from __future__ import annotations

from partitions.assignment import Assignment
from partitions.errors import BadInput, unknown_name
from partitions.records import LoadedData


def keep_sole_holder(data: LoadedData, assignment: Assignment, wish: str) -> tuple[Assignment, int]:
    """Drop the records of a class from every site but one.

    Parameters
    ----------
    data : LoadedData
        The data set.
    assignment : mapping of site to ndarray
        Training and held-out records.
    wish : str
        ``SITE:CLASS``, the class by index or name; empty keeps everything.

    Returns
    -------
    tuple of mapping and int
        The new assignment, and how many records were dropped.

    Raises
    ------
    BadInput
        For an unknown site or class, or a site that holds no record of the class to train on.
    """
    if not wish:
        return assignment, 0
    site, colon, name = wish.rpartition(":")
    if not colon or not site:
        raise BadInput("sole-holder", wish, "SITE:CLASS", "for example patient-1:5")
    if site not in assignment:
        raise unknown_name("sole-holder", site, assignment)
    stratum = _class_index(data, name)
    strata, split = data.table["stratum"].to_numpy(), data.table["split"].to_numpy()
    if not ((strata[assignment[site]] == stratum) & (split[assignment[site]] != "holdout")).any():
        holders = [other for other, own in assignment.items() if (strata[own] == stratum).any()]
        raise BadInput("sole-holder", wish, f"a site that holds class {name}: {', '.join(holders) or 'none does'}")
    kept = {other: own if other == site else own[strata[own] != stratum] for other, own in assignment.items()}
    dropped = sum(len(own) for own in assignment.values()) - sum(len(own) for own in kept.values())
    return kept, dropped


def _class_index(data: LoadedData, name: str) -> str:
    """Return the stratum that a class's index or name means."""
    indices = [str(index) for index in range(len(data.classes))]
    if name in indices:
        return name
    if name in data.classes:
        return str(data.classes.index(name))
    raise unknown_name("sole-holder", name, indices if list(data.classes) == indices else [*indices, *data.classes])
