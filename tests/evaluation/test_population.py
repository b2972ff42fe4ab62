"""The population loss attack (METRICS 1.6)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedShuffleSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from evaluation.metrics.population import attack_accuracy, forgetting_score


def losses(n: int, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).exponential(scale, n)


@pytest.mark.parametrize("preset", ["honest", "mufac"])
def test_the_same_losses_on_both_sides_cannot_be_told_apart(preset: str) -> None:
    assert attack_accuracy(losses(1000), losses(1000), preset=preset).value == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("preset", ["honest", "mufac"])
def test_disjoint_losses_are_told_apart_always(preset: str) -> None:
    assert attack_accuracy(losses(200), losses(200) + 40, preset=preset).value == 1.0


@pytest.mark.parametrize("num_forget, num_unseen", [(80, 50), (50, 80), (60, 60)])
def test_the_mufac_preset_is_the_published_pipeline_to_the_bit(num_forget: int, num_unseen: int) -> None:
    forget, unseen = losses(num_forget), losses(num_unseen, 2.0, seed=1)
    np.random.seed(42)
    shuffled = forget.copy()
    np.random.shuffle(shuffled)
    samples = np.concatenate((unseen, shuffled[: len(unseen)]))
    labels = [0] * len(unseen) + [1] * min(len(forget), len(unseen))
    folds = StratifiedShuffleSplit(n_splits=10, random_state=0)
    theirs = cross_val_score(LogisticRegression(), samples.reshape(-1, 1), labels, cv=folds, scoring="accuracy").mean()
    assert attack_accuracy(forget, unseen, preset="mufac").value == theirs


def test_the_honest_preset_is_a_standardising_pipeline_averaged_over_draws() -> None:
    forget, unseen = losses(60), losses(60, 2.0, seed=1)
    samples, labels = np.concatenate((np.sort(unseen), np.sort(forget)))[:, None], [0] * 60 + [1] * 60
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    theirs = [
        cross_val_score(pipeline, samples, labels, cv=StratifiedShuffleSplit(10, random_state=draw)).mean()
        for draw in range(5)
    ]
    assert attack_accuracy(forget, unseen).value == pytest.approx(np.mean(theirs), abs=1e-12)


def test_few_forget_records_fool_the_published_preset_but_not_the_honest_one() -> None:
    forget, unseen = losses(40), losses(400, seed=1)
    assert attack_accuracy(forget, unseen, preset="mufac").value > 0.85
    assert attack_accuracy(forget, unseen).value == pytest.approx(0.5, abs=0.12)


def test_order_of_records_changes_nothing() -> None:
    forget, unseen = losses(60), losses(90, 2.0, seed=1)
    assert attack_accuracy(forget[::-1], unseen[::-1]) == attack_accuracy(forget, unseen)


def test_the_seed_draws_other_subsamples() -> None:
    forget, unseen = losses(60), losses(300, 1.3, seed=1)
    assert attack_accuracy(forget, unseen, seed=1).value != attack_accuracy(forget, unseen, seed=2).value


def test_known_gaussians_reach_the_best_threshold_accuracy() -> None:
    rng = np.random.default_rng(0)
    found = attack_accuracy(rng.normal(0, 1, 800), rng.normal(1, 1, 800))
    best = 0.5 * (1 + math.erf(0.5 / math.sqrt(2)))  # Phi(d/2)
    assert found.value == pytest.approx(best, abs=3 * math.sqrt(best * (1 - best) / 1600))
    assert found.ci_low < best < found.ci_high


@pytest.mark.parametrize("preset", ["honest", "mufac"])
def test_infinite_losses_after_ascent_are_clipped(preset: str) -> None:
    assert attack_accuracy(np.full(50, np.inf), losses(50), preset=preset).value == 1.0


def test_constant_losses_do_not_divide_by_zero() -> None:
    assert attack_accuracy(np.ones(30), np.ones(30)).value == pytest.approx(0.5, abs=0.2)


def test_nan_losses_are_undefined() -> None:
    assert attack_accuracy([math.nan] * 30, losses(30)).reason == "NaN losses"


def test_ten_records_a_side_are_the_least_and_twenty_are_enough() -> None:
    assert attack_accuracy(losses(9), losses(500)).status == "undefined"
    assert attack_accuracy(losses(10), losses(500)).status == "underpowered"
    assert attack_accuracy(losses(20), losses(20)).status == "ok"


def test_forgetting_score_is_a_distance_from_one_half() -> None:
    assert forgetting_score(0.3) == pytest.approx(forgetting_score(0.7)) == pytest.approx(0.2)
