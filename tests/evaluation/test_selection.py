"""The rule that chooses a trial sees training records only; ties go to the first; what is not finite is no score."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from evaluation.selection import SEEN, best, judge, training_rows


def card(forget: list[float], retain: list[float], held: float = 0.5) -> pd.DataFrame:
    """Return a scorecard with two held-out and one reference record beside the training records."""
    values = [*forget, *retain, held, held, held]
    n = len(values)
    return pd.DataFrame(
        {
            "record": [f"r{i}" for i in range(n)],
            "split": ["train"] * (n - 3) + ["holdout", "holdout", "reference"],
            "selected": [True] * len(forget) + [False] * len(retain) + [True, False, False],
            "retained": [False] * len(forget) + [True] * len(retain) + [False, True, False],
            "metric": values,
            "loss": 0.1,
        }
    )


def test_the_score_is_retained_minus_forgotten() -> None:
    found = judge(training_rows(card([1, 0, 0, 0], [1, 1, 1, 0])))
    assert (found.score, found.retain_train, found.forget_train) == (0.5, 0.75, 0.25)


def test_where_lower_is_better_the_sign_is_turned() -> None:
    found = judge(training_rows(card([5.0], [2.0])), higher_is_better=False)
    assert (found.score, found.retain_train, found.forget_train) == (3.0, 2.0, 5.0)


def test_a_record_of_an_earlier_request_is_on_neither_side() -> None:
    rows = training_rows(card([0.0], [1.0]))
    earlier = pd.DataFrame([["e", "train", False, False, 0.5]], columns=SEEN)
    assert judge(pd.concat([rows, earlier])) == judge(rows)


def test_the_oracle_wants_gold_not_nought() -> None:
    gold = training_rows(card([0.0, 1.0], [1.0, 1.0]))
    over = judge(training_rows(card([0.0, 0.0], [1.0, 1.0])), rule="oracle", gold=gold)
    alike = judge(training_rows(card([1.0, 0.0], [1.0, 1.0])), rule="oracle", gold=gold)
    assert (over.score, alike.score) == (-0.5, 0.0)
    assert judge(training_rows(card([0.0, 0.0], [1.0, 1.0]))).score == 1.0, "the rule by score prefers too much"
    with pytest.raises(ValueError, match="needs gold"):
        judge(gold, rule="oracle")


def test_the_rule_gets_training_rows_and_nothing_else() -> None:
    rows = training_rows(card([1.0], [1.0]))
    assert list(rows.columns) == SEEN
    assert set(rows["split"]) == {"train"}
    with pytest.raises(ValueError, match="training records only"):
        judge(card([1.0], [1.0])[SEEN])


@pytest.mark.parametrize("held", [0.0, 0.7, math.nan])
def test_held_out_scores_change_nothing(held: float) -> None:
    trials = [([0.2, 0.4], [0.9]), ([0.1, 0.1], [0.9]), ([0.0, 0.0], [0.2])]
    scores = [judge(training_rows(card(forget, retain, held))).score for forget, retain in trials]
    assert best(scores) == 1


def test_what_is_not_finite_is_no_score_and_says_why() -> None:
    found = judge(training_rows(card([math.nan, 1.0], [1.0, 1.0])))
    assert math.isnan(found.score)
    assert found.reason == "non-finite outputs on 1 of 4 training records"


def test_the_infinite_psnr_of_a_perfect_image_is_left_out() -> None:
    assert judge(training_rows(card([20.0], [math.inf, 30.0]))).score == 10.0
    assert judge(training_rows(card([20.0], [math.inf]))).reason == "no finite value on retained training records"


@pytest.mark.parametrize(
    ("scores", "place"),
    [([0.1, 0.3, 0.3], 1), ([math.nan, -1.0], 1), ([math.nan, math.nan], None), ([], None), ([0.0, 0.0], 0)],
)
def test_of_equal_scores_the_first_is_best_and_failures_never(scores: list[float], place: int | None) -> None:
    assert best(scores) == place
