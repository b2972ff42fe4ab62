from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partitions.catalogue import SPLITS
from partitions.errors import BadInput
from partitions.partition import Partition, SplitSpec, make_partition
from partitions.records import LoadedData

Maker = Callable[..., LoadedData]
ALL_SPLITS = [
    SplitSpec("natural"),
    SplitSpec("iid", sites=7),
    SplitSpec("dirichlet", sites=6, alpha=0.5),
    SplitSpec("quantity", sites=7, alpha=0.5),
    SplitSpec("slabs", sites=9),
]


def everyone(partition: Partition) -> np.ndarray:
    return np.sort(np.concatenate([*partition.train.values(), *partition.holdout.values(), partition.reference]))


def test_every_registered_split_is_tried_here() -> None:
    assert sorted(spec.name for spec in ALL_SPLITS) == SPLITS.names()


@pytest.mark.parametrize("spec", ALL_SPLITS, ids=lambda spec: spec.name)
class TestEverySplit:
    def test_gives_every_record_to_exactly_one_site(self, four_patients: LoadedData, spec: SplitSpec) -> None:
        assert everyone(make_partition(four_patients, spec)).tolist() == list(range(len(four_patients.table)))

    def test_keeps_what_the_provider_holds_out_and_nothing_else(
        self, four_patients: LoadedData, spec: SplitSpec
    ) -> None:
        partition = make_partition(four_patients, spec)
        held = np.sort(np.concatenate(list(partition.holdout.values())))
        assert held.tolist() == np.flatnonzero(four_patients.table["split"] == "holdout").tolist()

    def test_leaves_no_site_without_training_records(self, four_patients: LoadedData, spec: SplitSpec) -> None:
        partition = make_partition(four_patients, spec)
        assert list(partition.train) == list(partition.holdout) == list(partition.sites)
        assert all(len(own) for own in partition.train.values())

    def test_is_the_same_twice(self, four_patients: LoadedData, spec: SplitSpec) -> None:
        one, two = make_partition(four_patients, spec), make_partition(four_patients, spec)
        assert one.fingerprint == two.fingerprint
        assert all((one.train[site] == two.train[site]).all() for site in one.sites)

    def test_gives_ascending_int64(self, four_patients: LoadedData, spec: SplitSpec) -> None:
        partition = make_partition(four_patients, spec)
        for own in (*partition.train.values(), *partition.holdout.values(), partition.reference):
            assert own.dtype == np.int64 and (np.diff(own) > 0).all()


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["iid", "dirichlet", "quantity"]),
    strata=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    sites=st.integers(1, 8),
    alpha=st.sampled_from([0.05, 0.5, 50.0]),
    seed=st.integers(0, 3),
    flags=st.lists(st.sampled_from(["", "train", "holdout", "reference"]), min_size=60, max_size=60),
)
def test_any_records_are_divided_without_rest_overlap_or_empty_site_or_the_wish_is_refused(
    make_data: Maker, name: str, strata: list[int], sites: int, alpha: float, seed: int, flags: list[str]
) -> None:
    data = make_data(strata, split=flags[: len(strata)])
    try:
        partition = make_partition(data, SplitSpec(name, sites, alpha, seed=seed))
    except BadInput:
        return
    assert everyone(partition).tolist() == list(range(len(strata)))
    assert all(len(own) for own in partition.train.values())
    split = data.table["split"].to_numpy()
    assert set(split[partition.reference]) <= {"reference"}
    assert all("train" not in split[own] for own in partition.holdout.values())
    assert all("holdout" not in split[own] for own in partition.train.values())


def test_another_seed_gives_another_split(four_patients: LoadedData) -> None:
    for spec in ALL_SPLITS[1:4]:
        one, two = (make_partition(four_patients, replace(spec, seed=seed)) for seed in (0, 1))
        assert one.fingerprint != two.fingerprint


def test_natural_sites_keep_their_names_in_natural_order(four_patients: LoadedData) -> None:
    partition = make_partition(four_patients, SplitSpec("natural", sites=4))
    assert partition.sites == ("patient-2", "patient-3", "patient-4", "patient-10")
    for site in partition.sites:
        assert set(four_patients.table["site"].to_numpy()[partition.train[site]]) == {site}


