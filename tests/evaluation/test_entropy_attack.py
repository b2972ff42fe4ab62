"""The entropy attack that SUPREME reports (METRICS 1.7)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from evaluation.catalogue import METRICS
from evaluation.metrics.entropy_attack import member_rate


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def entropy_card(make_scorecard, rng):
    """Score a model that is surer of what it was trained on, the forget records included."""
    card = make_scorecard(train=200, holdout=100)
    return card.assign(entropy=rng.exponential(np.where(card["split"] == "train", 0.1, 1.0)))


def test_forget_records_like_the_retained_ones_are_taken_for_members_as_often(rng) -> None:
    retain, forget, test = (rng.exponential(scale, 2000) for scale in (0.2, 0.2, 0.6))
    of_forget, of_retain = member_rate(retain, test, forget).value, member_rate(retain, test, retain).value
    assert of_forget == pytest.approx(of_retain, abs=2 * math.sqrt(2 * 0.25 / 2000))
    assert of_forget > 0.6


def test_separable_entropies_make_all_or_none_members(rng) -> None:
    retain, test = rng.uniform(0.0, 0.1, 200), rng.uniform(1.9, 2.0, 200)
    assert member_rate(retain, test, np.full(50, 0.05)).value == 1.0
    assert member_rate(retain, test, np.full(50, 1.95)).value == 0.0


def test_it_predicts_as_the_published_pipeline(rng) -> None:
    retain, test, forget = rng.exponential(0.3, 300), rng.exponential(0.7, 120), rng.exponential(0.5, 80)
    features, labels = np.concatenate((retain, test)).reshape(-1, 1), np.repeat([1, 0], [300, 120])
    published = LogisticRegression(class_weight="balanced", solver="lbfgs").fit(features, labels)
    assert member_rate(retain, test, forget).value == published.predict(forget.reshape(-1, 1)).mean()


def test_the_bigger_side_does_not_rule(rng) -> None:
    same = rng.exponential(0.5, 4000)
    assert 0.1 < member_rate(same[:3800], same[3800:], rng.exponential(0.5, 500)).value < 0.9


def test_constant_entropies_are_ok_with_a_reason() -> None:
    found = member_rate(np.zeros(10), np.zeros(10), np.zeros(5))
    assert found.status == "ok"
    assert found.value in (0.0, 1.0)
    assert "constant entropies" in found.reason


@pytest.mark.parametrize("empty, name", [(0, "retain_train"), (1, "test"), (2, "forget_train")])
def test_an_empty_set_and_nan_are_undefined_and_named(empty: int, name: str) -> None:
    sides = [np.ones(5), np.zeros(5), np.ones(5)]
    sides[empty] = np.empty(0)
    assert (member_rate(*sides).status, member_rate(*sides).reason) == ("undefined", f"empty {name} set")
    sides[empty] = np.array([1.0, math.nan])
    assert member_rate(*sides).reason == f"non-finite entropies in {name}"


def test_the_order_of_records_changes_nothing(rng) -> None:
    sides = [rng.exponential(0.5, n) for n in (60, 50, 40)]
    assert member_rate(*sides) == member_rate(*(side[::-1] for side in sides))


def test_a_model_sure_of_its_training_records_counts_forgotten_ones_as_members(
    make_evidence, make_model, entropy_card
) -> None:
    found = METRICS.get("entropy_mia").compute(make_evidence(make_model(scorecard=entropy_card)))
    assert found.value > 0.9
    assert found.n == 200
    assert found.ci_low < found.value < found.ci_high


def test_the_difference_to_gold_is_what_counts(make_evidence, make_model, entropy_card, rng) -> None:
    unseen = entropy_card["selected"] & (entropy_card["split"] == "train")
    retrained = entropy_card.assign(entropy=entropy_card["entropy"].where(~unseen, rng.exponential(1.0, len(unseen))))
    subject, gold = make_model(scorecard=entropy_card), make_model("retrain", scorecard=retrained)
    metric = METRICS.get("entropy_mia")
    found = metric.difference(make_evidence(subject, gold))
    assert found.value == pytest.approx(
        metric.compute(make_evidence(subject)).value - metric.compute(make_evidence(gold)).value
    )
    assert found.value > 0.3
    assert metric.difference(make_evidence(gold, gold)).value == 0.0
    assert metric.difference(make_evidence(subject)).reason == "needs gold"


def test_a_task_without_softmax_outputs_has_no_such_attack(make_evidence, make_model, make_scorecard) -> None:
    card = make_scorecard().assign(entropy=math.nan)
    found = METRICS.get("entropy_mia").compute(make_evidence(make_model(scorecard=card)))
    assert (found.status, math.isnan(found.value)) == ("not_applicable", True)


def test_a_diverged_gold_leaves_no_difference(make_evidence, make_model, entropy_card) -> None:
    gold = make_model("retrain", scorecard=entropy_card.assign(loss=math.inf))
    found = METRICS.get("entropy_mia").difference(make_evidence(make_model(scorecard=entropy_card), gold))
    assert found.status == "undefined"
    assert found.reason.startswith("gold: non-finite")
