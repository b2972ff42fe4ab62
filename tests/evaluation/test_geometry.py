"""Silhouettes and alignment of features: what they must be where the answer is known."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import ortho_group
from sklearn.metrics import silhouette_samples

from evaluation.metrics.geometry import linear_cka, silhouettes

rng = np.random.default_rng(0)
FORGET = np.arange(60) % 3 == 0
ONE = np.full(60, "")


class TestSilhouettes:
    def test_within_a_stratum_they_are_scikit_learns(self) -> None:
        x, strata = rng.normal(size=(60, 5)), np.array([str(i % 2) for i in range(60)])
        found = silhouettes(x, FORGET, strata)
        for stratum in "01":
            there = strata == stratum
            expected = silhouette_samples(x[there], FORGET[there])[FORGET[there]]
            assert found[there & FORGET] == pytest.approx(expected)
        assert np.isnan(found[~FORGET]).all()

    def test_two_tight_blobs_are_near_one_and_swapped_halves_below_nought(self) -> None:
        x = 0.01 * rng.normal(size=(60, 4)) + np.where(FORGET, 1.0, -1.0)[:, None]
        assert np.nanmean(silhouettes(x, FORGET, ONE)) > 0.98
        apart = np.where(np.arange(60) < 30, 1.0, -1.0)[:, None] + 0.01 * rng.normal(size=(60, 4))
        alone = np.arange(60) == 59
        few = (np.arange(60) < 10) | alone
        assert silhouettes(apart, few, ONE)[59] < -0.2

    def test_the_same_distribution_on_both_sides_is_near_nought(self) -> None:
        x = rng.normal(size=(400, 3))
        assert abs(np.nanmean(silhouettes(x, np.arange(400) % 2 == 0, np.full(400, "")))) < 0.02

    def test_records_at_one_place_give_nought(self) -> None:
        assert silhouettes(np.full((60, 300), 0.1), FORGET, ONE)[FORGET].tolist() == [0.0] * 20

    def test_strata_are_never_compared(self) -> None:
        strata = np.where(np.arange(60) < 30, "a", "b")
        x = rng.normal(size=(60, 3)) + np.where(strata == "a", 0.0, 100.0)[:, None]
        moved = x + np.where(strata == "a", 0.0, 1e4)[:, None]
        assert silhouettes(moved, FORGET, strata)[FORGET] == pytest.approx(silhouettes(x, FORGET, strata)[FORGET])

    def test_a_stratum_with_one_record_on_a_side_has_none(self) -> None:
        strata = np.array(["a"] * 4 + ["b"] * 4)
        forget = np.array([True, False, False, False, True, True, False, False])
        found = silhouettes(rng.normal(size=(8, 2)), forget, strata)
        assert np.flatnonzero(~np.isnan(found)).tolist() == [4, 5]


class TestLinearCka:
    X = rng.normal(size=(40, 12)) * np.arange(1, 13)
    Y = X[:, :5] + rng.normal(size=(40, 5))

    def test_equal_features_are_exactly_one(self) -> None:
        assert linear_cka(self.X, self.X.copy())[0] == 1.0

    @pytest.mark.parametrize("wide", [0, 100])
    def test_rotation_scale_and_offset_change_nothing(self, wide: int) -> None:
        x = np.pad(self.X, ((0, 0), (0, wide)))
        turned = 7.0 * x @ ortho_group.rvs(x.shape[1], random_state=1) + 3.0
        assert linear_cka(x, turned)[0] == pytest.approx(1.0)
        assert linear_cka(turned, self.Y) == pytest.approx(linear_cka(x, self.Y))

    def test_a_scaling_of_single_features_is_not_ignored(self) -> None:
        assert linear_cka(self.X, self.X * np.linspace(0.0, 9.0, 12))[0] < 0.99

    @pytest.mark.parametrize("wide", [0, 100])
    def test_it_is_the_alignment_of_centred_gram_matrices(self, wide: int) -> None:
        x, centring = np.pad(self.X, ((0, 0), (0, wide))), np.eye(40) - 1 / 40
        k, m = (centring @ f @ f.T @ centring for f in (x, self.Y))
        expected = (k * m).sum() / np.sqrt((k * k).sum() * (m * m).sum())
        assert linear_cka(x, self.Y)[0] == pytest.approx(expected)
        assert linear_cka(self.Y, x) == pytest.approx(linear_cka(x, self.Y))

    def test_chance_is_the_mean_over_all_pairings(self) -> None:
        x, y = self.X[:6], self.Y[:6]
        found = [linear_cka(x, y[list(order)])[0] for order in permutations(range(6))]
        assert linear_cka(x, y)[1] == pytest.approx(np.mean(found))

    def test_unrelated_features_of_few_records_look_aligned_and_chance_says_so(self) -> None:
        alignment, chance = linear_cka(rng.normal(size=(10, 512)), rng.normal(size=(10, 512)))
        assert alignment > 0.9
        assert chance == pytest.approx(alignment, abs=0.02)

    def test_orthogonal_features_are_nought(self) -> None:
        basis = ortho_group.rvs(8, random_state=2)
        basis[:, 0] = 1.0
        basis = np.linalg.qr(basis)[0]
        assert linear_cka(basis[:, 1:4], basis[:, 4:8])[0] == pytest.approx(0.0, abs=1e-12)

    def test_features_that_do_not_vary_have_none(self) -> None:
        assert np.isnan(linear_cka(self.X, np.full((40, 3), 0.1))).all()
        assert np.isnan(linear_cka(np.zeros((40, 0)), self.X)).all()

    def test_huge_and_tiny_features_neither_overflow_nor_vanish(self) -> None:
        assert linear_cka(self.X * 1e200, self.Y * 1e-200) == pytest.approx(linear_cka(self.X, self.Y))
