"""Friedman's test, Nemenyi's comparison, and rankings that show ties as ties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from evaluation.statistics import (
    block_ranks,
    complete,
    critical_difference,
    friedman,
    group_letters,
    nemenyi_p,
    nemenyi_q,
    power_warning,
    tie_groups,
)

ORACLE = [[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 3, 2]]
NAN = math.nan


def scores(seed: int = 0, blocks: int = 9, methods: int = 5, digits: int = 6) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.round(rng.random((blocks, methods)) + np.linspace(0, 0.5, methods), digits)


def test_the_worked_example_of_the_specification() -> None:
    found = friedman(ORACLE, lower_is_better=True)
    assert found.mean_ranks.tolist() == [1, 2.25, 2.75]
    assert found.chi2 == pytest.approx(6.5)
    assert found.p_chi2 == pytest.approx(0.038774, abs=5e-7)
    assert found.f == pytest.approx(13.0)
    assert critical_difference(3, 4) == pytest.approx(1.657, abs=5e-4)


@pytest.mark.parametrize(
    ("methods", "value"), [(2, 1.960), (3, 2.344), (4, 2.569), (5, 2.728), (10, 3.164), (12, 3.268)]
)
def test_critical_values_are_those_of_the_tables(methods: int, value: float) -> None:
    assert nemenyi_q(methods) == pytest.approx(value, abs=6e-4)


@pytest.mark.parametrize(("methods", "value"), [(12, 8.33), (13, 9.12)])
def test_four_data_sets_tell_next_to_nothing_apart(methods: int, value: float) -> None:
    assert critical_difference(methods, 4) == pytest.approx(value, abs=6e-3)
    assert f"differ by {value:.2f} of at most {methods - 1} ranks" in power_warning(methods, 4)


@pytest.mark.parametrize("digits", [6, 1])  # without ties, with many
@pytest.mark.parametrize("seed", range(4))
def test_chi_square_is_scipys_with_and_without_ties(seed: int, digits: int) -> None:
    table = scores(seed, digits=digits)
    assert (digits == 6) == (len(np.unique(table)) == table.size)
    theirs = stats.friedmanchisquare(*table.T)
    found = friedman(table, lower_is_better=True)
    assert (found.chi2, found.p_chi2) == pytest.approx((theirs.statistic, theirs.pvalue))
    assert (found.p, found.source) == (found.p_chi2, "chi2")


def test_pairs_are_compared_by_the_studentized_range() -> None:
    found = friedman(scores(), lower_is_better=True)
    table = nemenyi_p(found.mean_ranks, 9)
    apart = abs(found.mean_ranks[0] - found.mean_ranks[4])
    assert table[0, 4] == pytest.approx(stats.studentized_range.sf(apart * math.sqrt(2 / (5 * 6 / (6 * 9))), 5, np.inf))
    assert (table == table.T).all()
    assert (np.diag(table) == 1).all()


def test_a_pair_at_the_critical_difference_has_the_level_as_its_p_value() -> None:
    assert nemenyi_p([1.0, 1.0 + critical_difference(2, 30)], 30)[0, 1] == pytest.approx(0.05, abs=1e-6)


def test_direction_turns_the_ranks_around_and_changes_no_statistic() -> None:
    table = scores(digits=1)
    down, up = friedman(table, lower_is_better=True), friedman(table, lower_is_better=False)
    assert up.mean_ranks == pytest.approx(6 - down.mean_ranks)
    assert up.chi2 == pytest.approx(down.chi2)
    assert block_ranks([[0.9, 0.1]], lower_is_better=False).tolist() == [[1, 2]]


def test_any_increasing_transform_and_any_order_of_blocks_leaves_all_as_it_is() -> None:
    table = scores()
    plain = friedman(table, lower_is_better=True)
    other = friedman(np.exp(3 * table)[::-1], lower_is_better=True)
    assert (plain.chi2, plain.p) == pytest.approx((other.chi2, other.p))
    assert plain.mean_ranks == pytest.approx(other.mean_ranks)


def test_all_ties_are_no_difference_where_scipy_has_nan() -> None:
    found = friedman(np.ones((6, 4)), lower_is_better=True)
    assert (found.p, found.reason) == (1.0, "all ties")
    assert found.mean_ranks.tolist() == [2.5] * 4


@pytest.mark.parametrize("blocks", [3, 8])
def test_blocks_that_all_agree_have_an_infinite_f_and_an_exact_p(blocks: int) -> None:
    found = friedman(np.tile([1, 2, 3, 4], (blocks, 1)), lower_is_better=True)
    assert found.f == math.inf
    assert found.p_f == pytest.approx(math.factorial(4) ** -(blocks - 1))
    assert found.p == (found.p_f if blocks < 5 else found.p_chi2)


def test_blocks_that_agree_on_a_tie_have_fewer_arrangements() -> None:
    found = friedman(np.tile([1, 2, 2, 4], (3, 1)), lower_is_better=True)
    assert (found.f, found.p) == (math.inf, pytest.approx(12**-2))


def test_few_blocks_are_permuted_one_by_one() -> None:
    """With the first block fixed there are 6^3 cases; counted by hand as those with a chi-square of 6.5 or 8."""
    found = friedman(ORACLE, lower_is_better=True)
    orders = [np.array(order) for order in ([1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1])]
    cases = [(orders[0] + a + b + c).tolist() for a in orders for b in orders for c in orders]
    extreme = [case for case in cases if sum(s * s for s in case) >= 4**2 + 9**2 + 11**2]
    assert found.source == "exact permutation"
    assert found.p == pytest.approx(len(extreme) / 216)


def test_random_permutations_agree_with_the_chi_square_of_many_methods_and_are_seeded() -> None:
    table = scores(3, blocks=4, methods=8)
    found = friedman(table, lower_is_better=True, seed=1)
    assert found.source == "permutation"
    assert found.p == pytest.approx(found.p_chi2, abs=0.05)
    assert found.p == friedman(table, lower_is_better=True, seed=1).p
    assert found.p != friedman(table, lower_is_better=True, seed=2).p


def test_a_random_permutation_p_is_never_zero() -> None:
    table = np.tile(np.arange(8.0), (4, 1))
    table[3, [6, 7]] = table[3, [7, 6]]
    assert friedman(table, lower_is_better=True).p == pytest.approx(1 / 10_001)


def test_under_no_difference_the_p_value_of_few_blocks_is_honest() -> None:
    rng = np.random.default_rng(0)
    found = np.array([friedman(rng.random((3, 4)), lower_is_better=True).p for _ in range(300)])
    assert (found <= 0.05).mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)
    assert 0.4 < found.mean() < 0.65


def test_two_methods_are_compared_by_wilcoxon() -> None:
    table = scores(methods=2)
    found = friedman(table, lower_is_better=True)
    assert (found.source, found.p) == ("wilcoxon", pytest.approx(stats.wilcoxon(table[:, 0], table[:, 1]).pvalue))


def test_two_methods_need_six_blocks_to_differ_at_a_twentieth() -> None:
    assert "p is 0.0625 at the least" in power_warning(2, 5)
    assert power_warning(2, 6) == ""
    assert friedman(np.tile([1.0, 2.0], (5, 1)) * np.arange(1, 6)[:, None], lower_is_better=True).p == 0.0625


@pytest.mark.parametrize(
    ("table", "says"), [(np.ones((1, 4)), "1 block:"), (np.ones((4, 1)), "1 method:"), (np.ones((0, 3)), "0 blocks:")]
)
def test_too_little_to_test_is_said_and_has_no_p(table: np.ndarray, says: str) -> None:
    found = friedman(table, lower_is_better=True)
    assert math.isnan(found.p)
    assert found.source == "none"
    assert found.reason.startswith(says)


def test_a_method_missing_in_more_than_a_quarter_of_the_blocks_is_left_out_and_then_only_whole_blocks_count() -> None:
    table = np.arange(32.0).reshape(8, 4)
    table[:3, 1] = NAN  # 3 of 8
    table[6:, 2] = NAN  # 2 of 8
    found = complete(table)
    assert found.methods == (0, 2, 3)
    assert found.blocks == (0, 1, 2, 3, 4, 5)
    assert found.scores.tolist() == table[:6][:, [0, 2, 3]].tolist()


def test_nothing_left_is_nothing_tested() -> None:
    assert complete([[NAN, NAN]]).scores.shape == (0, 0)
    assert friedman(complete(np.empty((0, 3))).scores, lower_is_better=True).source == "none"


def test_holes_and_lists_are_refused() -> None:
    with pytest.raises(ValueError, match="holes"):
        friedman([[1, NAN, 2]], lower_is_better=True)
    with pytest.raises(ValueError, match="dimensions"):
        friedman([1, 2, 3], lower_is_better=True)


def test_infinity_is_the_worst_distance_not_a_hole() -> None:
    assert complete([[math.inf, 1.0]]).methods == (0, 1)
    assert block_ranks([[math.inf, 1.0]], lower_is_better=True).tolist() == [[2, 1]]


def test_ties_are_groups_that_may_overlap() -> None:
    assert tie_groups([3.0, 1.0, 2.0], 1.5) == ((1, 2), (2, 0))
    assert group_letters(tie_groups([3.0, 1.0, 2.0], 1.5), 3) == ("b", "a", "ab")


def test_methods_far_apart_are_groups_of_one_and_without_a_difference_there_is_one_group() -> None:
    assert tie_groups([1.0, 2.0, 3.0], 0.5) == ((0,), (1,), (2,))
    assert tie_groups([1.0, 2.0, 3.0], math.inf) == ((0, 1, 2),)
    assert tie_groups([1.0, 1.0], 0.0) == ((0,), (1,))
    assert tie_groups([], 1.0) == ()


def test_exactly_the_critical_difference_is_told_apart() -> None:
    assert tie_groups([1.0, 2.0], 1.0) == ((0,), (1,))


def test_two_share_a_letter_exactly_if_they_are_not_told_apart() -> None:
    ranks = np.random.default_rng(1).random(9) * 8
    letters = group_letters(tie_groups(ranks, 2.0), 9)
    for i in range(9):
        for j in range(9):
            assert bool(set(letters[i]) & set(letters[j])) == (abs(ranks[i] - ranks[j]) < 2.0)


def test_the_warning_says_when_no_pair_can_ever_differ_and_how_many_blocks_would_do() -> None:
    text = power_warning(12, 2)
    assert "no two can be told apart" in text
    enough = int(text.split("which ")[1].split()[0])
    assert critical_difference(12, enough) <= 11 / 2 < critical_difference(12, enough - 1)
    assert power_warning(12, enough) == ""
    assert power_warning(3, 4) != ""
