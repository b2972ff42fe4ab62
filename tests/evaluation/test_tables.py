"""The table a run ends with, and the same as JSON."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from evaluation.results import COLUMNS
from evaluation.tables import _legend, summary_json, summary_table

METRICS = {
    "forget_accuracy": 0.61,
    "retain_accuracy": 0.75,
    "test_accuracy": 0.72,
    "retain_train_accuracy": 0.8,
    "population_mia_auc": 0.52,
    "delta_forget_accuracy": 0.02,
    "delta_retain_accuracy": -0.15,
    "delta_test_accuracy": 0.0,
    "delta_population_mia_auc": -0.03,
    "retrain_gap_l2": 0.44,
    "retrain_gap_kl_forget": 0.0312,
    "seconds_unlearn": 14.83,
    "seconds_total": 23.8,
    "speedup": 4.125,
    "speedup_total": 2.5,
}


def model(method: str, checkpoint: str, **changes: Any) -> pd.DataFrame:
    """Make the results rows of one model; `changes` replace columns, or metrics by name."""
    label: dict[str, Any] = dict.fromkeys(COLUMNS, "") | {
        "cell": method,
        "experiment": "quickstart",
        "task": "classification",
        "dataset": "lung-ct",
        "partition": "natural",
        "alpha": math.nan,
        "model": "cnn",
        "request": "client:patient-1",
        "granularity": "client",
        "method": method,
        "preset": "" if method in ("original", "retrain") else "lethe",
        "checkpoint": checkpoint,
        "train_seed": 0,
        "unlearn_seed": 0,
        "evaluate_seed": 0,
        "status": "ok",
        "n": 40,
        "ci_low": math.nan,
        "ci_high": math.nan,
    }
    label |= {key: value for key, value in changes.items() if key in COLUMNS}
    values = METRICS | {key: value for key, value in changes.items() if key not in COLUMNS}
    return pd.DataFrame([label | {"metric": name, "value": value} for name, value in values.items()])


def results(*frames: pd.DataFrame) -> pd.DataFrame:
    return pd.concat(frames, ignore_index=True)


def page(frame: pd.DataFrame, width: int = 100) -> str:
    console = Console(width=width, no_color=True)
    with console.capture() as captured:
        console.print(summary_table(frame))
    return captured.get()


def line(text: str, start: str) -> str:
    return next(found for found in text.splitlines() if found.strip().startswith(start))


ALL = results(
    model("ga", "unlearned"),
    model("fine-tuning", "recovered"),
    model("retrain", "recovered", forget_accuracy=0.65),
    model("ga", "recovered"),
    model("fedrecovery", "unlearned", status="diverged", reason="the loss is not finite", test_accuracy=math.nan),
    model("retrain", "unlearned", forget_accuracy=0.59),
    model("original", "trained", forget_accuracy=0.83, speedup=math.nan),
)


def test_each_checkpoint_is_a_block_led_by_gold() -> None:
    first_words = [found.split()[0] for found in page(ALL).splitlines() if found.strip()]
    assert first_words[3:12] == [
        "original",
        "unlearned",
        "retrain",
        "fedrecovery",
        "ga",
        "recovered",
        "retrain",
        "fine-tuning",
        "ga",
    ]


def test_values_stand_beside_their_distance_to_gold() -> None:
    assert line(page(ALL), "ga").split() == (
        ["ga", "0.61", "+.02", "0.75", "-.15", "0.72", "+.00", "0.52", "-.03", "0.44", "0.0312", "15s", "4.1x", "ok"]
    )


def test_gold_is_marked_and_has_no_distance_to_itself() -> None:
    gold = line(page(ALL), "retrain")
    assert "★" in gold
    assert "+.02" not in gold


def test_recovered_models_count_the_time_of_recovery() -> None:
    recovered = page(ALL).split("recovered", 1)[1]
    assert line(recovered, "ga").split()[-3:] == ["24s", "2.5x", "ok"]


def test_retraining_needs_no_recovery_and_has_no_speedup_with_it() -> None:
    assert line(page(ALL), "retrain").split()[-2] == "4.1x"
    assert line(page(ALL).split("recovered", 1)[1], "retrain").split()[-2] == "–"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.04, "0.0s"), (3.96, "4.0s"), (9.96, "10s"), (99.4, "99s"), (99.6, "1m40s"), (3599, "59m59s"), (6001, "1.7h")],
)
def test_times_read_at_a_glance(seconds: float, shown: str) -> None:
    frame = results(model("ga", "unlearned", seconds_unlearn=seconds))
    assert line(page(frame), "ga").split()[-3] == shown


def test_a_method_that_does_not_apply_says_why_once() -> None:
    unfit = [
        model("prune", checkpoint, status="not_applicable", reason="not applicable to a client request")
        for checkpoint in ("unlearned", "recovered")
    ]
    text = page(results(ALL, *unfit))
    assert [found.split()[-1] for found in text.splitlines() if found.strip().startswith("prune ")] == ["n/a", "n/a"]
    assert text.count("prune: not applicable to a client request") == 1


def test_a_diverged_model_shows_its_numbers_its_status_and_below_the_reason_but_no_speedup() -> None:
    text = page(ALL)
    row = line(text, "fedrecovery").split()
    assert (row[1], row[5], row[-2], row[-1]) == ("0.61", "–", "–", "diverged")
    assert "fedrecovery unlearned: diverged: the loss is not finite" in text


def test_nothing_is_cut_or_wrapped_at_100_columns() -> None:
    large = model("fedrecovery", "recovered", retrain_gap_l2=12345.6, seconds_total=250_000.0, status="diverged")
    text = page(results(ALL, large))
    assert "…" not in text
    assert max(len(found.rstrip()) for found in text.splitlines()) <= 100
    assert len([found for found in text.splitlines() if "fedrecovery" in found and "diverged" in found]) == 4
    assert "69.4h" in text


@pytest.mark.parametrize(
    ("width", "left_out"), [(97, ""), (80, "MIA AUC, L2"), (60, "MIA AUC, L2, time, retain"), (20, "MIA AUC, L2, time")]
)
def test_a_narrow_terminal_leaves_columns_out_and_cuts_nothing(width: int, left_out: str) -> None:
    console = Console(width=width, no_color=True)
    with console.capture() as captured:
        console.print(summary_table(ALL, width))
    text = captured.get()
    assert "…" not in text or width < 40
    assert (f"Left out for want of room: {left_out}" in " ".join(text.split())) == bool(left_out) or width < 40
    assert width < 40 or line(text, "fedrecovery").split()[-1] == "diverged"


@pytest.mark.parametrize("width", [100, 80, 70, 60, 50, 45])
def test_the_legend_explains_the_columns_that_are_shown_and_no_other(width: int) -> None:
    console = Console(width=width, no_color=True)
    with console.capture() as captured:
        console.print(summary_table(model("original", "trained", ci_low=-0.1, ci_high=0.1), width))
    text = captured.get()
    head = next(found for found in text.splitlines() if "forget" in found and "status" in found)
    said = " ".join(text.split(head)[1].split()).partition("Left out for want of room")[0]
    for column in ("retain", "MIA AUC", "L2", "KL", "time", "speedup"):
        assert (f" {column} " in head) == bool(re.search(rf"\b{column}(,|:| the )", said)), column


def test_what_is_left_of_the_legend_is_a_sentence() -> None:
    assert _legend(["forget", "test", "speedup"]) == [
        "speedup: of the unlearning step, over retraining (★); recovered: with its recovery rounds."
    ]
    assert _legend(["KL", "time"]) == [
        "KL: distance to ★ of the outputs on forget records.",
        "time: of the unlearning step; recovered: with its recovery rounds.",
    ]
    assert _legend([]) == []


def test_seeds_are_averaged_with_their_sample_deviation() -> None:
    frame = results(*(model("ga", "unlearned", train_seed=s, forget_accuracy=v) for s, v in enumerate((0.5, 0.6, 0.7))))
    found = summary_json(frame)["groups"][0]["rows"][0]
    assert found["seeds"] == 3
    assert found["metrics"]["forget_accuracy"]["mean"] == pytest.approx(0.6)
    assert found["metrics"]["forget_accuracy"]["std"] == pytest.approx(0.1)
    assert "3 combinations of seeds" in page(frame)


def test_one_seed_has_no_deviation() -> None:
    assert summary_json(ALL)["groups"][0]["rows"][0]["metrics"]["forget_accuracy"]["std"] is None


def test_two_settings_of_one_preset_are_never_averaged() -> None:
    frame = results(
        model("ga", "unlearned", cell="aaaaaa1"), model("ga", "unlearned", cell="bbbbbb2", forget_accuracy=0.1)
    )
    rows = summary_json(frame)["groups"][0]["rows"]
    assert [(row["variant"], row["metrics"]["forget_accuracy"]["mean"]) for row in rows] == [
        ("aaaaaa", 0.61),
        ("bbbbbb", 0.1),
    ]


def test_presets_are_named_where_a_method_has_several() -> None:
    text = page(results(ALL, model("ga", "unlearned", preset="safe", cell="other")))
    assert "ga lethe" in text
    assert "ga safe" in text
    assert "fedrecovery lethe" not in text


def test_every_request_has_its_own_table() -> None:
    text = page(results(ALL, model("ga", "unlearned", request="class:5", granularity="class")))
    assert "· client:patient-1" in text
    assert "· class:5" in text


def test_another_tasks_metric_is_shown() -> None:
    renamed = ALL.assign(metric=ALL["metric"].str.replace("accuracy", "dice"))
    assert line(page(renamed), "ga").split()[1] == "0.61"
    assert "dice on 40, 40 and 40 held-out" in page(renamed)


def test_json_has_no_nan_and_says_why_a_number_is_missing() -> None:
    frame = model("ga", "unlearned", value=0, speedup=math.nan, retrain_gap_l2=math.inf)
    frame.loc[frame["metric"] == "speedup", "reason"] = "timings not comparable"
    text = json.dumps(summary_json(frame), allow_nan=False)
    speedup = json.loads(text)["groups"][0]["rows"][0]["metrics"]["speedup"]
    expected = {"mean": None, "std": None, "seeds": 0, "n": 40, "interval": None, "reason": "timings not comparable"}
    assert speedup == expected


def test_one_evaluation_keeps_its_interval_and_several_have_their_deviation() -> None:
    one = model("ga", "unlearned", ci_low=0.5, ci_high=0.7)
    found = summary_json(one)["groups"][0]["rows"][0]["metrics"]["forget_accuracy"]
    assert found["interval"] == [0.5, 0.7]
    two = results(one, model("ga", "unlearned", train_seed=1, ci_low=0.5, ci_high=0.7))
    assert summary_json(two)["groups"][0]["rows"][0]["metrics"]["forget_accuracy"]["interval"] is None


def test_it_says_what_cannot_be_judged_by_it() -> None:
    def shown(**original: Any) -> str:
        return page(results(model("retrain", "unlearned"), model("original", "trained", **original)))

    assert "the original cannot be told from" not in shown(ci_low=0.01, ci_high=0.04)
    text = shown(ci_low=-0.1, ci_high=0.1)
    assert "By forget accuracy and MIA AUC the original cannot be told from ★: they judge no method." in text


def test_a_request_for_samples_counts_the_removed_records() -> None:
    text = page(model("ga", "unlearned", granularity="sample"))
    assert "accuracy on the 40 removed records (forget), on 40 held-out ones (retain, test)" in text


def test_an_empty_table_is_an_empty_page() -> None:
    assert summary_json(ALL.iloc[:0]) == {"groups": []}
    assert page(ALL.iloc[:0]).strip() == ""
