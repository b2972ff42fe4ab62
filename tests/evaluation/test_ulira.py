"""The likelihood-ratio attack on unlearned models (METRICS 1.4)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from evaluation.attacks.lira import lira
from evaluation.attacks.ulira import ulira
from evaluation.metrics.roc import auc


def worlds(left: float, *, n: int = 1000, shadows: int = 16, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Draw an unlearning that leaves `left` of phi behind: target, shadows, F_s, retrained models, unlearned."""
    rng = np.random.default_rng(seed)
    unlearned, hardness = np.arange(n) < n // 2, rng.normal(0, 3, n)
    forgotten = rng.permuted(np.tile(np.arange(shadows)[:, None] % 2 == 0, (1, n)), axis=0)
    shadow = hardness + left * forgotten + rng.normal(size=(shadows, n))
    return (
        hardness + left * unlearned + rng.normal(size=n),
        shadow,
        forgotten,
        hardness + rng.normal(size=(shadows, n)),
        unlearned,
    )


@pytest.mark.parametrize("seed", range(3))
def test_exact_retraining_leaves_one_half(seed: int) -> None:
    found = ulira(*worlds(0.0, seed=seed)).separation
    assert found.auc.value == pytest.approx(0.5, abs=2 * math.sqrt(1 / 12 * (1 / 500 + 1 / 500)))
    assert found.reading == "no leak shown"


def test_a_known_remainder_gives_the_known_auc() -> None:
    found = ulira(*worlds(1.0, n=4000, shadows=128)).separation.auc
    assert found.value == pytest.approx(norm.cdf(1 / math.sqrt(2)), abs=0.02)  # 0.760; two standard errors are 0.015


def test_what_is_left_behind_is_found() -> None:
    found = ulira(*worlds(1.5)).separation
    assert found.auc.value > 0.75
    assert found.reading == "leaks"


def test_over_forgetting_is_found_as_well_because_the_shadows_over_forget_alike() -> None:
    assert ulira(*worlds(-1.5)).separation.reading == "leaks"


def test_a_target_less_like_the_unlearned_shadows_than_unseen_records_leaks_inverted() -> None:
    target, shadow, forgotten, retrained, unlearned = worlds(1.5)
    assert ulira(target, shadow, forgotten, retrained, ~unlearned).separation.reading == "leaks inverted"


def test_an_unlearning_that_does_nothing_is_lira() -> None:
    target, phi, keep, _, unlearned = worlds(1.0)
    outside = np.stack([phi[~keep[:, i], i] for i in range(phi.shape[1])], axis=1)
    found, plain = ulira(target, phi, keep, outside, unlearned), lira(target, phi, keep, unlearned)
    assert found.scores == pytest.approx(plain.scores)
    assert found.separation.auc == plain.separation.auc


def test_swapping_the_worlds_mirrors_the_auc() -> None:
    target, shadow, _, retrained, unlearned = worlds(1.0)
    everyone = np.ones(shadow.shape, dtype=bool)
    there, back = (ulira(target, a, everyone, b, unlearned) for a, b in ((shadow, retrained), (retrained, shadow)))
    assert back.separation.auc.value == pytest.approx(1 - there.separation.auc.value)


def test_shadows_count_only_for_records_they_forgot() -> None:
    target, shadow, forgotten, retrained, unlearned = worlds(1.0)
    hidden = np.where(forgotten, shadow, np.nan)
    plain = ulira(target, shadow, forgotten, retrained, unlearned)
    assert ulira(target, hidden, forgotten, retrained, unlearned).separation == plain.separation


def test_fitting_shadows_that_did_not_unlearn_would_find_a_leak_that_is_not_there() -> None:
    target, shadow, forgotten, retrained, unlearned = worlds(0.0, n=4000)
    trained_only = shadow + 1.5 * forgotten
    truth = ulira(target, shadow, forgotten, retrained, unlearned)
    wrong = ulira(target, trained_only, forgotten, retrained, unlearned)
    assert np.abs(truth.scores).mean() < 0.8 * np.abs(wrong.scores).mean()


def test_hardness_alone_does_not_pass_for_a_leak() -> None:
    target, shadow, forgotten, retrained, unlearned = worlds(0.0)
    harder = np.where(unlearned, 2.0, 0.0)
    assert auc((target + harder)[unlearned], target[~unlearned]) > 0.6
    moved = ulira(target + harder, shadow + harder, forgotten, retrained + harder, unlearned)
    assert moved.separation.reading == "no leak shown"


def test_clients_are_what_is_resampled() -> None:
    parts = worlds(1.0)
    clients = np.arange(1000) % 5
    found, plain = ulira(*parts, clients=clients), ulira(*parts)
    assert found.separation.auc.value == plain.separation.auc.value
    assert found.separation.auc.ci_low != plain.separation.auc.ci_low
    assert "interval over 5 clients" in found.separation.auc.reason


def test_one_departing_client_has_no_interval_and_is_undecided() -> None:
    found = ulira(*worlds(3.0), clients=np.zeros(1000)).separation
    assert found.auc.value > 0.9
    assert math.isnan(found.auc.ci_low)
    assert found.reading == "undecided"


@pytest.mark.parametrize(
    "which, reason",
    [(0, "non-finite outputs: 1 NaN phi"), (1, "unlearned: NaN phi of model 0"), (3, "retrained: NaN phi of model 0")],
)
def test_a_diverged_model_leaves_no_number_and_is_named(which: int, reason: str) -> None:
    parts = list(worlds(1.0))
    parts[which][..., 5] = np.where(np.arange(parts[which][..., 5].size) == 0, np.nan, parts[which][..., 5])
    parts[2][0, 5] = True
    found = ulira(*parts)
    assert found.separation.auc.status == "undefined"
    assert found.separation.auc.reason.startswith(reason)


def test_the_order_of_records_changes_nothing() -> None:
    target, shadow, forgotten, retrained, unlearned = worlds(1.0, n=200)
    order = np.random.default_rng(3).permutation(200)
    mixed = ulira(target[order], shadow[:, order], forgotten[:, order], retrained[:, order], unlearned[order])
    assert mixed.separation == ulira(target, shadow, forgotten, retrained, unlearned).separation
