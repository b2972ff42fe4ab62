"""What an attack's scores achieve, and what may be said of it (METRICS 1.2)."""

from __future__ import annotations

import doctest
import importlib
import math
import pkgutil

import numpy as np
import pytest

import evaluation.attacks
from evaluation.attacks.separation import Separation, judge
from evaluation.metrics.intervals import clustered_auc_interval
from evaluation.metrics.roc import auc, leakage, leakage_size, rare_tpr, roc_auc
from evaluation.metrics.value import Value, undefined

MODULES = [f"evaluation.attacks.{found.name}" for found in pkgutil.iter_modules(evaluation.attacks.__path__)]


def sides(shift: float, n: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    member = np.arange(2 * n) < n
    return np.random.default_rng(seed).normal(shift * member, 1.0), member


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_the_attacks_docstrings_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_number_of_the_section_is_given() -> None:
    scores, member = sides(1.0)
    found = judge(scores, member).separation
    assert found.auc.value == auc(scores[member], scores[~member])
    assert found.leakage.value == found.leakage_size.value == found.auc.value - 0.5
    assert (found.auc.ci_low - 0.5, found.auc.ci_high - 0.5) == (found.leakage.ci_low, found.leakage.ci_high)
    assert 0 < found.tpr_at_1pct_fpr.value < found.tpr_at_1pct_fpr.ci_high < 1
    assert found.balanced_accuracy.value > 0.6
    assert found.tpr_at_01pct_fpr.status == "undefined"


@pytest.mark.parametrize("shift, reading", [(1.0, "leaks"), (-1.0, "leaks inverted"), (0.0, "no leak shown")])
def test_the_interval_of_the_auc_decides_what_may_be_said(shift: float, reading: str) -> None:
    assert judge(*sides(shift)).separation.reading == reading


def test_over_forgetting_is_a_negative_leakage_of_the_same_size() -> None:
    up, down = (judge(sides(1.0)[0] * sign, sides(1.0)[1]).separation for sign in (1, -1))
    assert down.leakage.value == pytest.approx(-up.leakage.value)
    assert down.leakage_size.value == pytest.approx(up.leakage_size.value)
    assert 0 < down.leakage_size.ci_low < down.leakage_size.value < down.leakage_size.ci_high


def test_an_interval_around_one_half_is_folded_to_start_at_zero() -> None:
    around = Value(0.48, 10, 0.4, 0.55)
    assert (leakage_size(around).ci_low, leakage_size(around).ci_high) == pytest.approx((0.0, 0.1))
    assert leakage(around).value == pytest.approx(-0.02)


def test_a_missing_auc_has_no_leakage() -> None:
    for made in (leakage, leakage_size):
        assert math.isnan(made(undefined("no negatives")).value)
        assert made(undefined("no negatives")).reason == "no negatives"


def test_records_without_a_score_are_dropped_and_counted() -> None:
    scores, member = sides(1.0)
    holed = np.where(np.arange(600) % 10 == 0, np.nan, scores)
    found = judge(holed, member)
    kept = ~np.isnan(holed)
    assert found.dropped == 60
    assert found.separation.auc.value == auc(scores[kept & member], scores[kept & ~member])
    assert "60 of 600 records dropped" in found.separation.auc.reason


def test_below_ten_positives_every_number_is_underpowered() -> None:
    for positives, status in ((9, "underpowered"), (10, "ok")):
        found = judge(np.arange(300.0), np.arange(300) < positives).separation
        assert (found.auc.status, found.leakage.status, found.balanced_accuracy.status) == (status,) * 3
    assert judge(np.arange(300.0), np.arange(300) > 290).separation.reading == "undecided"


@pytest.mark.parametrize("member", [[True, True], [False, False]])
def test_one_side_alone_is_undefined(member: list[bool]) -> None:
    found = judge([0.0, 1.0], member).separation
    assert {value.status for value in vars(found).values()} == {"undefined"}
    assert found.reading == "undecided"


def test_all_scores_equal_is_one_half_with_a_reason() -> None:
    found = judge(np.zeros(40), np.arange(40) < 20).separation
    assert (found.auc.value, found.auc.reason, found.reading) == (0.5, "all ties", "no leak shown")


def test_rare_false_positives_are_asked_of_a_thousand_negatives_only() -> None:
    assert rare_tpr([1.0], np.zeros(999)).status == "undefined"
    assert rare_tpr([1.0], np.zeros(1000)).status == "ok"


def test_nothing_is_a_number_when_nothing_could_be_computed() -> None:
    found = Separation.missing(undefined("diverged"))
    assert all(math.isnan(value.value) and value.reason == "diverged" for value in vars(found).values())


def clients_with_moods(seed: int, clients: int = 6, each: int = 50) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Make members and others without a difference, whose scores share a strong effect of client and side."""
    rng = np.random.default_rng(seed)
    client, member = np.repeat(np.arange(clients), 2 * each), np.tile(np.arange(2 * each) < each, clients)
    mood = rng.normal(0, 1, (clients, 2))
    return mood[client, member.astype(int)] + rng.normal(0, 0.3, client.size), member, client


def test_records_of_one_client_move_together_so_its_interval_is_wider() -> None:
    scores, member, client = clients_with_moods(0)
    alone, together = judge(scores, member).separation.auc, judge(scores, member, clients=client).separation.auc
    assert together.value == alone.value
    assert together.ci_high - together.ci_low > 3 * (alone.ci_high - alone.ci_low)
    assert "interval over 6 clients" in together.reason


def test_client_intervals_cover_one_half_far_more_often_where_clients_have_moods() -> None:
    covered = {True: 0, False: 0}
    for seed in range(30):
        scores, member, client = clients_with_moods(seed)
        for whole in covered:
            found = judge(scores, member, clients=client if whole else None).separation.auc
            covered[whole] += found.ci_low <= 0.5 <= found.ci_high
    assert covered[True] >= 22
    assert covered[False] <= 12


def test_one_client_on_a_side_has_no_interval_and_no_reading() -> None:
    scores, member = sides(2.0)
    for clients in (np.zeros(600), np.where(member, 1, 0)):
        found = judge(scores, member, clients=clients).separation
        assert math.isnan(found.auc.ci_low)
        assert found.auc.status == "ok"
        assert found.reading == "undecided"
        assert "too few clients" in found.auc.reason


def test_clients_of_one_record_each_give_about_the_interval_of_records() -> None:
    scores, member = sides(1.0)
    plain = roc_auc(scores[member], scores[~member])
    low, high = clustered_auc_interval(scores[member], scores[~member], np.arange(300), np.arange(300, 600), seed=0)
    assert (low, high) == pytest.approx((plain.ci_low, plain.ci_high), abs=0.01)


def test_the_order_of_records_and_the_names_of_clients_change_nothing() -> None:
    scores, member, client = clients_with_moods(1)
    order = np.random.default_rng(2).permutation(scores.size)
    named = np.array([f"site-{number}" for number in client])
    straight, shuffled = (
        judge(*parts, clients=who).separation
        for parts, who in (((scores, member), client), ((scores[order], member[order]), named[order]))
    )
    assert straight == shuffled
