"""What the panel says of features: measured, refused, off, not finite, too few; always record by record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from evaluation.catalogue import METRICS
from evaluation.curves import CURVES
from evaluation.evidence import Evidence, ScoredModel
from evaluation.features import TABLE, refused, with_map
from evaluation.metrics.value import Value

NAMES = ("feature_silhouette", "feature_cka_gold", "feature_cka_gold_forget", "feature_cka_gold_retain")


def features(
    n: int = 60, apart: float = 0.0, seed: int = 0, width: int = 8, strata: int = 3, forget: int = 2
) -> pd.DataFrame:
    """Make features of `n` records, every `forget`-th to be forgotten and moved by `apart`."""
    selected = np.arange(n) % forget == 0
    values = np.random.default_rng(seed).normal(size=(n, width)) + apart * selected[:, None]
    told = {"record": [f"r-{i:04d}" for i in range(n)], "site": "a", "split": "holdout"}
    table = pd.DataFrame({**told, "stratum": [str(i // 2 % strata) for i in range(n)], "selected": selected})
    return pd.concat([table, pd.DataFrame(values.astype(np.float32)).add_prefix("f")], axis=1)


@pytest.fixture
def given(make_evidence: Any, make_model: Any) -> Any:
    """Return a maker of evidence from the features of the model and of gold; None: none were measured."""

    def make(model: pd.DataFrame | None, gold: pd.DataFrame | None = None, **changes: Any) -> Evidence:
        def of(table: pd.DataFrame | None, method: str) -> ScoredModel:
            return replace(make_model(method), tables={} if table is None else {TABLE: table})

        return make_evidence(of(model, "ga"), of(gold, "retrain"), **changes)  # type: ignore[no-any-return]

    return make


def value(name: str, evidence: Evidence) -> Value:
    return dict(METRICS.get(name).rows(evidence))[name]


def delta(evidence: Evidence) -> Value:
    return dict(METRICS.get("feature_silhouette").rows(evidence))["delta_feature_silhouette"]


def everything(evidence: Evidence) -> list[Value]:
    return [*(value(name, evidence) for name in NAMES), delta(evidence)]


class TestMissing:
    def test_off_there_is_no_row(self, given: Any) -> None:
        assert not [row for name in NAMES for row in METRICS.get(name).rows(given(None))]

    def test_a_model_without_features_beside_a_gold_that_has_some_is_undefined(self, given: Any) -> None:
        for found in everything(given(None, features())):
            assert (found.status, np.isnan(found.value)) == ("undefined", True)

    def test_a_refusal_is_undefined_and_says_whose(self, given: Any) -> None:
        for found in everything(given(refused(["site-b", "site-a"]), refused(["site-b", "site-a"]))):
            assert (found.status, found.reason) == ("undefined", "site site-a, site-b refuses features")

    def test_features_that_are_not_finite_are_undefined_and_counted(self, given: Any) -> None:
        broken = features()
        broken.loc[[3, 7], "f2"] = np.inf, np.nan
        for found in everything(given(broken, features())):
            assert (found.status, found.reason) == ("undefined", "non-finite features of 2 of 60 records")
        told = value("feature_cka_gold", given(features(), broken)).reason
        assert told == "gold: non-finite features of 2 of 60 records"

    def test_without_gold_there_is_a_silhouette_and_nothing_to_compare_it_with(self, given: Any) -> None:
        alone = replace(given(features()), gold=None)
        assert value("feature_silhouette", alone).status == "ok"
        assert delta(alone).reason == value("feature_cka_gold", alone).reason == "needs gold"

    def test_features_of_different_records_are_not_compared(self, given: Any) -> None:
        evidence = given(features(60), features(62))
        assert "different records" in value("feature_cka_gold", evidence).reason
        assert "different records" in delta(evidence).reason

    @pytest.mark.parametrize("kept", [0, 1])
    def test_fewer_than_two_records_a_side(self, given: Any, kept: int) -> None:
        table = features()
        few = table[~table["selected"] | (table["selected"].cumsum() <= kept) & table["selected"]]
        found = value("feature_silhouette", given(few, few))
        assert (found.status, found.reason) == (
            "undefined",
            f"features of {kept} forget and 30 retain records: at least 2 each are needed",
        )
        aligned = value("feature_cka_gold_forget", given(few, few))
        assert (aligned.status, aligned.n) == ("undefined", kept)

    def test_a_site_without_a_held_out_record_gives_an_empty_table(self, given: Any) -> None:
        empty = pd.DataFrame({"record": [], "site": [], "split": [], "stratum": [], "selected": []})
        assert {found.status for found in everything(given(with_map(empty), with_map(empty)))} == {"undefined"}

    def test_no_class_on_both_sides(self, given: Any) -> None:
        table = features().assign(stratum=lambda t: t["selected"].map({True: "0", False: "1"}))
        assert "no stratum" in value("feature_silhouette", given(table)).reason
        assert value("feature_silhouette", given(table, granularity="class")).status == "ok"

    def test_features_that_do_not_vary(self, given: Any) -> None:
        dead = features().assign(**{f"f{i}": np.float32(0) for i in range(8)})
        assert {found.reason for found in everything(given(dead, dead))} == {"the features do not vary"}


class TestNumbers:
    def test_gold_is_at_one_and_at_no_distance_from_itself(self, given: Any) -> None:
        found = everything(given(features(), features()))
        assert [one.value for one in found[1:]] == [1.0, 1.0, 1.0, 0.0]
        assert [one.n for one in found] == [30, 60, 30, 30, 30]

    def test_forgotten_records_that_stand_apart(self, given: Any) -> None:
        apart, mixed = features(apart=20.0), features(n=600, width=3)
        assert value("feature_silhouette", given(apart)).value > 0.5
        assert abs(value("feature_silhouette", given(mixed)).value) < 0.03
        assert delta(given(apart, features())).value == pytest.approx(
            value("feature_silhouette", given(apart)).value - value("feature_silhouette", given(features())).value
        )

    def test_intervals_hold_the_value(self, given: Any) -> None:
        for found in (value("feature_silhouette", given(features())), delta(given(features(), features(seed=1)))):
            assert found.ci_low < found.value < found.ci_high

    def test_the_order_of_records_changes_nothing(self, given: Any) -> None:
        model, gold = features(), features(seed=1, apart=1.0)
        shuffled = given(model.sample(frac=1.0, random_state=1), gold.sample(frac=1.0, random_state=2))
        assert everything(shuffled) == everything(given(model, gold))

    def test_the_scale_of_a_feature_does_not_weigh_in_a_silhouette(self, given: Any) -> None:
        scaled = features(apart=1.0)
        scaled["f3"] *= 1000
        before, after = (value("feature_silhouette", given(t)).value for t in (features(apart=1.0), scaled))
        assert after == pytest.approx(before, abs=1e-5)

    def test_a_class_effect_is_not_taken_for_forgetting(self, given: Any) -> None:
        table = features(n=240).assign(stratum=lambda t: np.where(np.arange(len(t)) % 8 < 4, "0", "1"))
        lopsided = table[~(table["selected"] & (table["stratum"] == "1") & (np.arange(240) % 16 != 4))].copy()
        for name in (f"f{i}" for i in range(8)):
            lopsided[name] += np.where(lopsided["stratum"] == "1", 30.0, 0.0)
        assert abs(value("feature_silhouette", given(lopsided)).value) < 0.1
        assert value("feature_silhouette", given(lopsided, granularity="class")).value > 0.3

    def test_few_records_are_underpowered(self, given: Any) -> None:
        few = value("feature_silhouette", given(features(n=12, strata=1)))
        assert few.status == "underpowered"
        assert "6 records on the smaller side" in few.reason
        aligned = value("feature_cka_gold_forget", given(features(12, width=200), features(12, seed=1, width=200)))
        assert (aligned.status, aligned.value > 0.5) == ("underpowered", True)
        assert "paired at random" in aligned.reason

    def test_records_of_a_class_that_nobody_retains_are_left_out_and_counted(self, given: Any) -> None:
        table = features()
        table.loc[table["selected"] & (table.index < 8), "stratum"] = "9"
        found = value("feature_silhouette", given(table))
        assert found.n == 26
        assert "4 forget records" in found.reason


def test_the_map_is_a_curve_of_both_sides(given: Any) -> None:
    table = with_map(features(n=20))
    points = list(CURVES.get("tsne").points(given(table)))
    assert {(p.series, p.label) for p in points} == {(s, c) for s in ("forget", "retain") for c in "012"}
    assert [p.x for p in points] == table["map_x"].tolist()
    assert [p.y for p in points] == table["map_y"].tolist()
    assert list(CURVES.get("tsne").points(given(None))) == []
    assert list(CURVES.get("tsne").points(given(refused(["a"])))) == []
