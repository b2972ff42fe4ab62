"""Reading a run folder back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evaluation.runs import open_run
from partitions.errors import BadInput
from strategies.history import HistoryWriter, RoundRecord, SiteRecord
from unlearning.state import update_of


@pytest.fixture
def folder(tmp_path: Path, make_state) -> Path:
    """A run of two cells, which share an original whose two rounds were kept; gold's were not."""
    start, end = make_state(0.0), make_state(1.0)
    writer = HistoryWriter(tmp_path / "stages" / "train" / "history")
    for round_ in (1, 2):
        record = RoundRecord(
            round=round_, lr=0.1, seconds=1.0, sites={"site-0": SiteRecord(weight=1.0, num_examples=7)}
        )
        writer.write(record, start, end, {"site-0": update_of(end, start)})
    common = {"preset": "", "train_seed": 0, "unlearn_seed": 0, "request": "client:site-1"}
    trained, retrained = (str(tmp_path / "stages" / name / "model.safetensors") for name in ("train", "retrain"))
    cells = [
        {"cell": "c1", "method": "original", "checkpoints": {"trained": trained}} | common,
        {"cell": "c2", "method": "original", "checkpoints": {"trained": trained}} | common | {"request": "class:1"},
        {"cell": "c3", "method": "retrain", "checkpoints": {"unlearned": retrained}} | common,
    ]
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"created": 0.0, "groups": {"g": {"dataset": "digits"}}, "cells": cells}))
    return run


def test_a_run_tells_what_was_asked_and_where_every_checkpoint_lies(folder: Path) -> None:
    run = open_run(folder)
    assert run.manifest["groups"]["g"]["dataset"] == "digits"
    assert list(run.cells["checkpoint"]) == ["trained", "trained", "unlearned"]


def test_the_rounds_of_a_shared_training_come_once(folder: Path) -> None:
    rounds = open_run(folder).rounds
    assert list(rounds["round"]) == [1, 2]
    assert list(rounds["method"]) == ["original", "original"]
    assert list(rounds["num_examples"]) == [7, 7]


def test_the_history_of_a_checkpoint_gives_states_and_updates(folder: Path) -> None:
    history = open_run(folder).history("c1")
    assert history.last_complete_round == 2
    assert history.update(2, "site-0").params["layer0.weight"].item() == 1.0


def test_rounds_that_were_not_kept_are_no_rounds(folder: Path) -> None:
    assert open_run(folder).history("c3", "unlearned").last_complete_round == 0


def test_a_run_is_found_by_path_name_or_as_the_latest_with_a_finished_cell(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    cell = {"cell": "c", "method": "ga", "checkpoints": {}}
    for name, cells in {"2025-old": [cell], "2026-new": [cell], "2027-refused": []}.items():
        (runs / name).mkdir(parents=True)
        (runs / name / "run.json").write_text(json.dumps({"cells": cells}))
    assert open_run("latest", tmp_path).path.name == "2026-new"
    assert open_run("2025-old", tmp_path).path.parent == runs
    assert open_run(runs / "2025-old").path.name == "2025-old"
    with pytest.raises(BadInput, match="newest: 2027-refused, 2026-new"):
        open_run("none", tmp_path)
    with pytest.raises(BadInput, match="and there is none"):
        open_run("latest", tmp_path / "elsewhere")


def test_the_home_is_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LETHE_HOME", str(tmp_path))
    with pytest.raises(BadInput, match=str(tmp_path)):
        open_run("latest")


def test_unknown_cells_and_folders_are_named(folder: Path) -> None:
    with pytest.raises(BadInput, match="c1 trained"):
        open_run(folder).history("c9")
    with pytest.raises(BadInput, match="a run folder"):
        open_run(folder.parent)
