"""The panel: every metric of every model, with a reason for every gap."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest

from evaluation.catalogue import METRICS, declared
from evaluation.curves import CURVES, Curve, curves_of
from evaluation.evidence import DIVERGENCES
from evaluation.metrics.base import Metric
from evaluation.submission import Submission
from partitions.errors import BadInput, RunFailed

OPTIONS: dict[str, Any] = {
    "granularity": "client",
    "metric_name": "accuracy",
    "higher_is_better": True,
    "has_reference": False,
}


def rows_of(model: Any, gold: Any, compared: Any, **changes: Any) -> list[dict[str, Any]]:
    options = {"other_gold": None} | OPTIONS | changes
    return Submission(labels={}, model=model, gold=gold, comparison=compared, **options).rows()


def panel(*args: Any, **changes: Any) -> dict[str, Mapping[str, Any]]:
    return {row["metric"]: row for row in rows_of(*args, **changes)}


@pytest.fixture
def gold(make_model, make_state, make_scorecard):
    return make_model("retrain", state=make_state(0.0, 0.0), scorecard=make_scorecard(seed=9))


def test_original_gold_and_methods_have_the_same_metrics(make_model, make_comparison, gold) -> None:
    names = [
        list(panel(make_model("original", "trained", cost=None), gold, make_comparison(gold.scorecard))),
        list(panel(gold, gold, None)),
        list(panel(make_model(), gold, make_comparison(gold.scorecard))),
        list(panel(make_model(status="diverged", scorecard=None, state=None), gold, None)),
    ]
    assert names[0] == names[1] == names[2] == names[3]
    assert names[0] == sorted(set(names[0]))


def test_the_names_are_those_the_paper_and_the_reports_use(make_model, make_comparison, gold) -> None:
    splits = ("forget", "retain", "forget_train", "retain_train", "test")
    wanted = {f"{split}_{what}" for split in splits for what in ("accuracy", "loss")}
    wanted |= {f"delta_{name}" for name in wanted}
    wanted |= {"population_mia_accuracy", "population_mia_auc", "forgetting_score", "delta_population_mia_auc"}
    wanted |= {
        "retrain_gap_l2",
        "retrain_gap_l2_relative",
        "param_norm",
        "speedup",
        "speedup_total",
        "speedup_examples",
    }
    wanted |= {"seconds_unlearn", "seconds_total", "bytes_down", "bytes_up", "client_examples"}
    measures = ("retrain_gap_kl", "retrain_gap_kl_t4", "js", "js_supreme", "actdist", "actdist_rms", "completeness")
    wanted |= {f"{name}_{split}" for name in measures for split in ("forget", "retain", "test")}
    assert wanted <= set(panel(make_model(), gold, make_comparison(gold.scorecard)))


def test_another_task_names_its_own_metric(make_model, gold) -> None:
    assert {"forget_dice", "delta_test_dice"} <= set(panel(make_model(), gold, None, metric_name="dice"))


def test_values_lie_in_their_declared_range(make_model, make_comparison, gold) -> None:
    for name, row in panel(make_model(), gold, make_comparison(gold.scorecard)).items():
        found = declared(name)
        assert found is not None, name
        if not name.startswith("delta_"):
            assert math.isnan(row["value"]) or found[0].low <= row["value"] <= found[0].high, name


def test_every_gap_has_a_reason_and_no_missing_value_is_a_number(make_model, gold) -> None:
    for subject, anchor in ((make_model(), None), (make_model(scorecard=None, state=None, cost=None), gold)):
        for row in panel(subject, anchor, None).values():
            missing = row["status"] in ("undefined", "not_applicable")
            assert math.isnan(row["value"]) == missing, row
            assert row["reason"] or not missing


def test_gold_is_at_no_distance_from_itself_whether_given_or_not(gold) -> None:
    for rows in (panel(gold, gold, None), panel(gold, None, None)):
        for name in ("retrain_gap_l2", "retrain_gap_kl_forget", "js_test", "actdist_rms_retain", "delta_forget_loss"):
            assert rows[name]["value"] == 0.0, name
        assert rows["completeness_forget"]["value"] == 1.0
        assert rows["speedup"]["value"] == rows["speedup_examples"]["value"] == 1.0


def test_a_value_is_the_plain_mean_over_its_records(make_model, gold) -> None:
    subject = make_model()
    card = subject.scorecard
    rows = panel(subject, gold, None)
    held_out = card[card["selected"] & (card["split"] == "holdout")]
    assert rows["forget_accuracy"]["value"] == pytest.approx(held_out["metric"].mean())
    assert rows["forget_accuracy"]["n"] == 30
    assert rows["forget_accuracy"]["ci_low"] < rows["forget_accuracy"]["value"] < rows["forget_accuracy"]["ci_high"]


def test_activation_distances_average_as_mean_and_as_root_mean_square(make_model, make_comparison, gold) -> None:
    compared = make_comparison(gold.scorecard)
    compared["actdist"] = np.arange(len(compared)) % 2.0
    rows = panel(make_model(), gold, compared)
    assert rows["actdist_test"]["value"] == 0.5
    assert rows["actdist_rms_test"]["value"] == pytest.approx(0.707107, abs=1e-6)
    compared["actdist"] *= 1.2
    assert panel(make_model(), gold, compared)["actdist_rms_test"]["value"] == pytest.approx(0.848528, abs=1e-6)


def test_completeness_is_the_share_of_equal_decisions(make_model, make_comparison, gold) -> None:
    compared = make_comparison(gold.scorecard)
    compared["agree"] = (np.arange(len(compared)) % 4 != 3).astype(bool)
    assert panel(make_model(), gold, compared)["completeness_test"]["value"] == 0.75


def test_l2_compares_parameters_and_both_anchors(make_model, make_state, gold) -> None:
    subject = make_model(state=make_state(3.0, 4.0, buffer=7.0))
    other = make_model("retrain", "recovered", state=make_state(3.0, 3.0))
    rows = panel(subject, gold, None, other_gold=other)
    assert rows["retrain_gap_l2"]["value"] == rows["param_norm"]["value"] == 5.0
    assert rows["retrain_gap_l2_other_checkpoint"]["value"] == 1.0
    assert math.isnan(rows["retrain_gap_l2_relative"]["value"])  # this gold's norm is zero


def test_weights_that_do_not_belong_to_gold_stop_the_panel(make_model, make_state, gold) -> None:
    with pytest.raises(RunFailed, match="layer2"):
        panel(make_model(state=make_state(1.0, 2.0, 3.0)), gold, None)


def test_a_diverged_model_keeps_its_numbers_and_says_so_in_every_row(make_model, gold) -> None:
    rows = panel(make_model(status="diverged", reason="loss above 1e3"), gold, None)
    assert {row["status"] for row in rows.values()} == {"diverged"}
    assert all(row["reason"].startswith("loss above 1e3") for row in rows.values())
    assert not math.isnan(rows["forget_accuracy"]["value"])


def test_non_finite_weights_are_undefined(make_model, make_state, gold) -> None:
    rows = panel(make_model(state=make_state(math.nan, 1.0)), gold, None)
    assert (rows["retrain_gap_l2"]["status"], rows["param_norm"]["status"]) == ("undefined", "undefined")


def test_a_model_that_remembers_leaks_and_one_that_never_saw_the_records_does_not(
    make_model, make_scorecard, gold
) -> None:
    card = make_scorecard(train=300, holdout=300)
    remembered = card.assign(loss=card["loss"] * np.where(card["selected"] & (card["split"] == "train"), 0.01, 1.0))
    leaking, clean = (panel(make_model(scorecard=c), gold, None) for c in (remembered, card))
    assert leaking["population_mia_auc"]["value"] > 0.9
    assert clean["population_mia_auc"]["value"] == pytest.approx(0.5, abs=0.07)
    assert leaking["forgetting_score"]["value"] > 0.3 > 0.1 > clean["forgetting_score"]["value"]
    assert leaking["population_mia_auc"]["n"] == 600


def test_a_memory_below_chance_is_a_leak_too(make_model, make_scorecard, gold) -> None:
    card = make_scorecard(train=100, holdout=100)
    ascended = card.assign(loss=card["loss"] + 20.0 * (card["selected"] & (card["split"] == "train")))
    rows = panel(make_model(scorecard=ascended), gold, None)
    assert rows["population_mia_auc"]["value"] == 0.0
    assert rows["population_mia_auc_distance"]["value"] == 0.5


def test_rare_false_positives_need_a_thousand_negatives(make_model, make_scorecard, gold) -> None:
    assert panel(make_model(), gold, None)["population_mia_tpr_at_01pct_fpr"]["status"] == "undefined"
    assert panel(make_model(), gold, None)["population_mia_tpr_at_1pct_fpr"]["status"] == "underpowered"
    many = make_scorecard(holdout=1000, sites=1)
    assert panel(make_model(scorecard=many), None, None)["population_mia_tpr_at_01pct_fpr"]["status"] == "ok"


def test_the_attacks_difference_to_gold_is_what_counts(make_model, gold) -> None:
    rows, anchor = panel(make_model(), gold, None), panel(gold, gold, None)
    for name in ("population_mia_auc", "population_mia_accuracy"):
        assert rows[f"delta_{name}"]["value"] == pytest.approx(rows[name]["value"] - anchor[name]["value"])


def test_order_of_records_changes_no_row(make_model, make_comparison, make_scorecard, gold) -> None:
    card, compared = make_scorecard(), make_comparison(gold.scorecard)
    for column in DIVERGENCES:
        compared[column] = np.random.default_rng(0).random(len(compared))
    mixed = [frame.sample(frac=1, random_state=1) for frame in (card, compared)]
    straight = pd.DataFrame(rows_of(make_model(scorecard=card), gold, compared))
    shuffled = pd.DataFrame(rows_of(make_model(scorecard=mixed[0]), gold, mixed[1]))
    pd.testing.assert_frame_equal(straight, shuffled, check_exact=True)


def test_scoring_changes_neither_tables_nor_weights(make_model, make_comparison, gold) -> None:
    subject, compared = make_model(), make_comparison(gold.scorecard)
    before = (subject.scorecard.copy(), compared.copy(), subject.state.sha256(), gold.state.sha256())
    panel(subject, gold, compared)
    pd.testing.assert_frame_equal(subject.scorecard, before[0])
    pd.testing.assert_frame_equal(compared, before[1])
    assert (subject.state.sha256(), gold.state.sha256()) == before[2:]


def test_degenerate_scorecards_never_raise(make_model, make_scorecard) -> None:
    card = make_scorecard()
    cases = {
        "no records": card.iloc[:0],
        "one record": card.iloc[:1],
        "one class": card.assign(stratum="0"),
        "no strata": card.assign(stratum=""),
        "constant scores": card.assign(metric=1.0, loss=0.0),
        "huge losses": card.assign(loss=1e4 * (1 + card.index % 2)),
        "all NaN": card.assign(metric=math.nan, loss=math.nan),
        "two classes": card.assign(stratum=(card.index % 2).astype(str)),
    }
    for name, case in cases.items():
        for row in panel(make_model(scorecard=case), make_model("retrain", scorecard=case), None).values():
            assert math.isnan(row["value"]) or row["status"] in ("ok", "underpowered"), (name, row)


def test_a_metric_of_another_package_joins_the_panel(make_model, gold, monkeypatch: pytest.MonkeyPatch) -> None:
    from evaluation.metrics.base import Metric
    from evaluation.metrics.value import Value

    extra = Metric("num_records", "records scored", "records", 0, math.inf, "none", lambda e: Value(len(e.frame)))
    monkeypatch.setitem(METRICS._components, "num_records", extra)
    assert panel(make_model(), gold, None)["num_records"]["value"] == 360


def test_a_family_has_a_row_for_each_of_its_members_and_none_where_there_is_none(
    make_model, make_state, gold, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evaluation.metrics.base import Family
    from evaluation.metrics.value import Value

    def norms(evidence: Any) -> dict[str, Value]:
        state = evidence.model.state
        return {} if state is None else {name: Value(float(t.norm())) for name, t in state.params.items()}

    extra = Family("norm_{each}", "norm of {each}", "", 0, math.inf, "gold", norms, norms, of_forgotten=True)
    monkeypatch.setitem(METRICS._components, extra.name, extra)
    rows = panel(make_model(state=make_state(3.0, 4.0)), gold, None, earlier=("client",))
    names = {f"{before}norm_layer{i}.weight" for before in ("", "delta_", "step1_", "delta_step1_") for i in (0, 1)}
    assert {name for name in rows if "norm_layer" in name} == names
    assert rows["norm_layer1.weight"]["value"] == 4.0
    assert not [name for name in panel(make_model(state=None), gold, None) if "norm_layer" in name]


@pytest.mark.parametrize(
    ("name", "metric", "task"),
    [
        ("forget_loss", "forget_loss", ""),
        ("delta_forget_train_accuracy", "forget_train_{metric}", "accuracy"),
        ("step1_forget_token_accuracy", "forget_{metric}", "token_accuracy"),
        ("delta_relearn_forget_train_token_accuracy_5", "relearn_forget_train_{metric}_{each}", "token_accuracy"),
        ("relearn_area_forget_dice", "relearn_area_forget_{metric}", "dice"),
    ],
)
def test_a_name_in_the_results_leads_to_the_metric_behind_it(name: str, metric: str, task: str) -> None:
    found = declared(name)
    assert found is not None
    assert (found[0].name, found[1]) == (metric, task)


def test_a_name_that_no_metric_has_leads_nowhere() -> None:
    assert declared("forget") is None and declared("accuracy") is None


def test_every_tensors_distance_to_gold_is_a_row(make_model, make_state, gold) -> None:
    rows = panel(make_model(state=make_state(3.0, 4.0)), gold, None)
    found = {name: row["value"] for name, row in rows.items() if name.startswith("retrain_gap_l2_of_")}
    assert found == {"retrain_gap_l2_of_layer0.weight": 3.0, "retrain_gap_l2_of_layer1.weight": 4.0}
    assert rows["retrain_gap_l2"]["value"] == 5.0


class Broken:
    """Raises when a metric or a curve of another package is computed."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __call__(self, evidence: Any) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("boom of the metric\nsecond line"), "ValueError: boom of the metric second line"),
        (KeyError("x"), "KeyError: 'x'"),
        (ZeroDivisionError(), "ZeroDivisionError"),
    ],
)
def test_a_metric_or_curve_that_raises_is_named_with_what_it_raised(make_model, gold, monkeypatch, error, says) -> None:
    broken = Metric("brk", "broken", "", 0.0, 1.0, "low", Broken(error))
    monkeypatch.setitem(METRICS._components, "brk", broken)
    with pytest.raises(RunFailed) as raised:
        panel(make_model(), gold, None)
    assert str(raised.value) == f"the metric brk raised {says}"
    monkeypatch.setitem(CURVES._components, "brk", Curve("brk", Broken(error)))
    with pytest.raises(RunFailed) as raised:
        list(curves_of(None))
    assert str(raised.value) == f"the curve brk raised {says}"


@pytest.mark.parametrize("error", [BadInput("a", 1, "2"), OSError(28, "No space left on device"), MemoryError()])
def test_what_says_itself_what_is_wrong_is_left_as_it_is(make_model, gold, monkeypatch, error) -> None:
    monkeypatch.setitem(METRICS._components, "brk", Metric("brk", "broken", "", 0.0, 1.0, "low", Broken(error)))
    with pytest.raises(type(error)) as raised:
        panel(make_model(), gold, None)
    assert raised.value is error
