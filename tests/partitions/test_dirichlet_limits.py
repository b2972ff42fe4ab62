from __future__ import annotations

import time
from collections.abc import Callable

import flwr_datasets.partitioner  # noqa: F401 - imported before the clock starts
import numpy as np
import pytest

from partitions.errors import BadInput
from partitions.partition import SplitSpec, make_partition
from partitions.records import LoadedData
from partitions.splits.dirichlet import succeeds

Maker = Callable[..., LoadedData]


def test_an_impossible_skew_ends_soon_and_says_what_would_do(make_data: Maker) -> None:
    data = make_data([i % 3 for i in range(300)])
    start = time.monotonic()
    with pytest.raises(BadInput, match=r"alpha=0\.01: .* ask for [0-9]+ sites") as refused:
        make_partition(data, SplitSpec("dirichlet", sites=100, alpha=0.01))
    assert time.monotonic() - start < 5
    number = int(str(refused.value).split("ask for ")[1].split()[0])
    assert len(make_partition(data, SplitSpec("dirichlet", sites=number, alpha=0.01)).sites) == number


def test_the_alpha_that_a_refusal_names_is_achievable(make_data: Maker) -> None:
    data = make_data([i % 10 for i in range(1800)])
    with pytest.raises(BadInput, match="for 100 sites") as refused:
        make_partition(data, SplitSpec("dirichlet", sites=100, alpha=0.01))
    alpha = float(str(refused.value).split("allowed is ")[1].split()[0])
    assert len(make_partition(data, SplitSpec("dirichlet", sites=100, alpha=alpha)).sites) == 100


@pytest.mark.parametrize("sites", [3, 10, 30])
@pytest.mark.parametrize("alpha", [0.03, 0.1, 0.3])
@pytest.mark.parametrize("seed", [0, 1])
def test_foreseeing_success_agrees_with_the_partitioner(make_data: Maker, sites: int, alpha: float, seed: int) -> None:
    strata = [0] * 50 + [1] * 30 + [2] * 7
    try:
        make_partition(make_data(strata), SplitSpec("dirichlet", sites, alpha, holdout=0, seed=seed))
        happened = True
    except BadInput:
        happened = False
    assert succeeds(np.bincount(strata), sites, alpha, seed) == happened


def test_records_of_several_classes_at_once_cannot_be_skewed_by_class(make_data: Maker) -> None:
    data = make_data([0, 1, 0, 1])
    data.table["stratum"] = ""
    with pytest.raises(BadInput, match="iid or quantity"):
        make_partition(data, SplitSpec("dirichlet", sites=2))
