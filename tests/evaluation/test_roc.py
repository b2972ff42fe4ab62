"""AUC, TPR at a low FPR and balanced accuracy (METRICS 1.2)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu
from sklearn.metrics import roc_auc_score, roc_curve

from evaluation.metrics.roc import auc, balanced_accuracy, roc_auc, tpr_at_fpr

SCORES = st.lists(st.integers(-5, 5), min_size=1, max_size=30)


def test_the_printed_example() -> None:
    assert auc([1, 2, 2], [2, 1, 0]) == pytest.approx(0.72222, abs=1e-5)


def test_perfect_separation_is_one_and_its_reverse_zero() -> None:
    assert auc([3, 4], [1, 2]) == 1.0
    assert auc([1, 2], [3, 4]) == 0.0


@settings(max_examples=50, deadline=None)
@given(SCORES, SCORES)
def test_auc_agrees_with_scikit_learn_and_mann_whitney(pos: list[int], neg: list[int]) -> None:
    labels = [1] * len(pos) + [0] * len(neg)
    assert auc(pos, neg) == pytest.approx(roc_auc_score(labels, pos + neg), abs=1e-12)
    assert auc(pos, neg) == pytest.approx(mannwhitneyu(pos, neg).statistic / (len(pos) * len(neg)), abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(SCORES, SCORES)
def test_swapping_the_sides_mirrors_the_auc(pos: list[int], neg: list[int]) -> None:
    assert auc(neg, pos) == pytest.approx(1 - auc(pos, neg), abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(SCORES, SCORES, st.sampled_from([0.05, 0.25, 0.5]))
def test_monotone_transforms_and_order_change_nothing(pos: list[int], neg: list[int], fpr: float) -> None:
    bent = [[math.exp(s) for s in reversed(side)] for side in (pos, neg)]
    assert auc(*bent) == auc(pos, neg)
    assert tpr_at_fpr(*bent, fpr) == tpr_at_fpr(pos, neg, fpr)


@settings(max_examples=50, deadline=None)
@given(SCORES, SCORES, st.sampled_from([0.1, 0.25, 0.5]))
def test_tpr_is_the_best_admissible_point_of_scikit_learns_curve(pos: list[int], neg: list[int], fpr: float) -> None:
    false, true, _ = roc_curve([1] * len(pos) + [0] * len(neg), pos + neg, drop_intermediate=False)
    assert tpr_at_fpr(pos, neg, fpr).value == pytest.approx(true[false <= fpr + 1e-12].max())


def test_ties_move_together() -> None:
    assert tpr_at_fpr([1, 1, 1], [1, 0], 0.4).value == 0.0
    assert tpr_at_fpr([1, 1, 1], [1, 0], 0.5).value == 1.0


def test_a_rate_exactly_on_the_grid_is_admissible() -> None:
    assert tpr_at_fpr([3, 2, 1], [2.5, *[0] * 99], 0.01).value == 1.0


def test_too_few_negatives_are_underpowered_not_missing() -> None:
    few = tpr_at_fpr([3, 2], np.zeros(99), 0.01)
    enough = tpr_at_fpr([3, 2], np.zeros(100), 0.01)
    assert (few.status, few.value) == ("underpowered", 1.0)
    assert enough.status == "ok"


def test_tpr_carries_the_exact_interval_of_its_count() -> None:
    found = tpr_at_fpr([1] * 10, np.zeros(200), 0.01)
    assert (found.n, found.ci_high) == (10, 1.0)
    assert found.ci_low == pytest.approx(0.025 ** (1 / 10))


def test_all_ties_are_one_half_with_a_reason() -> None:
    found = roc_auc([1, 1], [1, 1, 1])
    assert (found.value, found.status, found.reason) == (0.5, "ok", "all ties")


@pytest.mark.parametrize("pos, neg", [([], [1.0]), ([1.0], []), ([math.nan], [1.0])])
def test_empty_sides_and_nan_are_undefined(pos: list[float], neg: list[float]) -> None:
    for found in (roc_auc(pos, neg), tpr_at_fpr(pos, neg, 0.1), balanced_accuracy(pos, neg)):
        assert found.status == "undefined"
        assert math.isnan(found.value)
        assert found.reason


def test_infinite_and_huge_scores_are_ordered_like_numbers() -> None:
    assert roc_auc([math.inf, 1e4], [-1e4, -math.inf]).value == 1.0


def test_the_bootstrap_interval_of_a_known_gaussian_auc_covers_it() -> None:
    rng = np.random.default_rng(1)
    found = roc_auc(rng.normal(1, 1, 400), rng.normal(0, 1, 400))
    assert found.ci_low < 0.760 < found.ci_high
    assert 0.04 < found.ci_high - found.ci_low < 0.10


def test_balanced_accuracy_takes_the_attackers_best_threshold() -> None:
    assert balanced_accuracy([1, 3], [0, 2]).value == 0.75
    assert balanced_accuracy([0, 0], [0, 0]).value == 0.5
