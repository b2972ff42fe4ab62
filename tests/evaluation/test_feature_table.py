"""The table of features: who refused, which records are on the map, and a map that is the same every time."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from evaluation.features import MAPPED, refused, refusing, standardised, tsne, values_of, with_map


def table(forget: int, retain: int, width: int = 6, seed: int = 0) -> pd.DataFrame:
    n = forget + retain
    selected = np.arange(n) < forget
    values = np.random.default_rng(seed).normal(size=(n, width)) + 8.0 * selected[:, None]
    told = {"record": [f"r-{i:04d}" for i in range(n)], "site": "a", "split": "holdout", "stratum": "0"}
    features = pd.DataFrame(values.astype(np.float32), columns=[f"f{i}" for i in range(width)])
    return pd.concat([pd.DataFrame({**told, "selected": selected}), features], axis=1)


def test_a_refusal_names_the_sites_and_has_no_features() -> None:
    found = refused(["b", "a"])
    assert refusing(found) == ["a", "b"]
    assert values_of(found).shape == (2, 0)
    assert refusing(table(2, 2)) == []


def test_the_features_are_read_in_order_and_nothing_else_is() -> None:
    wide = with_map(table(2, 2, width=12).assign(foo=1.0, f=2.0))
    assert values_of(wide).tolist() == wide[[f"f{i}" for i in range(12)]].to_numpy(np.float64).tolist()


def test_standardised_columns_and_none_that_does_not_vary() -> None:
    x = np.random.default_rng(0).normal(size=(50, 3)) * [1e-3, 1.0, 1e30] + 5.0
    found = standardised(np.insert(x, 1, 0.1, axis=1))
    assert found.shape == (50, 3)
    assert found.mean(axis=0) == pytest.approx(0.0, abs=1e-9)
    assert found.std(axis=0) == pytest.approx(1.0)
    assert standardised(np.zeros((0, 3))).shape == (0, 0)


class TestMap:
    def test_two_groups_come_apart(self) -> None:
        places = tsne(values_of(table(30, 30)))
        one, two = places[:30], places[30:]
        assert np.linalg.norm(one.mean(0) - two.mean(0)) > 3 * max(*one.std(axis=0), *two.std(axis=0))

    def test_it_is_the_same_every_time_and_whatever_the_order_of_records(self) -> None:
        given = table(20, 30)
        found = with_map(given)
        pd.testing.assert_frame_equal(with_map(given.sample(frac=1.0, random_state=1)), found)
        assert found["record"].is_monotonic_increasing
        assert found["map_x"].notna().all()

    @pytest.mark.parametrize(("forget", "retain", "mapped"), [(20, 500, 20), (300, 300, 200), (500, 30, 370)])
    def test_of_many_records_as_many_are_drawn_half_of_them_forgotten(
        self, forget: int, retain: int, mapped: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("evaluation.features.tsne", lambda features: np.zeros((len(features), 2)))
        found = with_map(table(forget, retain))
        placed = found[found["map_x"].notna()]
        assert (len(placed), int(placed["selected"].sum())) == (MAPPED, mapped)

    @pytest.mark.parametrize("records", [0, 3])
    def test_too_few_records_have_none(self, records: int) -> None:
        assert with_map(table(records, 0))["map_x"].isna().all()

    def test_features_that_are_not_finite_or_do_not_vary_have_none(self) -> None:
        x = values_of(table(10, 10))
        assert np.isnan(tsne(np.where(x == x.max(), np.nan, x))).all()
        assert np.isnan(tsne(np.ones((20, 5)))).all()

    def test_four_records_are_enough_and_duplicates_do_no_harm(self) -> None:
        assert np.isfinite(tsne(values_of(table(2, 2)))).all()
        assert np.isfinite(tsne(np.repeat(np.eye(3), 10, axis=0))).all()
