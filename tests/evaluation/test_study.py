"""The tables of a study for the docs."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from evaluation.results import COLUMNS, write_results
from evaluation.study import SHOWN, kept, main, tables

VALUES = {"forget_accuracy": 0.61, "delta_forget_accuracy": -0.04, "retrain_gap_l2": 1.234, "client_examples": 12345}
VALUES |= {"seconds_unlearn": 2.0, "seconds_total": 9.0, "speedup": 10.0, "speedup_total": 3.0, "js_forget": 0.5}


def model(method: str, checkpoint: str, **changes: Any) -> list[dict[str, Any]]:
    label = dict.fromkeys(COLUMNS, "") | {"cell": method, "experiment": "methods", "dataset": "lung-ct", "status": "ok"}
    label |= {"partition": "natural", "request": "client:patient-1", "method": method, "checkpoint": checkpoint}
    label |= {"alpha": math.nan, "train_seed": 0, "unlearn_seed": 0, "evaluate_seed": 0, "n": 5} | changes
    label |= {"ci_low": math.nan, "ci_high": math.nan}
    return [label | {"metric": name, "value": value} for name, value in VALUES.items()]


@pytest.fixture
def results() -> pd.DataFrame:
    rows = [*model("original", "trained"), *model("ga", "recovered"), *model("ga", "unlearned", status="diverged")]
    for checkpoint in ("unlearned", "recovered"):
        rows += model("retrain", checkpoint)
        unfit = model("prune", checkpoint, status="not_applicable", reason="only classes; not scored")
        rows += [row | {"value": math.nan} for row in unfit]
        rows[-1]["reason"] = "only classes"
    return pd.DataFrame(rows)


def line(text: str, start: str, number: int = 0) -> list[str]:
    found = [one for one in text.splitlines() if one.startswith(f"| {start} ")][number]
    return [cell.strip() for cell in found.strip("|").split("|")]


def test_values_stand_beside_their_distance_to_gold_and_gold_is_bold(results: pd.DataFrame) -> None:
    text = tables(results)
    assert "### lung-ct, natural: `client:patient-1`" in text
    assert line(text, "ga", 1) == ["ga", "0.61 (-0.04)", "", "", "", "1.23", "", "12,345", "9.0", "3.0x", "ok"]
    assert line(text, "**retrain**")[1] == "0.61"


def test_the_step_is_timed_alone_and_recovered_with_its_recovery(results: pd.DataFrame) -> None:
    text = tables(results)
    assert line(text, "ga")[-3:] == ["2.0", "10.0x", "diverged"]
    assert line(text, "**retrain**", 1)[-2] == "", "retraining needs no recovery"


def test_a_method_that_does_not_apply_says_why_once(results: pd.DataFrame) -> None:
    text = tables(results)
    assert text.count("| prune |") == 1
    assert line(text, "prune")[-1] == "only classes"


def test_what_is_kept_makes_the_same_tables(results: pd.DataFrame, tmp_path, capsys) -> None:
    write_results(tmp_path, results.to_dict("records"))
    assert main([str(tmp_path), str(tmp_path / "kept.csv")]) == 0
    printed = capsys.readouterr().out
    again = pd.read_csv(tmp_path / "kept.csv", keep_default_na=False, na_values={"value": "", "alpha": ""})
    assert set(again["metric"]) <= set(SHOWN)
    assert tables(kept(again)) == printed
    assert (again["status"] == "not_applicable").sum() < 2 * len(VALUES)
