"""Bootstrap, Wilson and Clopper-Pearson intervals (METRICS 0.6)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest, bootstrap

from evaluation.metrics import intervals
from evaluation.metrics.intervals import clopper_pearson, stratified_mean, wilson


@pytest.mark.parametrize("hits, n", [(0, 10), (3, 10), (10, 10), (1, 100)])
def test_both_intervals_of_a_proportion_agree_with_scipy(hits: int, n: int) -> None:
    for ours, method in ((wilson, "wilson"), (clopper_pearson, "exact")):
        theirs = binomtest(hits, n).proportion_ci(method=method)
        assert ours(hits, n) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_one_false_positive_in_a_hundred() -> None:
    assert clopper_pearson(1, 100) == pytest.approx((0.00025, 0.054), abs=5e-4)


def test_no_trials_have_no_interval() -> None:
    assert all(math.isnan(bound) for bound in (*wilson(0, 0), *clopper_pearson(0, 0)))


@pytest.mark.parametrize("values", [np.arange(50) % 2, np.random.default_rng(0).exponential(size=200)])
def test_the_bootstrap_agrees_with_scipys(values: np.ndarray) -> None:
    ours = stratified_mean(values)
    theirs = bootstrap((values,), np.mean, n_resamples=5000, method="percentile", rng=0).confidence_interval
    width = theirs.high - theirs.low
    assert ours.ci_low == pytest.approx(theirs.low, abs=0.08 * width)
    assert ours.ci_high == pytest.approx(theirs.high, abs=0.08 * width)


def test_the_normal_limit_for_many_records_has_the_bootstraps_width(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).exponential(size=3000)
    limit = stratified_mean(values)
    monkeypatch.setattr(intervals, "LARGE", 10**9)
    exact = stratified_mean(values)
    assert limit.ci_high - limit.ci_low == pytest.approx(exact.ci_high - exact.ci_low, rel=0.1)


def test_strata_narrow_the_interval_when_they_explain_the_values() -> None:
    values = np.concatenate((np.zeros(50), np.full(50, 2.0)))
    assert stratified_mean(values, values).ci_high == 1.0
    assert stratified_mean(values).ci_high > 1.1


@pytest.mark.parametrize("hits", [0, 50, 100])
def test_a_model_that_is_right_on_some_classes_and_wrong_on_all_others_has_an_interval(hits: int) -> None:
    values = np.repeat((1.0, 0.0), (hits, 100 - hits))
    found = stratified_mean(values, values, shares=True)
    assert found.value == hits / 100
    assert (found.ci_low, found.ci_high) == wilson(hits, 100)
    assert found.ci_low < found.ci_high


def test_order_of_records_changes_nothing_at_all() -> None:
    rng = np.random.default_rng(0)
    values, strata = rng.exponential(size=99), rng.integers(0, 3, 99)
    order = rng.permutation(99)
    assert stratified_mean(values, strata) == stratified_mean(values[order], strata[order])


def test_the_seed_moves_the_interval_only() -> None:
    values = np.random.default_rng(0).exponential(size=99)
    first, second = stratified_mean(values, seed=1), stratified_mean(values, seed=2)
    assert first.value == second.value
    assert first.ci_low != second.ci_low


def test_weights_reweight_strata_and_leave_others_out() -> None:
    found = stratified_mean([1, 1, 1, 0, 9], ["a", "a", "a", "b", "c"], {"a": 0.25, "b": 0.25})
    assert (found.value, found.n) == (0.5, 4)


def test_no_records_are_undefined_and_one_has_no_interval() -> None:
    assert stratified_mean([]).status == "undefined"
    one = stratified_mean([0.5])
    assert one.value == 0.5
    assert math.isnan(one.ci_low)
