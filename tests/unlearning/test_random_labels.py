"""Oracles of METHODS 2.4."""

import numpy as np
import pytest
from scipy.stats import chisquare

from unlearning.random_labels import relabel


def ids(n: int) -> list[str]:
    return [f"{i:016x}" for i in range(n)]


def truth(n: int, classes: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, classes, n)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_no_new_label_is_the_true_one_and_all_are_classes(classes):
    true = truth(500, classes)
    new = relabel(true, ids(500), classes, seed=1)
    assert not (new == true).any() and set(new) <= set(range(classes))
    assert new.dtype == np.int64 and new.shape == true.shape


def test_two_classes_are_flipped():
    true = truth(50, 2)
    assert relabel(true, ids(50), 2, seed=9).tolist() == (1 - true).tolist()


def test_labels_are_uniform_over_the_other_classes():
    new = relabel(np.full(6000, 4), ids(6000), 10, seed=3)
    found = np.bincount(new, minlength=10)
    assert found[4] == 0
    assert chisquare(np.delete(found, 4)).pvalue > 0.01


def test_a_label_follows_from_the_record_and_the_seed_alone():
    true = truth(40, 10)
    whole = relabel(true, ids(40), 10, seed=1)
    assert relabel(true[7:9], ids(40)[7:9], 10, seed=1).tolist() == whole[7:9].tolist()
    order = np.random.default_rng(1).permutation(40)
    assert relabel(true[order], [ids(40)[i] for i in order], 10, seed=1).tolist() == whole[order].tolist()
    assert relabel(true, ids(40), 10, seed=2).tolist() != whole.tolist()


def test_classes_that_the_records_lack_are_given_out_and_forgotten_ones_are_not():
    new = relabel(np.zeros(400, np.int64), ids(400), 5, seed=0, forgotten={0, 3})
    assert set(new) == {1, 2, 4}


def test_no_records_no_labels():
    assert relabel(np.zeros(0, np.int64), [], 3, seed=0).tolist() == []


def test_where_only_forgotten_classes_are_left_they_are_given_out():
    assert relabel(np.array([0, 0]), ids(2), 2, seed=0, forgotten={1}).tolist() == [1, 1]


def test_one_class_alone_is_an_error():
    with pytest.raises(ValueError, match="no wrong label"):
        relabel(np.array([0]), ["a"], 1, seed=0)