def test_natural_refuses_another_number_of_sites(four_patients: LoadedData) -> None:
    with pytest.raises(BadInput, match="allowed is 4"):
        make_partition(four_patients, SplitSpec("natural", sites=5))


def test_natural_and_slabs_refuse_data_without_sites_or_positions(make_data: Maker) -> None:
    for name in ("natural", "slabs"):
        with pytest.raises(BadInput, match="use split: iid"):
            make_partition(make_data([0, 1]), SplitSpec(name))


def test_iid_sites_differ_by_one_record_at_most(four_patients: LoadedData) -> None:
    sizes = [len(own) for own in make_partition(four_patients, SplitSpec("iid", sites=7)).train.values()]
    assert max(sizes) - min(sizes) <= 1


def test_zero_sites_means_as_many_as_the_data_set_has(four_patients: LoadedData, make_data: Maker) -> None:
    assert make_partition(four_patients, SplitSpec("iid")).sites == ("site-0", "site-1", "site-2", "site-3")
    with pytest.raises(BadInput, match="sites=0: allowed is 1 to 2"):
        make_partition(make_data([0, 1]), SplitSpec("iid"))


def test_more_sites_than_records_are_refused_with_the_number(make_data: Maker) -> None:
    for name in ("iid", "dirichlet", "quantity"):
        with pytest.raises(BadInput, match="allowed is 1 to 5"):
            make_partition(make_data([0] * 5), SplitSpec(name, sites=6, holdout=0))


def test_a_small_alpha_skews_labels_and_a_large_one_does_not(make_data: Maker) -> None:
    data = make_data([i % 5 for i in range(2000)])

    def largest_share(alpha: float) -> float:
        partition = make_partition(data, SplitSpec("dirichlet", 5, alpha, holdout=0))
        return float(np.mean([np.bincount(data.targets[own]).max() / len(own) for own in partition.train.values()]))

    assert largest_share(0.05) > 0.6 > 0.25 > largest_share(1000.0)


def test_held_out_records_follow_the_training_records_of_their_class(four_patients: LoadedData) -> None:
    partition = make_partition(four_patients, SplitSpec("dirichlet", 4, 0.3))
    share = (four_patients.table["split"] == "holdout").mean()
    for site in partition.sites:
        held, total = len(partition.holdout[site]), len(partition.train[site]) + len(partition.holdout[site])
        assert abs(held - share * total) < 0.05 * total + 4
        trained = set(four_patients.targets[partition.train[site]])
        assert set(four_patients.targets[partition.holdout[site]]) <= trained


def test_a_small_alpha_skews_quantity(four_patients: LoadedData) -> None:
    def spread(alpha: float) -> float:
        partition = make_partition(four_patients, SplitSpec("quantity", 6, alpha))
        sizes = [len(own) for own in partition.train.values()]
        return max(sizes) / min(sizes)

    assert spread(0.1) > 10 > 1.5 > spread(10_000.0)


def test_slabs_are_consecutive_slices_of_one_patient(four_patients: LoadedData) -> None:
    partition = make_partition(four_patients, SplitSpec("slabs", sites=9))
    table, last = four_patients.table, {}
    assert partition.sites[:4] == ("patient-2-slab-0", "patient-2-slab-1", "patient-2-slab-2", "patient-3-slab-0")
    for site in partition.sites:
        own = table.iloc[np.concatenate([partition.train[site], partition.holdout[site]])]
        patient = site.rpartition("-slab-")[0]
        assert set(own["patient"]) == {patient}
        assert own["position"].min() > last.get(patient, -1)
        last[patient] = own["position"].max()


def test_slabs_refuse_more_than_there_are_slices(four_patients: LoadedData) -> None:
    with pytest.raises(BadInput, match="allowed is 4 to 1"):
        make_partition(four_patients, SplitSpec("slabs", sites=200))
    with pytest.raises(BadInput, match="sites=3"):
        make_partition(four_patients, SplitSpec("slabs", sites=3))


