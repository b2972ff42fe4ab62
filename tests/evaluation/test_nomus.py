"""NoMUS: half utility, half forgetting (METRICS 2)."""

from __future__ import annotations

import math

import pytest

from evaluation.catalogue import METRICS
from evaluation.metrics.nomus import nomus_score


@pytest.mark.parametrize(
    "accuracy, attack, score", [(0.5951916829, 0.7136212625, 0.5839745790), (1, 0.5, 1), (0, 1, 0), (0, 0, 0)]
)
def test_the_printed_examples(accuracy: float, attack: float, score: float) -> None:
    assert nomus_score(accuracy, attack) == pytest.approx(score, abs=1e-10)


@pytest.mark.parametrize(
    "name, attack", [("nomus", "population_mia_accuracy"), ("nomus_mufac", "population_mia_accuracy_mufac")]
)
def test_it_is_made_of_test_accuracy_and_the_attacks_accuracy(
    make_evidence, make_model, name: str, attack: str
) -> None:
    given = make_evidence(make_model())
    parts = [METRICS.get(part).compute(given).value for part in ("test_{metric}", attack)]
    assert METRICS.get(name).compute(given).value == pytest.approx(nomus_score(*parts))


def test_a_model_that_remembers_scores_below_one_that_does_not(make_evidence, make_model, make_scorecard) -> None:
    card = make_scorecard(train=200, holdout=200)
    mine = card["selected"] & (card["split"] == "train")
    remembering = card.assign(loss=card["loss"].where(~mine, 0.0))
    kept, forgot = (
        METRICS.get("nomus").compute(make_evidence(make_model(scorecard=c))).value for c in (remembering, card)
    )
    assert kept < forgot - 0.3


def test_other_task_metrics_have_only_the_starred_score(make_evidence, make_model) -> None:
    given = make_evidence(make_model(), make_model("retrain"), metric_name="dice")
    assert METRICS.get("nomus").compute(given).status == "not_applicable"
    assert METRICS.get("nomus_star").compute(given).status == "ok"


def test_the_starred_score_takes_utility_as_a_share_of_golds(make_evidence, make_model, make_scorecard) -> None:
    card, star = make_scorecard(), METRICS.get("nomus_star")
    halved = make_evidence(make_model(scorecard=card.assign(metric=card["metric"] / 2)), make_model("retrain"))
    same = make_evidence(make_model("retrain"), make_model("retrain"))
    assert star.compute(same).value - star.compute(halved).value == pytest.approx(0.25)


def test_more_utility_than_golds_is_no_better_than_golds(make_evidence, make_model, make_scorecard) -> None:
    card, star = make_scorecard(), METRICS.get("nomus_star")
    doubled = make_evidence(make_model(scorecard=card.assign(metric=card["metric"] * 2)), make_model("retrain"))
    same = make_evidence(make_model("retrain"), make_model("retrain"))
    assert star.compute(doubled).value == star.compute(same).value


def test_the_starred_score_needs_a_gold_of_some_use_and_a_metric_that_grows(
    make_evidence, make_model, make_scorecard
) -> None:
    star, useless = METRICS.get("nomus_star"), make_scorecard().assign(metric=0.0)
    assert star.compute(make_evidence(make_model())).reason == "needs gold"
    assert "not above 0" in star.compute(make_evidence(make_model(), make_model("retrain", scorecard=useless))).reason
    falling = make_evidence(make_model(), make_model("retrain"), metric_name="hd95", higher_is_better=False)
    assert star.compute(falling).status == "not_applicable"


def test_an_attack_that_cannot_be_made_leaves_no_score(make_evidence, make_model, make_scorecard) -> None:
    card = make_scorecard().assign(selected=False)
    found = METRICS.get("nomus").compute(make_evidence(make_model(scorecard=card)))
    assert (found.status, math.isnan(found.value), found.reason) == ("undefined", True, "empty forget set")


def test_a_weak_attack_makes_a_weak_score(make_evidence, make_model, make_scorecard) -> None:
    few = make_evidence(make_model(scorecard=make_scorecard(train=15, holdout=15)))
    assert METRICS.get("nomus").compute(few).status == "underpowered"


def test_patients_of_the_attack_in_the_test_set_are_said(make_evidence, make_model, make_scorecard) -> None:
    local = METRICS.get("nomus").compute(make_evidence(make_model()))
    assert "test shares 30 patients" in local.reason
    card = make_scorecard(reference=60)
    apart = METRICS.get("nomus").compute(make_evidence(make_model(scorecard=card), has_reference=True))
    assert "shares" not in apart.reason
