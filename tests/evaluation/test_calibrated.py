"""The attack calibrated by retrained models, and gold's own band (METRICS 1.5)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from evaluation.attacks.calibrated import Band, calibrated_attack, gold_bands, two_sided_attack
from evaluation.metrics.roc import auc
from evaluation.metrics.value import Value


def models(
    left: float = 0.0, *, references: int = 8, n: int = 1000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw target phi, reference phi and who is forgotten; the target keeps `left` of phi on forget records."""
    rng = np.random.default_rng(seed)
    forget, hardness = np.arange(n) < n // 2, rng.normal(0, 4, n)
    target = hardness + left * forget + rng.normal(size=n)
    return target, hardness + rng.normal(size=(references, n)), forget


def test_a_retrained_target_is_at_one_half() -> None:
    found = calibrated_attack(*models())
    assert found.attack.separation.auc.value == pytest.approx(0.5, abs=0.04)
    assert found.mean_z.value == pytest.approx(0.0, abs=0.1)


def test_a_known_remainder_gives_the_known_auc() -> None:
    target, references, forget = models(1.0, n=20_000)
    found = calibrated_attack(target, references, forget, location="mean").attack.separation.auc
    known = norm.cdf(1 / math.sqrt(2 * (1 + 1 / 8)))
    assert known == pytest.approx(0.747, abs=1e-3)
    assert found.value == pytest.approx(known, abs=0.01)


def test_mean_z_is_signed_and_in_standard_deviations_of_the_references() -> None:
    for left in (2.0, -2.0):
        found = calibrated_attack(*models(left), location="mean").mean_z
        assert found.value == pytest.approx(left, abs=0.15)
        assert found.ci_low < found.value < found.ci_high
        assert found.n == 500


def test_hard_records_do_not_pass_for_forgotten_ones() -> None:
    target, references, forget = models()
    assert auc((target - 3 * forget)[forget], target[~forget]) < 0.4
    found = calibrated_attack(target - 3 * forget, references - 3 * forget, forget)
    assert found.attack.separation.auc.value == pytest.approx(0.5, abs=0.04)


def test_up_to_31_references_share_one_standard_deviation_and_32_do_not() -> None:
    for references, same in ((31, True), (32, False)):
        target, phi, forget = models(references=references, n=50)
        shift = (
            calibrated_attack(target + 1, phi, forget).attack.scores
            - calibrated_attack(target, phi, forget).attack.scores
        )
        assert (np.ptp(shift) < 1e-9) == same


def test_the_order_of_references_and_of_records_changes_nothing() -> None:
    target, references, forget = models(0.5, n=300)
    rng = np.random.default_rng(1)
    rows, columns = rng.permutation(8), rng.permutation(300)
    straight = calibrated_attack(target, references, forget)
    assert (calibrated_attack(target, references[rows], forget).attack.scores == straight.attack.scores).all()
    mixed = calibrated_attack(target[columns], references[:, columns], forget[columns])
    assert (mixed.attack.separation, mixed.mean_z) == (straight.attack.separation, straight.mean_z)


def test_golds_band_is_made_of_every_reference_against_the_others() -> None:
    _, references, forget = models(n=200)
    bands = gold_bands(references, forget)
    for one, area in enumerate(bands.auc.values):
        others = np.delete(references, one, axis=0)
        single = calibrated_attack(references[one], others, forget)
        assert area == single.attack.separation.auc.value
        assert bands.mean_z.values[one] == pytest.approx(single.mean_z.value)
    assert bands.auc.mean == pytest.approx(np.mean(bands.auc.values))
    assert bands.auc.std == pytest.approx(np.std(bands.auc.values, ddof=1))
    assert bands.auc.low < bands.auc.mean < bands.auc.high


def test_the_band_is_the_prediction_interval_of_one_more_retrained_model() -> None:
    band = gold_bands(*models(n=200)[1:]).auc
    assert band.high - band.mean == pytest.approx(2.3646 * band.std * math.sqrt(9 / 8), rel=1e-4)


def test_retrained_models_are_inside_golds_band_nineteen_times_in_twenty() -> None:
    inside = 0
    for seed in range(60):
        target, references, forget = models(n=200, seed=seed)
        found = calibrated_attack(target, references, forget).attack.separation.auc
        inside += gold_bands(references, forget).auc.verdict(found) == "not distinguishable from gold"
    assert 52 <= inside <= 59


@pytest.mark.parametrize("left", [1.0, -1.0])
def test_memory_and_over_forgetting_are_both_outside_the_band(left: float) -> None:
    target, references, forget = models(left)
    found, bands = calibrated_attack(target, references, forget), gold_bands(references, forget)
    assert bands.auc.verdict(found.attack.separation.auc) == "distinguishable from gold"
    assert bands.mean_z.verdict(found.mean_z) == "distinguishable from gold"


