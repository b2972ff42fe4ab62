"""trials.csv: every trial once, written again without a change; what one shared setting concludes."""

from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd
import pytest

from evaluation.shared_settings import OWN, PRESET, conclusions, verdict
from evaluation.trials import COLUMNS, FILE, read_trials, write_trials
from partitions.errors import BadInput


def row(method: str, trial: int, values: dict[str, Any], score: float, forget: float, **changes: Any) -> dict[str, Any]:
    """Make a trial whose held-out forget accuracy is off gold's 0.5 and whose retained one is gold's."""
    base: dict[str, Any] = dict.fromkeys(COLUMNS, "") | {"search": "s", "dataset": "lung-ct", "request": "class:1"}
    base |= {"experiment": "e", "method": method, "trial": trial, "values": json.dumps(values), "alpha": None}
    base |= {"train_seed": 0, "unlearn_seed": 0, "search_seed": 0, "higher_is_better": True, "score": score}
    base |= {"retain_train": 0.9, "forget_train": 0.2, "forget": forget, "gold_forget": 0.5, "retain": 0.8}
    base |= {"gold_retain": 0.8, "test": 0.7, "gold_test": 0.7, "kl_forget": 0.1, "seconds": 1.0, "chosen": False}
    return base | {"status": "ok", "reason": ""} | changes


def frame(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(COLUMNS))


SWAPPED = [
    row("ga", 0, {}, 0.1, 0.9),
    row("ga", 1, {"lr": 0.01}, 0.3, 0.1),
    row("ga", 2, {"lr": 0.1}, 0.7, 0.48, chosen=True),
    row("puf", 0, {}, 0.1, 0.9),
    row("puf", 1, {"lr": 0.01}, 0.6, 0.4, chosen=True),
    row("puf", 2, {"lr": 0.1}, 0.2, 0.0),
]


def test_trials_come_back_typed_and_writing_again_changes_nothing(tmp_path) -> None:
    write_trials(tmp_path, SWAPPED)
    first = (tmp_path / FILE).read_bytes()
    write_trials(tmp_path, reversed(SWAPPED))
    assert (tmp_path / FILE).read_bytes() == first
    found = read_trials(tmp_path)
    assert list(found["trial"]) == [0, 1, 2] * 2
    assert found["chosen"].dtype == bool and list(found["chosen"]) == [False, False, True, False, True, False]
    assert json.loads(found["values"][1]) == {"lr": 0.01}
    assert found["alpha"].isna().all()


def test_a_run_without_searches_has_no_trials(tmp_path) -> None:
    assert read_trials(tmp_path).empty
    assert list(read_trials(tmp_path).columns) == list(COLUMNS)


def test_a_damaged_file_is_refused_with_a_remedy(tmp_path) -> None:
    write_trials(tmp_path, SWAPPED)
    text = (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text(text[: len(text) // 2])
    with pytest.raises(BadInput, match=r"trials.*damaged"):
        read_trials(tmp_path)


def test_a_shared_setting_turns_the_ranking_around() -> None:
    found = {one.setting: one for one in conclusions(frame(*SWAPPED))}
    assert list(found) == [OWN, PRESET, "lr = 0.01", "lr = 0.1"]
    assert found[OWN].distances == {"ga": pytest.approx(0.01), "puf": pytest.approx(0.05)}
    assert found[OWN].ranks == {"ga": 1, "puf": 2}
    assert found["lr = 0.01"].reversed == (("puf", "ga"),)
    assert found["lr = 0.1"].reversed == ()
    assert found[PRESET].ranks == {"ga": 1.5, "puf": 1.5}, "equal distances share a rank"
    assert found[PRESET].reversed == ()
    told = verdict(conclusions(frame(*SWAPPED)))
    assert told == "1 of 3 ways to set all methods alike turn pairs of them around, at most 1 of 1 (lr = 0.01)."


def test_a_value_that_not_every_method_tried_is_not_shared() -> None:
    rows = [one for one in SWAPPED if (one["method"], one["trial"]) != ("puf", 2)]
    assert [one.setting for one in conclusions(frame(*rows))] == [OWN, PRESET, "lr = 0.01"]


def test_among_several_trials_with_a_shared_value_the_rule_chooses_not_the_distance() -> None:
    more = row("ga", 3, {"lr": 0.01, "k": 2}, 0.2, 0.5)
    found = {one.setting: one for one in conclusions(frame(*SWAPPED, more))}
    assert found["lr = 0.01"].distances["ga"] == pytest.approx(0.2)


def test_a_method_that_failed_under_a_shared_value_is_last() -> None:
    failed = {"score": math.nan, "forget": math.nan, "status": "diverged", "reason": "it ran away"}
    rows = [one | (failed if (one["method"], one["trial"]) == ("ga", 1) else {}) for one in SWAPPED]
    found = {one.setting: one for one in conclusions(frame(*rows))}
    assert found["lr = 0.01"].distances["ga"] == math.inf
    assert found["lr = 0.01"].ranks == {"ga": 2, "puf": 1}


def test_searches_of_other_train_seeds_are_averaged() -> None:
    again = [one | {"train_seed": 1, "forget": one["forget"] + 0.02} for one in SWAPPED]
    found = {one.setting: one for one in conclusions(frame(*SWAPPED, *again))}
    assert found[OWN].distances["ga"] == pytest.approx((0.01 + 0.0) / 2)


def test_one_method_alone_has_nothing_to_conclude() -> None:
    assert conclusions(frame(*SWAPPED[:3])) == []
    assert verdict([]) == ""
