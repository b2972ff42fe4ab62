"""Durability: relearning curves beside gold's (METRICS 6)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from evaluation.submission import Submission

COLUMNS = ["record", "site", "split", "selected", "stratum", "metric", "loss"]
LABELS = dict.fromkeys(("cell", "request", "method", "preset", "checkpoint"), "a") | {
    "train_seed": 0,
    "unlearn_seed": 0,
}


def relearning(card: pd.DataFrame, hits: list[float], seed: int = 0, bad: dict[int, str] | None = None) -> pd.DataFrame:
    """Make the table of a model that has share ``hits[j]`` of the forgotten records right after epoch j."""
    told = card[(card["selected"] & (card["split"] != "reference")) | (card["split"] == "reference")][COLUMNS]
    rng = np.random.default_rng(seed)
    parts = []
    for epoch, share in enumerate(hits):
        part = told.assign(metric=(rng.random(len(told)) < share).astype(float), epoch=epoch, reason="")
        if why := (bad or {}).get(epoch):
            part = part.assign(metric=math.nan, loss=math.nan, reason=why)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def submission(model: Any, gold: Any, **changes: Any) -> Submission:
    options = {"other_gold": None, "comparison": None, "granularity": "client", "metric_name": "accuracy"}
    options |= {"higher_is_better": True, "has_reference": False}
    return Submission(labels=LABELS, model=model, gold=gold, **(options | changes))


def relearnt(*args: Any, **changes: Any) -> dict[str, dict[str, Any]]:
    return {row["metric"]: row for row in submission(*args, **changes).rows() if "relearn" in row["metric"]}


@pytest.fixture
def pair(make_model, make_scorecard):
    card = make_scorecard()
    return card, [
        make_model(method, "recovered", scorecard=card, tables={"relearn": relearning(card, hits, seed)})
        for method, hits, seed in (("ga", [0.1, 0.6, 0.9], 1), ("retrain", [0.1, 0.3, 0.5], 2))
    ]


def test_a_row_for_each_epoch_and_split_and_its_difference_and_the_areas(pair) -> None:
    _, (model, gold) = pair
    splits, epochs = ("forget", "forget_train"), (0, 1, 2)
    names = {f"{d}relearn_{s}_accuracy_{j}" for d in ("", "delta_") for s in splits for j in epochs}
    assert set(relearnt(model, gold)) == names | {f"relearn_area_{split}_accuracy" for split in splits}


def test_values_are_plain_means_and_differences_are_paired(pair) -> None:
    card, (model, gold) = pair
    rows = relearnt(model, gold)
    tables = [m.tables["relearn"] for m in (model, gold)]
    for split, which in (("forget", "holdout"), ("forget_train", "train")):
        means = [t[t["split"] == which].groupby("epoch")["metric"].mean() for t in tables]
        for epoch in range(3):
            row = rows[f"relearn_{split}_accuracy_{epoch}"]
            assert row["value"] == pytest.approx(means[0][epoch])
            assert row["n"] == int((card["selected"] & (card["split"] == which)).sum())
            assert row["ci_low"] <= row["value"] <= row["ci_high"]
            delta = rows[f"delta_relearn_{split}_accuracy_{epoch}"]
            assert delta["value"] == pytest.approx(means[0][epoch] - means[1][epoch])
        area = rows[f"relearn_area_{split}_accuracy"]
        assert area["value"] == pytest.approx((means[0] - means[1])[[1, 2]].sum() / 2)
        assert area["ci_low"] < area["value"] < area["ci_high"]


def test_a_paired_interval_is_narrow_where_the_models_agree_record_by_record(pair, make_model) -> None:
    card, (model, _) = pair
    table = model.tables["relearn"].copy()
    twin = make_model("retrain", "recovered", scorecard=card, tables={"relearn": table})
    row = relearnt(model, twin)["delta_relearn_forget_train_accuracy_1"]
    assert (row["value"], row["ci_low"], row["ci_high"]) == (0.0, 0.0, 0.0)


def test_gold_is_at_no_distance_from_its_own_curve(pair) -> None:
    _, (_, gold) = pair
    for anchor in (gold, None):
        rows = relearnt(gold, anchor)
        deltas = [row for name, row in rows.items() if name.startswith("delta_") or "area" in name]
        assert len(deltas) == 8
        assert {row["value"] for row in deltas} == {0.0}


def test_without_relearning_there_is_no_row_and_no_point(make_model, make_scorecard) -> None:
    card = make_scorecard()
    given = submission(make_model(scorecard=card), make_model("retrain", scorecard=card))
    assert not [row for row in given.rows() if "relearn" in row["metric"]]
    assert not [point for point in given.curves() if point["kind"] == "relearn"]


def test_a_model_that_could_not_relearn_has_golds_rows_without_values(pair, make_model) -> None:
    _, (model, gold) = pair
    lost = make_model(checkpoint="recovered", status="diverged", reason="too far", scorecard=None, state=None)
    rows = relearnt(lost, gold)
    assert rows.keys() == relearnt(model, gold).keys()
    assert all(math.isnan(row["value"]) and row["reason"] == "too far; not relearned" for row in rows.values())


def test_a_diverged_epoch_is_missing_with_its_reason_and_so_is_the_area(pair, make_model) -> None:
    card, (_, gold) = pair
    why = "relearning diverged in epoch 2: site-0: not finite"
    table = relearning(card, [0.1, 0.5, 0.5], bad={2: why})
    model = make_model(checkpoint="recovered", scorecard=card, tables={"relearn": table})
    rows = relearnt(model, gold)
    for name in ("relearn_forget_accuracy_2", "delta_relearn_forget_accuracy_2", "relearn_area_forget_accuracy"):
        assert (rows[name]["status"], rows[name]["reason"]) == ("undefined", why)
        assert math.isnan(rows[name]["value"])
    assert rows["delta_relearn_forget_accuracy_1"]["status"] == "ok"
    of_gold = relearnt(gold, model)["delta_relearn_forget_accuracy_2"]
    assert (of_gold["status"], of_gold["reason"]) == ("undefined", f"gold: {why}")


def test_outputs_that_are_not_finite_give_no_number(pair) -> None:
    _, (model, gold) = pair
    table = model.tables["relearn"]
    table.loc[table.index[table["epoch"] == 1][0], ["metric", "loss"]] = math.nan
    rows = relearnt(model, gold)
    assert rows["relearn_forget_train_accuracy_1"]["status"] == "undefined"
    assert "non-finite outputs on 1 of" in rows["relearn_forget_train_accuracy_1"]["reason"]
    assert rows["relearn_area_forget_train_accuracy"]["status"] == "undefined"
    assert rows["relearn_forget_train_accuracy_2"]["status"] == "ok"


def test_a_sample_request_has_one_curve_under_both_names(make_model, make_scorecard) -> None:
    card = make_scorecard("sample")
    table = relearning(card, [0.2, 0.8])
    model = make_model(checkpoint="recovered", scorecard=card, tables={"relearn": table})
    rows = relearnt(model, None, granularity="sample")
    assert rows["relearn_forget_accuracy_1"]["value"] == rows["relearn_forget_train_accuracy_1"]["value"]
    assert rows["delta_relearn_forget_accuracy_1"]["reason"] == "needs gold"


def test_reference_records_stand_in_where_nothing_is_held_out(make_model, make_scorecard) -> None:
    card = make_scorecard(holdout=0, reference=60)
    table = relearning(card, [0.2, 0.8])
    model = make_model(checkpoint="recovered", scorecard=card, tables={"relearn": table})
    row = relearnt(model, None, has_reference=True)["relearn_forget_accuracy_1"]
    assert (row["n"], row["status"]) == (60, "ok")
    assert "reference records weighted" in row["reason"]


def test_points_are_the_means_over_epochs(pair) -> None:
    _, (model, gold) = pair
    points = [point for point in submission(model, gold).curves() if point["kind"] == "relearn"]
    rows = relearnt(model, gold)
    found = {(point["series"], point["x"]): point["y"] for point in points}
    assert found == {
        (split, float(j)): rows[f"relearn_{split}_accuracy_{j}"]["value"]
        for split in ("forget", "forget_train")
        for j in range(3)
    }
