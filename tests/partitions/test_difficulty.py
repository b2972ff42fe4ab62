"""How hard a request is, by what it takes from whom."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from partitions.difficulty import difficulty, request_difficulty, total_variation
from partitions.partition import SplitSpec, make_partition
from partitions.records import LoadedData
from partitions.requests import parse_request

CLASSES, SITES = ("a", "b", "c"), ("site-0", "site-1")


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [([3, 1], [1, 1], 0.25), ([5, 0], [0, 9], 1.0), ([2, 4, 6], [1, 2, 3], 0.0), ([1, 0, 1], [0, 1, 1], 0.5)],
)
def test_total_variation_is_half_the_difference_of_shares(first: list[int], second: list[int], distance: float) -> None:
    assert total_variation(first, second) == pytest.approx(distance)
    assert total_variation(second, first) == pytest.approx(distance)


def test_an_empty_histogram_has_no_distance() -> None:
    with pytest.raises(ValueError, match="empty"):
        total_variation([0, 0], [1, 1])


def test_what_others_hold_as_well_is_easy_to_forget() -> None:
    found = difficulty([[10, 10, 10], [0, 0, 0]], [[0, 0, 0], [10, 10, 10]], CLASSES, SITES)
    assert (found.level, found.skew, found.lost, found.scarce, found.sole_holders) == ("easy", 0.0, (), (), {})
    assert found.share == 0.5
    assert found.support.tolist() == [0.5] * 3


def test_a_class_of_a_sole_holder_is_lost() -> None:
    found = difficulty([[10, 0, 30], [0, 0, 0]], [[0, 0, 0], [50, 50, 0]], CLASSES, SITES)
    assert (found.level, found.lost, found.sole_holders) == ("hard", ("c",), {"c": "site-0"})
    assert found.unsupported == 0.75
    assert found.skew == pytest.approx(0.75)
    assert "no record of c stays (75% of what departs)" in found.reason
    assert "site-0 was the only holder of c" in found.reason


def test_a_class_that_loses_most_of_its_records_is_scarce() -> None:
    found = difficulty([[11, 0, 5], [0, 0, 0]], [[0, 0, 0], [10, 40, 30]], CLASSES, SITES)
    assert (found.level, found.lost, found.scarce) == ("hard", (), ("a",))
    half = difficulty([[10, 0, 5], [0, 0, 0]], [[0, 0, 0], [10, 40, 30]], CLASSES, SITES)
    assert half.scarce == ()


def test_labels_unlike_the_rest_are_skewed_though_supported() -> None:
    found = difficulty([[10, 0, 0], [0, 0, 0]], [[0, 0, 0], [20, 80, 100]], CLASSES, SITES)
    assert (found.level, found.skew) == ("skewed", pytest.approx(0.9))


def test_a_sole_holder_that_gives_up_a_part_loses_no_class() -> None:
    found = difficulty([[2, 0, 0], [0, 0, 0]], [[18, 5, 5], [0, 5, 5]], CLASSES, SITES)
    assert (found.sole_holders, found.lost) == ({"a": "site-0"}, ())


def test_a_class_nobody_has_is_neither_lost_nor_scarce() -> None:
    found = difficulty([[5, 5, 0], [0, 0, 0]], [[0, 0, 0], [5, 5, 0]], CLASSES, SITES)
    assert (found.lost, found.scarce) == ((), ())
    assert np.isnan(found.support[2])


@pytest.mark.parametrize(("forget", "says"), [([[0, 0, 0]] * 2, "departs"), ([[1, 1, 1]] * 2, "stays")])
def test_a_request_for_nothing_or_for_everything_is_refused(forget: list[list[int]], says: str) -> None:
    retain = [[1, 1, 1]] * 2 if says == "departs" else [[0, 0, 0]] * 2
    with pytest.raises(ValueError, match=says):
        difficulty(forget, retain, CLASSES, SITES)


def test_counts_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        difficulty([[1, 1]], [[1, 1]], CLASSES, SITES)


def test_a_departing_site_is_counted_on_training_records_alone(four_patients: LoadedData) -> None:
    partition = make_partition(four_patients, SplitSpec("natural"))
    found = request_difficulty(four_patients, partition, parse_request("client:patient-2"))
    own = four_patients.targets[partition.train["patient-2"]]
    assert found.forget.tolist() == np.bincount(own, minlength=4).tolist()
    assert found.forget.sum() + found.retain.sum() == sum(len(own) for own in partition.train.values())


def test_a_retired_class_is_hard_and_a_tenth_of_the_records_easy(four_patients: LoadedData) -> None:
    partition = make_partition(four_patients, SplitSpec("natural"))
    retired = request_difficulty(four_patients, partition, parse_request("class:2"))
    assert (retired.level, retired.lost, retired.skew) == ("hard", (four_patients.classes[2],), 1.0)
    tenth = request_difficulty(four_patients, partition, parse_request("sample:0.1"))
    assert (tenth.level, tenth.lost) == ("easy", ())
    assert tenth.share == pytest.approx(0.1, abs=0.01)


def test_the_split_with_a_sole_holder_is_found_hard(four_patients: LoadedData) -> None:
    partition = make_partition(four_patients, SplitSpec("natural", sole_holder="patient-3:1"))
    found = request_difficulty(four_patients, partition, parse_request("client:patient-3"))
    assert found.sole_holders == {four_patients.classes[1]: "patient-3"}
    assert found.level == "hard"
    other = request_difficulty(four_patients, partition, parse_request("client:patient-2"))
    assert other.sole_holders == {}


def test_the_last_step_is_judged_on_what_the_earlier_ones_left(four_patients: LoadedData) -> None:
    partition = make_partition(four_patients, SplitSpec("natural"))
    second = request_difficulty(four_patients, partition, parse_request("client:patient-2>client:patient-10"))
    alone = request_difficulty(four_patients, partition, parse_request("client:patient-10"))
    assert second.forget.tolist() == alone.forget.tolist()
    assert second.retain.sum() == alone.retain.sum() - len(partition.train["patient-2"])


def test_unlabelled_records_count_in_no_class(make_data: Callable[..., LoadedData]) -> None:
    data = make_data([0, 0, 1, 1], site=["x", "y", "x", "y"])
    data.table.loc[0, "stratum"] = ""
    partition = make_partition(data, SplitSpec("natural", holdout=0.0))
    found = request_difficulty(data, partition, parse_request("client:x"))
    assert (found.forget.tolist(), found.retain.tolist()) == ([0, 1], [1, 1])
