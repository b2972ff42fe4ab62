"""The likelihood-ratio attack on shadows (METRICS 1.3)."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy.stats import norm, spearmanr

from evaluation.attacks.lira import fit_world, lira, log_ratio, offline_z, tail_probability
from evaluation.metrics.roc import auc

IN, OUT = np.array([[2.0], [3.0], [4.0]]), np.array([[-1.0], [0.0], [1.0]])


def shadows(
    distance: float, *, models: int = 256, n: int = 1000, spread: float = 3.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw phi of a target and of shadows around examples of differing hardness: target, shadows, keep, members."""
    rng = np.random.default_rng(seed)
    keep = rng.permuted(np.tile(np.arange(models)[:, None] % 2 == 0, (1, n)), axis=0)
    members, hardness = np.arange(n) % 2 == 0, rng.normal(0, spread, n)
    phi = hardness + distance * keep + rng.normal(size=(models, n))
    return hardness + distance * members + rng.normal(size=n), phi, keep, members


def test_the_printed_example_with_n_minus_one_in_the_denominator() -> None:
    assert log_ratio([2.0], fit_world(IN), fit_world(OUT)) == pytest.approx([1.5])


def test_the_printed_example_with_n_in_the_denominator() -> None:
    inside, outside = (dataclasses.replace(fit_world(phi), sd=phi.std(axis=0)) for phi in (IN, OUT))
    assert log_ratio([2.0], inside, outside) == pytest.approx([2.25])


def test_the_offline_score_is_one_sided() -> None:
    z = offline_z(
        [
            2.0,
        ],
        fit_world(OUT),
    )
    assert z == pytest.approx([2.0])
    assert tail_probability(z) == pytest.approx([0.97725], abs=1e-5)
    assert offline_z([-2.0], fit_world(OUT))[0] < z[0]


@pytest.mark.parametrize("distance, area", [(1.0, 0.760), (2.0, 0.921), (0.0, 0.5)])
def test_a_known_distance_of_the_worlds_gives_the_known_auc(distance: float, area: float) -> None:
    found = lira(*shadows(distance)).separation.auc
    q1, q2 = area / (2 - area) - area**2, 2 * area**2 / (1 + area) - area**2  # Hanley and McNeil 1982
    se = math.sqrt(area * (1 - area) + 499 * (q1 + q2)) / 500
    assert norm.cdf(distance / math.sqrt(2)) == pytest.approx(area, abs=1e-3)
    assert found.value == pytest.approx(area, abs=2 * se)


def test_offline_comes_near_the_known_auc_too() -> None:
    assert lira(*shadows(1.0), online=False).separation.auc.value == pytest.approx(0.760, abs=0.04)


def test_eight_shadows_see_through_hardness_that_blinds_a_global_threshold() -> None:
    target, phi, keep, members = shadows(1.0, models=8, spread=10.0)
    assert lira(target, phi, keep, members).separation.auc.value > 0.65
    assert lira(target, phi, keep, members).separation.reading == "leaks"
    assert auc(target[members], target[~members]) < 0.58


def test_noise_is_pooled_from_residuals_not_from_the_spread_between_examples() -> None:
    world = fit_world(shadows(0.0, models=4, spread=10.0)[1], location="mean")
    assert world.pooled_sd == pytest.approx(1.0, abs=0.05)
    assert world.sd == pytest.approx(np.full(1000, world.pooled_sd))


@pytest.mark.parametrize("models, own", [(4, 0.0), (7, 0.0), (8, 7 / 15), (31, 30 / 38), (32, 1.0)])
def test_an_examples_own_variance_counts_more_with_more_shadows(models: int, own: float) -> None:
    phi = np.random.default_rng(0).normal(0, [1.0, 5.0], (models, 2))
    world = fit_world(phi, location="mean")
    expected = own * phi.var(axis=0, ddof=1) + (1 - own) * world.pooled_sd**2
    assert world.sd**2 == pytest.approx(expected)


def test_pooled_variance_is_the_mean_of_the_examples_own_ones() -> None:
    phi = np.random.default_rng(0).normal(0, [1.0, 5.0, 0.1], (40, 3))
    world = fit_world(phi)
    assert world.pooled_sd**2 == pytest.approx((world.sd**2).mean(), rel=1e-9)


def test_without_shrinkage_up_to_31_models_share_one_variance() -> None:
    phi = np.random.default_rng(0).normal(0, [1.0, 5.0], (31, 2))
    assert np.unique(fit_world(phi, shrink=False).sd).size == 1


def test_identical_shadows_do_not_make_an_infinite_ratio() -> None:
    phi = np.random.default_rng(0).normal(0, 1.0, (40, 50))
    phi[:, 0] = 3.0
    world = fit_world(phi)
    assert world.sd[0] == pytest.approx(0.01 * world.pooled_sd)
    assert fit_world(np.zeros((4, 5))).sd == pytest.approx(np.full(5, 1e-3))
    assert np.isfinite(log_ratio(np.full(50, 50.0), world, fit_world(phi + 1))).all()


def test_examples_that_fewer_than_two_shadows_know_are_dropped_and_counted() -> None:
    target, phi, keep, members = shadows(1.0, models=8, n=100)
    keep[:, :3], keep[:, 3], keep[0, 3] = True, False, True  # three never out, one only once in
    found = lira(target, phi, keep, members)
    assert found.dropped == 4
    assert np.flatnonzero(np.isnan(found.scores)).tolist() == [0, 1, 2, 3]
    assert "4 of 100 records dropped" in found.separation.auc.reason
    assert lira(target, phi, keep, members, online=False).dropped == 3


