"""Two runs side by side: whether a difference is more than what happened to be drawn."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from made_runs import make_run
from scipy.stats import norm, ttest_ind

from evaluation.pages.comparison import Pair, change, lone, paired_name, pairs_of, settings_apart, table
from evaluation.report.sections import Section, sections_of
from evaluation.runs import Run


def row(mean: float | None, *, std: float | None = None, seeds: int = 1, interval: Any = None) -> dict[str, Any]:
    return {"metrics": {"m": {"mean": mean, "std": std, "seeds": seeds, "interval": interval}}}


def test_two_equal_intervals_give_one_root_two_as_wide() -> None:
    found = change(row(0.5, interval=[0.4, 0.6]), row(0.6, interval=[0.5, 0.7]), "m")
    assert found.difference == pytest.approx(0.1)
    assert (found.low, found.high) == pytest.approx((0.1 - 0.1 * math.sqrt(2), 0.1 + 0.1 * math.sqrt(2)))
    assert found.verdict == "within"


def test_lopsided_intervals_give_their_own_sides() -> None:
    found = change(row(0.5, interval=[0.48, 0.58]), row(0.7, interval=[0.6, 0.71]), "m")
    assert found.low == pytest.approx(0.2 - math.hypot(0.7 - 0.6, 0.58 - 0.5))
    assert found.high == pytest.approx(0.2 + math.hypot(0.71 - 0.7, 0.5 - 0.48))
    assert found.verdict == "beyond"


def test_normal_intervals_of_two_shares_agree_with_the_z_test() -> None:
    half = norm.ppf(0.975) * 0.02
    for shift, verdict in ((norm.ppf(0.974) * 0.02 * math.sqrt(2), "within"), (0.0560, "beyond")):
        pair = (
            row(0.5, interval=[0.5 - half, 0.5 + half]),
            row(0.5 + shift, interval=[0.5 + shift - half, 0.5 + shift + half]),
        )
        assert change(*pair, "m").verdict == verdict


def test_seeds_far_apart_are_beyond_as_a_t_test_has_it_and_near_ones_within() -> None:
    far, near = ([0.50, 0.51, 0.52, 0.51], [0.60, 0.61, 0.62, 0.61]), ([0.5, 0.6, 0.4], [0.52, 0.58, 0.45])
    for (one, two), verdict in ((far, "beyond"), (near, "within")):
        rows = [row(sum(v) / len(v), std=_std(v), seeds=len(v)) for v in (one, two)]
        assert change(*rows, "m").verdict == verdict
        assert (ttest_ind(one, two, equal_var=False).pvalue < 0.05) == (verdict == "beyond")


def _std(values: list[float]) -> float:
    middle = sum(values) / len(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))


def test_one_seed_without_an_interval_is_not_judged() -> None:
    found = change(row(0.5), row(0.9, interval=[0.8, 1.0]), "m")
    assert (found.verdict, found.difference) == ("unknown", pytest.approx(0.4))
    assert math.isnan(found.low)


@pytest.mark.parametrize("other", [row(None), {"metrics": {}}])
def test_a_value_that_only_one_has_is_missing_not_nought(other: dict[str, Any]) -> None:
    found = change(row(0.5, interval=[0.4, 0.6]), other, "m")
    assert found.verdict == "missing"
    assert math.isnan(found.difference)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Section], list[Section]]:
    home = tmp_path_factory.mktemp("home")
    first = make_run(home, "a", requests=("client:site-0", "class:2"))
    second = make_run(home, "b", shift=0.06, settings={"lr": 0.02}, methods=("retrain", "ga"), experiment="other")
    return sections_of(Run(first)), sections_of(Run(second))


def test_requests_are_matched_by_what_they_are_not_by_the_experiments_name(two: tuple[Any, Any]) -> None:
    (pair,) = pairs_of(*two)
    assert pair.first.labels["request"] == pair.second.labels["request"] == "client:site-0"
    assert [section.labels["request"] for section in lone(*two)] == ["class:2"]
    assert lone(two[1], two[0]) == []


def test_models_of_one_run_are_named_and_those_of_both_in_order(two: tuple[Any, Any]) -> None:
    (pair,) = pairs_of(*two)
    assert [one["method"] for one, _ in pair.models] == ["original", "retrain", "ga", "retrain", "ga"]
    assert "federaser unlearned" in pair.only[0]
    assert "prune unlearned" not in pair.only[0]
    assert pair.only[1] == []


def test_a_method_is_matched_though_its_preset_differs_unless_it_has_several(two: tuple[Any, Any]) -> None:
    first, (other,) = two
    safe = replace(other, rows=[row | {"preset": "safe"} for row in other.rows])
    (pair,) = pairs_of(first, [safe])
    assert {(one["preset"], two["preset"]) for one, two in pair.models} == {("lethe", "safe")}
    assert len(pair.models) == 5
    assert paired_name(pair, pair.models[-1]) == "ga lethe / ga safe"
    (pair,) = pairs_of(first, [replace(other, rows=[*safe.rows, *other.rows])])
    assert {(one["preset"], two["preset"]) for one, two in pair.models} == {("lethe", "lethe")}
    assert "ga safe recovered" in pair.only[1]


def test_settings_that_differ_are_told_and_places_are_not(two: tuple[Any, Any]) -> None:
    pairs = pairs_of(*two)
    records = ({"environment": {"commit": "a", "host": "x"}}, {"environment": {"commit": "b", "host": "y"}})
    assert settings_apart(pairs, *records) == [("lr", "0.01", "0.02", ""), ("commit", "a", "b", "")]


def test_the_table_has_every_metric_once_with_its_interval(two: tuple[Any, Any]) -> None:
    found = table(pairs_of(*two))
    assert not found.duplicated(["request", "method", "checkpoint", "metric"]).any()
    ga = found[
        (found["method"] == "ga") & (found["metric"] == "forget_accuracy") & (found["checkpoint"] == "unlearned")
    ]
    assert ga["difference"].item() == pytest.approx(0.06)
    assert ga["high"].item() == pytest.approx(0.06 + 0.03 * math.sqrt(2))
    assert ga["verdict"].item() == "beyond"


def test_runs_with_nothing_in_common_have_no_pair(two: tuple[Any, Any]) -> None:
    pairs: list[Pair] = pairs_of(two[0][:1], two[1])
    assert len(pairs) + len(pairs_of(two[0][1:], two[1])) == 1
    assert table([]).empty
