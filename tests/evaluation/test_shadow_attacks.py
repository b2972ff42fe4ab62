"""The attacks of the panel on phi of known distributions (METRICS 1.3 to 1.5, 8.3), and what they say otherwise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from evaluation.catalogue import METRICS
from evaluation.curves import CURVES
from evaluation.evidence import Evidence
from evaluation.metrics.value import Value
from evaluation.shadows import Shadows

N, SHADOWS, REFERENCES = 600, 8, 8
"""Records on each side of the attack; four shadows know each record and four do not."""


def phi_of(rng: np.random.Generator, centre: np.ndarray, shift: np.ndarray | float, models: int) -> np.ndarray:
    return centre + shift + rng.normal(size=(models, centre.size))


def made(
    make_evidence: Any, make_model: Any, make_scorecard: Any, *, lift: float, left: float = 0.0, target: float = 0.0
) -> Evidence:
    """Make a request whose members gain `lift` in phi when trained on, keep `left` of it after forgetting.

    The attacked model has `target` on the records it was to forget.
    """
    rng = np.random.default_rng(0)
    card = make_scorecard(train=N, holdout=N, sites=1)
    centre = rng.normal(0, 3, 2 * N)  # how hard a record is, whatever a model was trained on
    unlearned = (card["split"] == "train").to_numpy()
    forgotten = np.zeros((SHADOWS, 2 * N), dtype=bool)
    for pair in range(0, SHADOWS, 2):
        half = rng.random(2 * N) < 0.5
        forgotten[pair], forgotten[pair + 1] = half, ~half
    card["phi"] = centre + target * unlearned + rng.normal(size=2 * N)
    shadows = Shadows(
        records=tuple(card["record"]),
        unlearned=unlearned,
        clients=card["site"].to_numpy(dtype=str),
        forgotten=forgotten,
        trained=phi_of(rng, centre, lift * forgotten, SHADOWS),
        forgot=phi_of(rng, centre, left * forgotten, SHADOWS),
        retrained=phi_of(rng, centre, 0.0, REFERENCES),
        seed_gaps=(2.0, 4.0),
    )
    gold_card = card.assign(phi=centre + rng.normal(size=2 * N))
    return make_evidence(  # type: ignore[no-any-return]
        make_model(scorecard=card), make_model("retrain", scorecard=gold_card), granularity="sample", shadows=shadows
    )


@pytest.fixture
def make(make_evidence: Any, make_model: Any, make_scorecard: Any) -> Any:
    return lambda **how: made(make_evidence, make_model, make_scorecard, **how)


def value(evidence: Evidence, name: str) -> Value:
    return dict(METRICS.get(name.removeprefix("delta_")).rows(evidence))[name]


def close(found: Value, area: float, widths: float = 3.0) -> bool:
    """Tell whether an AUC is within so many standard errors (from its own interval) of a known one."""
    return abs(found.value - area) < widths * (found.ci_high - found.ci_low) / (2 * 1.96)


def test_lira_finds_what_an_unforgotten_model_remembers(make: Any) -> None:
    found = value(make(lift=2.0, target=2.0), "lira_auc")
    assert close(found, norm.cdf(2 / math.sqrt(2)), 5.0), "a little less than the bound: four shadows each"
    assert value(make(lift=2.0, target=2.0), "lira_distinguishable").value == 1


def test_the_calibrated_attack_has_its_known_area(make: Any) -> None:
    found = value(make(lift=1.0, target=1.0), "calibrated_mia_auc")
    spread = math.pi / 2 / REFERENCES  # variance of a median
    assert close(found, norm.cdf(1 / math.sqrt(2 * (1 + spread))))
    assert value(make(lift=1.0, target=1.0), "calibrated_mean_z").value == pytest.approx(1.0, abs=0.2)


def test_a_model_like_gold_is_inside_golds_band_by_every_attack(make: Any) -> None:
    evidence = make(lift=2.0, left=2.0, target=0.0)
    for attack, area in (("lira", "lira_auc"), ("ulira", "ulira_auc"), ("calibrated", "calibrated_mia_auc")):
        assert close(value(evidence, area), 0.5), attack
        assert value(evidence, f"{attack}_distinguishable").value == 0
        assert value(evidence, f"{attack}_auc_band_low").value < 0.5 < value(evidence, f"{attack}_auc_band_high").value


def test_u_lira_knows_what_the_method_leaves(make: Any) -> None:
    remembered = make(lift=3.0, left=1.0, target=1.0)
    assert close(value(remembered, "ulira_auc"), norm.cdf(1 / math.sqrt(2)), 5.0)
    over_forgotten = make(lift=3.0, left=-1.0, target=-1.0)
    assert value(over_forgotten, "ulira_auc").ci_low > 0.6, "shadows forget below nought as well, and that shows"
    assert value(over_forgotten, "calibrated_mia_auc").value < 0.3
    assert value(over_forgotten, "calibrated_mean_z").value < 0
    assert value(over_forgotten, "calibrated_distinguishable").value == 1, "standing out below is standing out"


def test_identity_is_attacked_by_u_lira_as_by_lira(make: Any) -> None:
    evidence = make(lift=2.0, target=2.0)
    identity = replace(evidence, shadows=replace(evidence.shadows, forgot=evidence.shadows.trained))
    assert value(identity, "ulira_auc").value == pytest.approx(value(identity, "lira_auc").value, abs=0.03)


def test_swapping_the_worlds_gives_the_other_side_of_a_half(make: Any) -> None:
    evidence = make(lift=2.0, target=2.0)
    shadows = evidence.shadows
    swapped = replace(evidence, shadows=replace(shadows, unlearned=~shadows.unlearned))
    assert value(swapped, "lira_auc").value == pytest.approx(1 - value(evidence, "lira_auc").value)


def test_the_order_of_shadows_and_references_changes_nothing(make: Any) -> None:
    evidence = make(lift=1.0, left=0.5, target=0.5)
    shadows = evidence.shadows
    turned = replace(
        shadows,
        forgotten=shadows.forgotten[::-1],
        trained=shadows.trained[::-1],
        forgot=shadows.forgot[::-1],
        retrained=shadows.retrained[::-1],
    )
    for name in ("lira_auc", "ulira_auc", "calibrated_mia_auc", "ulira_auc_band_low", "calibrated_auc_band_high"):
        assert value(replace(evidence, shadows=turned), name).value == pytest.approx(value(evidence, name).value)


def test_the_difference_to_gold_is_the_models_minus_golds(make: Any) -> None:
    evidence = make(lift=2.0, target=1.0)
    for name in ("lira_auc", "calibrated_mia_auc"):
        expected = value(evidence, name).value - value(evidence.of_gold, name).value
        assert value(evidence, f"delta_{name}").value == pytest.approx(expected)


def test_one_client_alone_has_a_number_and_a_band_but_no_interval(make: Any) -> None:
    evidence = replace(make(lift=1.0, target=1.0), granularity="client")
    found = value(evidence, "calibrated_mia_auc")
    assert math.isnan(found.ci_low)
    assert "clients" in found.reason
    assert value(evidence, "calibrated_distinguishable").value == 1


def test_the_distance_to_gold_is_measured_in_distances_between_seeds(make: Any, make_state: Any) -> None:
    evidence = make(lift=1.0)
    moved = replace(
        evidence,
        model=replace(evidence.model, state=make_state(0.0, 6.0)),
        gold=replace(evidence.gold, state=make_state(0.0, 0.0)),
    )
    found = value(moved, "retrain_gap_l2_over_seed_gap")
    assert (found.value, found.ci_low, found.ci_high) == (2.0, 1.5, 3.0)


def shadow_rows(evidence: Evidence) -> dict[str, Value]:
    without = replace(evidence, shadows=None)
    names = [name for name in METRICS.names() if not dict(METRICS.get(name).rows(without))]
    rows = {name: found for name in names for name, found in METRICS.get(name).rows(evidence)}
    assert len(rows) > 20
    return rows


def test_nothing_is_made_up_where_there_is_nothing_to_challenge(make: Any) -> None:
    evidence = replace(make(lift=1.0), shadows=Shadows.none("no held-out record"))
    for name, found in shadow_rows(evidence).items():
        assert math.isnan(found.value), name
        assert found.status in ("not_applicable", "undefined"), name
        assert "no held-out record" in found.reason, name
    for kind in CURVES.names():
        assert all(point.series == "population" or kind == "site" for point in CURVES.get(kind).points(evidence))


def test_a_shadow_that_diverged_ends_u_lira_alone(make: Any) -> None:
    evidence = make(lift=1.0)
    lost = replace(evidence, shadows=replace(evidence.shadows, forgot=None, reason="shadow 3 diverged: loss is nan"))
    rows = shadow_rows(lost)
    for name, found in rows.items():
        if name.startswith("ulira"):
            assert math.isnan(found.value)
            assert "shadow 3 diverged" in found.reason
    assert rows["lira_auc"].status == rows["calibrated_mia_auc"].status == "ok"


def test_a_model_without_finite_outputs_has_no_number(make: Any) -> None:
    evidence = make(lift=1.0)
    card = evidence.model.scorecard.assign(loss=math.nan, phi=math.nan)
    rows = shadow_rows(replace(evidence, model=replace(evidence.model, scorecard=card)))
    for name, found in rows.items():
        if name != "retrain_gap_l2_over_seed_gap":
            assert math.isnan(found.value), name
            assert "non-finite" in found.reason, name


@pytest.mark.parametrize("count", [1, 2])
def test_few_references_leave_no_band_and_say_so(make: Any, count: int) -> None:
    evidence = make(lift=1.0, target=1.0)
    few = replace(evidence, shadows=replace(evidence.shadows, retrained=evidence.shadows.retrained[:count]))
    for attack in ("lira", "ulira", "calibrated"):
        found = value(few, f"{attack}_distinguishable")
        assert math.isnan(found.value)
        assert "references" in found.reason or "too few models" in found.reason, found.reason


def test_two_shadows_are_too_few_for_lira_and_it_says_so(make: Any) -> None:
    evidence = make(lift=1.0, target=1.0)
    shadows = evidence.shadows
    two = replace(shadows, forgotten=shadows.forgotten[:2], trained=shadows.trained[:2], forgot=shadows.forgot[:2])
    found = value(replace(evidence, shadows=two), "lira_auc")
    assert math.isnan(found.value)
    assert "2 shadows: 4 are needed" in found.reason