def test_what_the_dropped_examples_shadows_say_does_not_matter() -> None:
    target, phi, keep, members = shadows(1.0, models=8, n=100)
    keep[:, 0] = False
    keep[0, 0] = True
    changed = phi.copy()
    changed[0, 0] = 40.0
    assert lira(target, phi, keep, members).separation == lira(target, changed, keep, members).separation


def reference_ratio(phi: np.ndarray, inside: np.ndarray, outside: np.ndarray, location: str) -> np.ndarray:
    """Score as ``compute_score_lira(fix_variance=True)`` of TensorFlow Privacy's ``advanced_mia.py`` does."""
    centre = np.median if location == "median" else np.mean
    logs = []
    for world in (inside, outside):
        mu = centre(world, axis=0)
        logs.append(norm.logpdf(phi, mu, np.std(np.concatenate(list((world - mu).T))) + 1e-30))
    return logs[0] - logs[1]


def test_it_agrees_with_the_published_code_up_to_the_variances_denominator() -> None:
    rng = np.random.default_rng(0)
    phi, inside, outside = rng.normal(size=30), rng.normal(1, 1.0, (4, 30)), rng.normal(0, 2.0, (4, 30))
    worlds = [fit_world(world, location="mean") for world in (inside, outside)]
    logs = math.log(worlds[1].pooled_sd / worlds[0].pooled_sd)
    published = reference_ratio(phi, inside, outside, "mean")
    assert log_ratio(phi, *worlds) == pytest.approx(logs + (published - logs) * 3 / 4)


def test_it_orders_examples_as_the_published_code_with_medians() -> None:
    target, phi, keep, members = shadows(1.0, models=14, n=200)
    inside = np.stack([phi[keep[:, i], i] for i in range(200)], axis=1)
    outside = np.stack([phi[~keep[:, i], i] for i in range(200)], axis=1)
    published = reference_ratio(target, inside, outside, "median")
    assert spearmanr(lira(target, phi, keep, members).scores, published).statistic > 0.999


def test_huge_logits_are_clipped_and_infinite_ones_too() -> None:
    target, phi, keep, members = shadows(1.0, models=8, n=100)
    phi[0, :10], phi[1, 10:20], target[:5] = 1e4, -math.inf, math.inf
    found = lira(target, phi, keep, members)
    assert np.isfinite(found.scores).all()
    clipped = lira(np.clip(target, -50, 50), np.clip(phi, -50, 50), keep, members)
    assert found.separation == clipped.separation


@pytest.mark.parametrize("broken", ["target", "shadow"])
def test_a_diverged_model_leaves_no_number(broken: str) -> None:
    target, phi, keep, members = shadows(1.0, models=8, n=100)
    (target if broken == "target" else phi[3])[7] = math.nan
    found = lira(target, phi, keep, members)
    assert found.separation.auc.status == "undefined"
    assert found.separation.auc.reason == (
        "shadows: NaN phi of model 3 of 8" if broken == "shadow" else "non-finite outputs: 1 NaN phi"
    )
    assert np.isnan(found.scores).all()


def test_a_task_without_phi_has_no_such_attack() -> None:
    none = np.full((8, 20), math.nan)
    found = lira(none[0], none, np.tile(np.arange(8)[:, None] < 4, (1, 20)), np.arange(20) < 10)
    assert {value.status for value in vars(found.separation).values()} == {"not_applicable"}
    alive = np.zeros((8, 20))
    alone = lira(none[0], alive, np.tile(np.arange(8)[:, None] < 4, (1, 20)), np.arange(20) < 10)
    assert alone.separation.auc.status == "undefined"


def test_offline_needs_nothing_of_the_shadows_that_saw_an_example() -> None:
    target, phi, keep, members = shadows(1.0, models=8, n=100)
    hidden = np.where(keep, np.nan, phi)
    plain = lira(target, phi, keep, members, online=False)
    assert lira(target, hidden, keep, members, online=False).separation == plain.separation
    with pytest.raises(ValueError, match="model 0"):
        fit_world(np.full((2, 1), np.nan))


def test_ratios_are_averaged_over_the_queries() -> None:
    target, phi, keep, members = shadows(1.0, models=8, n=100)
    doubled = lira(np.stack([target, target]), np.stack([phi, phi], axis=1), keep, members)
    assert doubled.scores == pytest.approx(lira(target, phi, keep, members).scores)
    mirrored = shadows(1.0, models=8, n=100, seed=1)
    both = log_ratio(
        np.stack([target, mirrored[0]]), *(fit_world(np.stack([phi, phi], axis=1), k) for k in (keep, ~keep))
    )
    single = [log_ratio(t, fit_world(phi, keep), fit_world(phi, ~keep)) for t in (target, mirrored[0])]
    assert both == pytest.approx(np.mean(single, axis=0))


def test_the_order_of_shadows_and_of_examples_changes_nothing() -> None:
    target, phi, keep, members = shadows(1.0, models=16, n=100)
    rng = np.random.default_rng(5)
    rows, columns = rng.permutation(16), rng.permutation(100)
    straight = lira(target, phi, keep, members)
    mixed = lira(target[columns], phi[rows][:, columns], keep[rows][:, columns], members[columns])
    assert mixed.separation == straight.separation
    assert (mixed.scores == straight.scores[columns]).all()


def test_swapping_the_worlds_mirrors_the_scores() -> None:
    target, phi, keep, members = shadows(1.0, models=8, n=100)
    assert lira(target, phi, ~keep, members).scores == pytest.approx(-lira(target, phi, keep, members).scores)


def test_a_single_record_and_no_record_are_undefined_not_errors() -> None:
    for n in (0, 1):
        found = lira(np.zeros(n), np.zeros((8, n)), np.tile(np.arange(8)[:, None] < 4, (1, n)), np.ones(n, dtype=bool))
        assert found.separation.auc.status == "undefined"