@pytest.mark.parametrize("wish", ["patient-2:1", "patient-2:class b"])
def test_a_sole_holder_keeps_its_class_and_the_rest_is_dropped_and_counted(
    four_patients: LoadedData, wish: str
) -> None:
    plain = make_partition(four_patients, SplitSpec("natural"))
    partition = make_partition(four_patients, SplitSpec("natural", sole_holder=wish))
    holders = {
        site
        for site in partition.sites
        for own in (partition.train[site], partition.holdout[site])
        if (four_patients.targets[own] == 1).any()
    }
    elsewhere = (four_patients.targets == 1) & (four_patients.table["site"] != "patient-2").to_numpy()
    assert holders == {"patient-2"}
    assert partition.dropped == elsewhere.sum() == len(everyone(plain)) - len(everyone(partition))
    assert (partition.train["patient-2"] == plain.train["patient-2"]).all()


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        ("patient-2", "SITE:CLASS"),
        ("patient-5:1", "did you mean 'patient-"),
        ("patient-2:class z", "did you mean 'class"),
        ("patient-2:4", "one of 0, 1, 2, 3"),
    ],
)
def test_a_sole_holder_that_is_not_there_is_refused(four_patients: LoadedData, wish: str, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        make_partition(four_patients, SplitSpec("natural", sole_holder=wish))


def test_a_sole_holder_without_the_class_or_emptying_another_site_is_refused(make_data: Maker) -> None:
    data = make_data([0, 0, 1, 1], site=["a", "a", "b", "b"], split="train")
    with pytest.raises(BadInput, match="a site that holds class 1: b"):
        make_partition(data, SplitSpec(sole_holder="a:1"))
    both = make_data([0, 1, 1, 1], site=["a", "a", "b", "b"], split="train")
    with pytest.raises(BadInput, match="name another sole-holder"):
        make_partition(both, SplitSpec(sole_holder="a:1"))


def test_a_site_without_a_provider_holdout_holds_out_a_share_of_every_class(make_data: Maker) -> None:
    strata = [0] * 50 + [1] * 5 + [2] * 4 + [3] * 2
    partition = make_partition(make_data(strata), SplitSpec("iid", 1, holdout=0.1))
    held = np.bincount(np.array(strata)[partition.holdout["site-0"]], minlength=4)
    assert held.tolist() == [5, 1, 0, 0]


def test_no_holdout_when_none_is_asked_for(make_data: Maker) -> None:
    partition = make_partition(make_data([0] * 50), SplitSpec("iid", 1, holdout=0))
    assert len(partition.holdout["site-0"]) == 0


def test_a_holdout_is_stable_when_records_come_or_go_and_grows_with_its_share(make_data: Maker) -> None:
    def held(n: int, share: float) -> set[int]:
        return set(make_partition(make_data([0] * n), SplitSpec("iid", 1, holdout=share)).holdout["site-0"].tolist())

    assert held(100, 0.2) < held(100, 0.4)
    assert len(held(100, 0.2) & held(99, 0.2)) >= 19


def test_a_site_of_one_record_trains_on_it(make_data: Maker) -> None:
    partition = make_partition(make_data([0]), SplitSpec("iid", 1, holdout=0.9))
    assert len(partition.train["site-0"]) == 1


def test_the_reference_set_goes_to_no_site(make_data: Maker) -> None:
    data = make_data([0] * 20, split=["reference"] * 5 + [""] * 15)
    assert make_partition(data, SplitSpec("iid", 3)).reference.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        (SplitSpec("iid", sites=-1), "sites"),
        (SplitSpec("iid", holdout=1.0), "holdout"),
        (SplitSpec("dirichlet", sites=2, alpha=0.0), "alpha"),
        (SplitSpec("diriclet"), "split"),
    ],
)
def test_values_out_of_range_are_refused_by_name(four_patients: LoadedData, spec: SplitSpec, key: str) -> None:
    with pytest.raises(BadInput, match=f"{key}="):
        make_partition(four_patients, spec)