def test_an_auc_whose_interval_excludes_one_half_is_no_leak_where_retraining_varies_as_much() -> None:
    rng = np.random.default_rng(0)
    target, references, forget = models(0.3)
    moods = rng.normal(0, 0.6, 8)[:, None] * forget  # every retraining shifts the forget records as a whole
    found = calibrated_attack(target, references + moods, forget).attack.separation
    assert found.reading == "leaks"
    assert gold_bands(references + moods, forget).auc.verdict(found.auc) == "not distinguishable from gold"


def test_the_edge_of_the_band_is_inside() -> None:
    band = Band((0.4, 0.5, 0.6), 0.5, 0.1, 0.25, 0.75)
    assert band.verdict(Value(0.75)) == "not distinguishable from gold"
    assert band.verdict(Value(0.7500001)) == "distinguishable from gold"
    assert band.verdict(Value(0.9, status="underpowered")) == "undecided"


@pytest.mark.parametrize("references", [0, 1, 2])
def test_too_few_references_have_no_band_and_no_verdict(references: int) -> None:
    band = gold_bands(np.zeros((references, 20)), np.arange(20) < 10).auc
    assert math.isnan(band.low)
    assert band.reason == f"{references} references: 3 are needed"
    assert band.verdict(Value(0.9)) == "undecided"


def test_the_attack_itself_needs_two_references() -> None:
    target, references, forget = models(n=50)
    assert calibrated_attack(target, references[:2], forget).mean_z.status == "ok"
    found = calibrated_attack(target, references[:1], forget)
    assert (found.mean_z.status, found.attack.separation.auc.status) == ("undefined", "undefined")


def test_a_class_without_held_out_records_is_not_applicable_and_an_empty_request_undefined() -> None:
    target, references, _ = models(n=50)
    without = calibrated_attack(target, references, np.ones(50, dtype=bool))
    assert {value.status for value in vars(without.attack.separation).values()} == {"not_applicable"}
    empty = calibrated_attack(target, references, np.zeros(50, dtype=bool))
    assert (empty.mean_z.status, empty.mean_z.reason) == ("undefined", "empty forget set")
    assert gold_bands(references, np.ones(50, dtype=bool)).auc.reason == "no never-seen records to compare with"


def test_fewer_than_ten_forget_records_are_underpowered() -> None:
    target, references, _ = models(n=200)
    found = calibrated_attack(target, references, np.arange(200) < 9).attack.separation
    assert found.auc.status == "underpowered"
    assert calibrated_attack(target, references, np.arange(200) > 110).attack.separation.tpr_at_1pct_fpr.status == "ok"
    assert (
        calibrated_attack(target, references, np.arange(200) > 98).attack.separation.tpr_at_1pct_fpr.status
        == "underpowered"
    )


def test_a_diverged_target_or_reference_leaves_no_number() -> None:
    for broken, reason in ((0, "non-finite outputs: 1 NaN phi"), (1, "references: NaN phi of model 0 of 8")):
        parts = list(models(n=50))
        parts[broken][..., 3] = math.nan
        found = calibrated_attack(*parts)
        assert (found.mean_z.status, found.mean_z.reason) == ("undefined", reason)
        assert math.isnan(found.attack.separation.auc.value)


def test_the_two_sided_ratio_is_a_second_number_not_the_same() -> None:
    target, references, forget = models(2.0)
    trained = references + 2.0 * forget + np.random.default_rng(1).normal(0, 0.2, references.shape)
    two = two_sided_attack(target, trained, references, forget)
    one = calibrated_attack(target, references, forget).attack
    assert two.separation.auc.value != one.separation.auc.value
    assert two.separation.reading == "leaks"
    swapped = two_sided_attack(target, references, trained, forget)
    assert swapped.scores == pytest.approx(-two.scores)
    assert two_sided_attack(target, trained[:1], references, forget).separation.auc.status == "undefined"


def test_the_two_sided_ratio_shares_one_variance_a_side_as_well() -> None:
    target, references, forget = models(n=50)
    trained = references[:, ::-1]
    ratio = two_sided_attack(target, trained, references, forget).scores
    bent = [two_sided_attack(target + step, trained, references, forget).scores for step in (1.0, 2.0)]
    curvature = bent[1] - 2 * bent[0] + ratio  # of the logarithms of two normal densities: sd_out^-2 - sd_in^-2
    assert curvature == pytest.approx(np.zeros(50), abs=1e-9)
