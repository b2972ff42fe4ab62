"""Whether a request can separate methods at all."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from evaluation.difficulty import judge, separability, unseparable
from evaluation.results import COLUMNS


def control(value: float, half: float = 0.05, seed: int = 0, **labels: Any) -> pd.DataFrame:
    plain: dict[str, Any] = dict.fromkeys(COLUMNS, "") | {"alpha": math.nan, "status": "ok", "n": 200}
    plain |= {"dataset": "lung-ct", "partition": "natural", "request": "client:patient-1", "granularity": "client"}
    plain |= {"method": "original", "checkpoint": "trained", "metric": "delta_forget_accuracy", "train_seed": seed}
    plain |= {"value": value, "ci_low": value - half, "ci_high": value + half, "unlearn_seed": 0, "evaluate_seed": 0}
    return pd.DataFrame([plain | labels])


def seeds(*values: float, half: float = 0.05) -> pd.DataFrame:
    return pd.concat([control(value, half, seed) for seed, value in enumerate(values)], ignore_index=True)


@pytest.mark.parametrize(
    ("gap", "verdict"),
    [(0.0, "cannot"), (0.04, "cannot"), (-0.04, "cannot"), (0.07, "barely"), (0.3, "separates"), (-0.3, "separates")],
)
def test_the_gap_is_read_against_its_interval(gap: float, verdict: str) -> None:
    found = judge(control(gap), metric="m")
    assert (found.verdict, found.gap) == (verdict, gap)
    assert found.resolution == pytest.approx(abs(gap) / 0.05)


def test_the_same_gap_on_more_records_can_separate() -> None:
    assert judge(control(0.05, half=0.06), metric="m").verdict == "cannot"
    assert judge(control(0.05, half=0.02), metric="m").verdict == "separates"


def test_it_says_what_is_seen_of_a_request_that_cannot() -> None:
    found = judge(control(0.01), metric="m")
    assert "does nothing scores as gold does; only damage shows" in found.reason
    assert "+0.010 from gold" in found.reason
    assert "200 records" in found.reason


def test_seeds_that_disagree_widen_the_interval() -> None:
    """Three seeds with deviation 0.1: t(2) = 4.3027 by 0.1 over the root of 3, beside 0.05 of the records."""
    found = judge(seeds(0.2, 0.3, 0.4), metric="m")
    half = math.hypot(0.05, 4.302653 * 0.1 / math.sqrt(3))
    assert (found.gap, found.seeds) == (pytest.approx(0.3), 3)
    assert (found.ci_low, found.ci_high) == pytest.approx((0.3 - half, 0.3 + half))
    assert found.verdict == "barely"


def test_seeds_that_agree_do_not_narrow_it_as_the_records_are_the_same() -> None:
    found = judge(seeds(0.3, 0.3, 0.3, 0.3), metric="m")
    assert found.ci_high - found.ci_low == pytest.approx(0.1)


def test_two_seeds_say_nothing_about_their_spread() -> None:
    assert judge(seeds(0.2, 0.4), metric="m").ci_low == pytest.approx(0.25)


def test_evaluation_seeds_are_not_counted_as_training_seeds() -> None:
    frame = pd.concat([control(0.2, evaluate_seed=0), control(0.4, evaluate_seed=1), control(0.3, evaluate_seed=2)])
    found = judge(frame, metric="m")
    assert found.seeds == 1
    assert found.ci_high - found.ci_low == pytest.approx(0.1)


@pytest.mark.parametrize(
    "missing",
    [
        {"value": math.nan, "status": "undefined", "reason": "empty forget set"},
        {"status": "diverged", "reason": "empty forget set"},
    ],
)
def test_what_has_no_sound_value_is_not_judged(missing: dict[str, Any]) -> None:
    found = judge(control(0.3).assign(**missing), metric="m")
    assert (found.verdict, found.reason) == ("unknown", "empty forget set")
    assert math.isnan(found.gap)


def test_without_an_interval_there_is_no_verdict() -> None:
    found = judge(control(0.3, half=math.nan), metric="m")
    assert (found.verdict, found.reason, found.gap) == ("unknown", "no interval", 0.3)


def test_no_spread_at_all_is_decided_by_the_gap() -> None:
    assert judge(control(0.0, half=0.0), metric="m").verdict == "cannot"
    assert judge(control(0.1, half=0.0), metric="m").verdict == "separates"


TABLE = pd.concat(
    [
        control(0.3, metric="delta_forget_accuracy"),
        control(0.4, metric="delta_forget_train_accuracy"),
        control(0.5, metric="delta_forget_train_loss"),
        control(0.01, metric="delta_population_mia_auc"),
        control(0.9, metric="delta_test_accuracy"),
        control(0.02, method="fine-tuning", checkpoint="recovered"),
        control(0.01, method="ga", checkpoint="recovered"),
        control(0.00, request="class:5", granularity="class"),
    ],
    ignore_index=True,
)


def test_every_request_is_judged_at_each_checkpoint_by_what_does_nothing_there() -> None:
    found = separability(TABLE).set_index(["request", "metric", "checkpoint"])["verdict"].to_dict()
    assert found == {
        ("client:patient-1", "delta_forget_accuracy", "unlearned"): "separates",
        ("client:patient-1", "delta_forget_accuracy", "recovered"): "cannot",
        ("client:patient-1", "delta_forget_train_accuracy", "unlearned"): "separates",
        ("client:patient-1", "delta_population_mia_auc", "unlearned"): "cannot",
    }


def test_the_blind_requests_are_named_by_metric() -> None:
    full = pd.concat(
        [TABLE, control(0.0, request="class:5", metric="delta_forget_train_accuracy", alpha=0.1)], ignore_index=True
    )
    judged = separability(full)
    assert unseparable(judged, "recovered") == {"forget accuracy": ["lung-ct natural client:patient-1"]}
    assert unseparable(judged, "unlearned") == {
        "MIA AUC": ["lung-ct natural client:patient-1"],
        "forget (trained records, accuracy)": ["lung-ct natural 0.1 class:5"],
    }


def test_nothing_to_judge_is_an_empty_table() -> None:
    assert separability(TABLE.iloc[:0]).empty
    assert unseparable(separability(TABLE.iloc[:0]), "recovered") == {}
