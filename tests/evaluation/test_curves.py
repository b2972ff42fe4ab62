"""Curves: what figures need, kept beside the results, and replaced model by model."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from evaluation.curves import COLUMNS, FILE, read_curves, write_curves
from evaluation.submission import Submission
from partitions.errors import BadInput


def row(**changes: Any) -> dict[str, Any]:
    base = dict.fromkeys(COLUMNS, "a") | {"train_seed": 0, "unlearn_seed": 0, "evaluate_seed": 0, "x": 0.5, "y": 1.0}
    return base | changes


def test_points_of_a_model_and_kind_replace_what_was_there_and_nothing_else(tmp_path) -> None:
    write_curves(tmp_path, [row(x=1.0), row(x=2.0), row(kind="b", x=3.0), row(cell="c", x=4.0)])
    write_curves(tmp_path, [row(x=5.0)])
    found = read_curves(tmp_path)
    assert sorted(found["x"]) == [3.0, 4.0, 5.0]
    assert list(found[found["x"] == 3.0]["kind"]) == ["b"]


def test_without_points_nothing_is_written(tmp_path) -> None:
    write_curves(tmp_path, [])
    assert not (tmp_path / FILE).exists()
    assert read_curves(tmp_path).empty


def test_order_within_a_curve_and_missing_axes_survive(tmp_path) -> None:
    write_curves(tmp_path, [row(x=3.0, label="late"), row(x=1.0, y=float("nan"))])
    found = read_curves(tmp_path)
    assert list(found["x"]) == [3.0, 1.0]
    assert found["y"].isna().tolist() == [False, True]


def test_a_damaged_file_is_refused_with_a_remedy(tmp_path) -> None:
    (tmp_path / FILE).write_text("x,y\n1,2\n")
    with pytest.raises(BadInput, match=r"damaged.*remove it"):
        read_curves(tmp_path)


@pytest.mark.parametrize("keep", [0.3, 0.9, 0.99])
def test_a_file_cut_short_is_refused(tmp_path, keep: float) -> None:
    write_curves(tmp_path, [row(x=float(number)) for number in range(20)])
    text = (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text(text[: int(keep * len(text))])
    with pytest.raises(BadInput, match="damaged"):
        read_curves(tmp_path)


@pytest.mark.parametrize("seed", ["1.5", "inf", "9" * 40, "9.3e18", "1e400"])
def test_a_seed_that_is_not_whole_or_too_large_is_refused(tmp_path, seed: str) -> None:
    write_curves(tmp_path, [row(train_seed=77)])
    (tmp_path / FILE).write_text((tmp_path / FILE).read_text().replace(",77,", f",{seed},"))
    with pytest.raises(BadInput, match=r"damaged \(train_seed has a number that is not whole, or too large\)"):
        read_curves(tmp_path)


def test_a_file_that_may_not_be_read_is_one_line(tmp_path, forbid) -> None:
    write_curves(tmp_path, [row()])
    forbid(tmp_path / FILE)
    with pytest.raises(BadInput, match=r"curves=.*Permission denied"):
        read_curves(tmp_path)


def test_held_out_records_site_by_site(make_model, make_state, make_scorecard) -> None:
    card = make_scorecard()
    gold = make_model("retrain", state=make_state(0.0, 0.0), scorecard=make_scorecard(seed=9))
    labels = dict.fromkeys(("cell", "request", "method", "preset", "checkpoint"), "a")
    labels |= {"train_seed": 0, "unlearn_seed": 0}
    submission = Submission(labels, make_model(scorecard=card), gold, None, None, "client", "accuracy", True, False)
    points = pd.DataFrame([point for point in submission.curves() if point["kind"] == "site"])
    held = card[card["split"] == "holdout"]
    assert set(points["label"]) == set(held["site"])
    for _, point in points.iterrows():
        own = held[(held["site"] == point["label"]) & (held["selected"] == (point["series"] == "forget"))]
        assert point["y"] == pytest.approx(own["metric"].mean())
        assert point["x"] == len(own)
