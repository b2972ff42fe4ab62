"""Loads a data set by name: from this home, else from a depot, else from its provider."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from partitions.catalogue import DATASETS
from partitions.datasets.base import DataSet, Say, StoredDataSet
from partitions.depot import Depot, DepotFailed, open_depot
from partitions.errors import BadInput
from partitions.records import LoadedData


def load_data(name: str, home: Path, cap: int, depot: str = "", *, give: bool = False) -> LoadedData:
    """Return the prepared records of a data set.

    Parameters
    ----------
    name, home, cap
        See `DataSet.load`.
    depot : str
        URL of a depot to look into before the provider is asked; empty: none. One that fails is said on standard error
        and gone without.
    give : bool
        Give the depot what it lacks. Only for whoever runs the experiment: a site takes and never gives.
    """
    dataset = DATASETS.get(name)
    if not depot or not isinstance(dataset, StoredDataSet):
        return dataset.load(home, cap)
    if not dataset.is_prepared(home, cap):
        _take(dataset, depot, lambda opened: dataset.take(home, cap, opened), _say_on_stderr)
    data = dataset.load(home, cap)
    if give:
        _give(dataset, depot, lambda opened: dataset.give(home, cap, opened), _say_on_stderr)
    return data


def fetch_data(dataset: DataSet, home: Path, depot: str, say: Say) -> None:
    """Get a data set's files, unprepared: from a depot, else from the provider, and then the depot gets them too."""
    if not depot or not isinstance(dataset, StoredDataSet):
        dataset.fetch(home, say)
        return
    _take(dataset, depot, lambda opened: dataset.take_source(home, opened), say)
    dataset.fetch(home, say)
    _give(dataset, depot, lambda opened: dataset.give_source(home, opened), say)


def _take(dataset: DataSet, depot: str, take: Callable[[Depot], bool], say: Say) -> None:
    try:
        if take(open_depot(depot)):
            say(f"{dataset.name}: from the depot {depot}. Licence: {dataset.licence}")
    except (DepotFailed, BadInput) as error:
        say(f"{dataset.name}: not from the depot {depot} ({error})")


def _give(dataset: DataSet, depot: str, give: Callable[[Depot], bool], say: Say) -> None:
    try:
        if give(open_depot(depot)):
            say(f"{dataset.name}: given to the depot {depot}")
    except (DepotFailed, BadInput, OSError) as error:
        say(f"{dataset.name}: not given to the depot {depot} ({error})")


def _say_on_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
