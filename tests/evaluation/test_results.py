"""The tidy results table."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from evaluation.results import COLUMNS, read_results, write_results
from partitions.errors import BadInput


def row(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "cell": "1e10aa",
        "experiment": "quickstart",
        "task": "classification",
        "dataset": "lung-ct",
        "partition": "natural",
        "alpha": None,
        "model": "cnn",
        "request": "client:patient-1,patient-2",
        "granularity": "client",
        "method": "ga",
        "preset": "lethe",
        "checkpoint": "unlearned",
        "train_seed": 0,
        "unlearn_seed": 0,
        "evaluate_seed": 0,
        "metric": "forget_accuracy",
        "value": 0.1 + 0.2,
        "n": 30,
        "ci_low": 0.2,
        "ci_high": 0.4,
        "status": "ok",
        "reason": "",
    }
    return plain | changes


def write_cell(folder: Path, cell: int) -> None:
    write_results(folder, [row(cell=f"cell{cell}", metric=f"m{k}") for k in range(20)])


def test_what_is_written_is_read_back_to_the_bit(tmp_path: Path) -> None:
    write_results(tmp_path, [row()])
    found = read_results(tmp_path)
    assert list(found.columns) == list(COLUMNS)
    assert found.loc[0, "value"] == 0.1 + 0.2
    assert found.loc[0, "request"] == "client:patient-1,patient-2"
    assert found.loc[0, "reason"] == ""
    assert math.isnan(found.loc[0, "alpha"])


def test_text_that_looks_like_a_number_stays_text(tmp_path: Path) -> None:
    write_results(tmp_path, [row(cell="1e10"), row(cell="007"), row(cell="nan")])
    assert sorted(read_results(tmp_path)["cell"]) == ["007", "1e10", "nan"]


def test_missing_values_and_seeds_stay_missing_and_infinity_stays(tmp_path: Path) -> None:
    write_results(tmp_path, [row(value=math.nan, unlearn_seed=None, ci_high=math.inf, n=0)])
    found = read_results(tmp_path).loc[0]
    assert math.isnan(found["value"])
    assert str(found["unlearn_seed"]) == "<NA>"
    assert found["ci_high"] == math.inf


def test_writing_again_replaces_a_row_and_keeps_the_others(tmp_path: Path) -> None:
    write_results(tmp_path, [row(), row(metric="retain_accuracy"), row(unlearn_seed=None, method="original")])
    write_results(tmp_path, [row(value=0.9), row(unlearn_seed=None, method="original", value=0.8)])
    found = read_results(tmp_path)
    assert sorted(found["value"]) == [0.1 + 0.2, 0.8, 0.9]


def test_the_file_does_not_depend_on_the_order_of_cells(tmp_path: Path) -> None:
    rows = [row(cell="b"), row(cell="a"), row(cell="a", checkpoint="recovered")]
    first, second = tmp_path / "one", tmp_path / "two"
    write_results(first, rows)
    for one in reversed(rows):
        write_results(second, [one])
    assert (first / "results.csv").read_bytes() == (second / "results.csv").read_bytes()


def test_several_processes_write_one_table_without_loss(tmp_path: Path) -> None:
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(write_cell, [tmp_path] * 6, range(6)))
    assert len(read_results(tmp_path)) == 120
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_crash_while_writing_leaves_the_old_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_results(tmp_path, [row()])
    before = (tmp_path / "results.csv").read_bytes()
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_results(tmp_path, [row(value=1.0)])
    assert (tmp_path / "results.csv").read_bytes() == before
    assert not list(tmp_path.glob(".results*"))


@pytest.mark.parametrize("changed", [{"surprise": 1}, {"metric": None}])
def test_rows_have_exactly_the_columns(tmp_path: Path, changed: dict[str, Any]) -> None:
    bad = row() | changed
    if changed.get("metric", 0) is None:
        del bad["metric"]
    with pytest.raises(ValueError, match=r"surprise|metric"):
        write_results(tmp_path, [bad])


@pytest.mark.parametrize("keep", [0.5, 0.97])
def test_a_table_cut_short_is_not_read_as_a_whole_one(tmp_path: Path, keep: float) -> None:
    path = write_results(tmp_path, [row(), row(metric="test_accuracy")])
    text = path.read_text()
    path.write_text(text[: int(len(text) * keep)])
    with pytest.raises(BadInput, match="damaged"):
        read_results(path)


@pytest.mark.parametrize(("good", "bad"), [("0.5", "0.5.1"), ("\n", ",extra\n"), (",ok,", ",,")])
def test_a_table_with_garbage_is_named(tmp_path: Path, good: str, bad: str) -> None:
    path = write_results(tmp_path, [row(value=0.5)])
    head, _, rows = path.read_text().partition("\n")
    path.write_text(f"{head}\n{rows.replace(good, bad, 1)}")
    with pytest.raises(BadInput, match="damaged"):
        read_results(path)


def test_a_missing_or_foreign_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"results\.csv"):
        read_results(tmp_path)
    (tmp_path / "results.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadInput, match="columns"):
        read_results(tmp_path)


@pytest.mark.parametrize("bad", ["1.5", "inf", "9" * 40, "9.3e18", "1e400", "18446744073709551615"])
@pytest.mark.parametrize("name", ["train_seed", "n"])
def test_a_whole_number_that_is_none_or_too_large_is_damage(tmp_path: Path, name: str, bad: str) -> None:
    path = write_results(tmp_path, [row(**{name: 77})])
    path.write_text(path.read_text().replace(",77,", f",{bad},"))
    with pytest.raises(BadInput, match=f"damaged \\({name} has a number that is not whole, or too large\\)"):
        read_results(path)


def test_a_table_that_may_not_be_read_is_one_line(tmp_path: Path, forbid: Callable[[Path], None]) -> None:
    path = write_results(tmp_path, [row()])
    forbid(path)
    for given in (path, tmp_path):
        with pytest.raises(BadInput, match=r"results=.*Permission denied"):
            read_results(given)
