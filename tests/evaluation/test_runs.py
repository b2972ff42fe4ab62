"""Reading a run folder back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluation.runs import open_run, read_record
from partitions.errors import BadInput
from strategies.history import HistoryWriter, RoundRecord, SiteRecord
from unlearning.state import update_of

CELL = {"cell": "c", "method": "ga", "preset": "", "request": "class:1", "train_seed": 0, "unlearn_seed": 0}
CELL |= {"checkpoints": {}}


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
    cell = CELL
    for name, cells in {"2025-old": [cell], "2026-new": [cell], "2027-refused": []}.items():
        (runs / name).mkdir(parents=True)
        (runs / name / "run.json").write_text(json.dumps({"created": 0.0, "cells": cells}))
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
    with pytest.raises(BadInput, match=r"cell=.c9.: allowed is one of c1, "):
        open_run(folder).history("c9")
    with pytest.raises(BadInput, match="a run folder"):
        open_run(folder.parent)


@pytest.mark.parametrize(
    ("change", "at_fault"),
    [
        ({"created": "yesterday"}, "created"),
        ({"created": True}, "created"),
        ({"created": 1e300}, "created"),
        ({"created": -1e18}, "created"),
        ({"created": float("inf")}, "created"),
        ({"created": float("nan")}, "created"),
        ({"created": 10**400}, ""),
        ({"created": None}, "created"),
        ({"environment": [1]}, "environment"),
        ({"environment": {"libraries": 3}}, "environment.libraries"),
        ({"environment": {"memory_bytes": 10**400}}, "environment.memory_bytes"),
        ({"groups": {"g": 1}}, "groups.g"),
        ({"groups": {"g": {"lr": [1]}}}, "groups.g.lr"),
        ({"cells": None}, "cells"),
        ({"cells": [3]}, "cells.0"),
        ({"cells": [{"trained": 5}]}, "cells.0.cell"),
        ({"cells": [CELL | {"checkpoints": 3}]}, "cells.0.checkpoints"),
        ({"cells": [CELL | {"checkpoints": {"trained": 5}}]}, "cells.0.checkpoints.trained"),
        ({"cells": [CELL | {"settings": [1]}]}, "cells.0.settings"),
        ({"cells": [CELL | {"train_seed": 10**30}]}, "cells.0.train_seed"),
        ({"cells": [CELL | {"difficulty": {"share": 1}}]}, "cells.0.difficulty"),
        ({"cells": [{name: value for name, value in CELL.items() if name != "preset"}]}, "cells.0.preset"),
        ({"cells": [{name: value for name, value in CELL.items() if name != "train_seed"}]}, "cells.0.train_seed"),
        ({"more": "a\ud800"}, "lone surrogates"),
    ],
)
def test_a_record_of_the_wrong_shape_is_damaged_and_says_where(
    tmp_path: Path, change: dict[str, Any], at_fault: str
) -> None:
    whole = {"created": 0.0, "environment": {}, "groups": {}, "cells": [CELL]}
    (tmp_path / "run.json").write_text(json.dumps(whole))
    assert read_record(tmp_path)["cells"][0].items() >= CELL.items()
    (tmp_path / "run.json").write_text(json.dumps(whole | change))
    with pytest.raises(BadInput, match="it is damaged") as raised:
        read_record(tmp_path)
    assert f"({at_fault}" in raised.value.remedy or f" {at_fault}" in raised.value.remedy
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"created": "\xff"}', b'{"created": 1' + b"0" * 5000 + b"}"])
def test_what_is_no_json_object_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(BadInput, match="it is damaged"):
        read_record(tmp_path)


@pytest.mark.parametrize("depth", [20, 900, 200_000])
def test_a_record_that_is_nested_too_deeply_is_damaged(tmp_path: Path, depth: int) -> None:
    (tmp_path / "run.json").write_text('{"created": 1, "cells": [], "more": ' + "[" * depth + "]" * depth + "}")
    with pytest.raises(BadInput, match="nested too deeply"):
        read_record(tmp_path)


def test_a_damaged_record_beside_it_does_not_hide_the_latest_run(tmp_path: Path) -> None:
    for name, text in {"1": json.dumps({"created": 0.0, "cells": [CELL]}), "2": "[" * 200_000, "3": "{"}.items():
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text(text)
    assert open_run("latest", tmp_path).name == "1"


def test_a_run_that_may_not_be_read_is_one_line(folder: Path, forbid: Callable[[Path], None]) -> None:
    forbid(folder)
    run = open_run(folder)
    for what in ("manifest", "results", "curves"):
        with pytest.raises(BadInput, match=r"Permission denied.*see that you may read it"):
            getattr(run, what)


def test_a_name_that_no_folder_can_have_is_no_run(tmp_path: Path) -> None:
    for name in ("x" * 5000, "\0"):
        with pytest.raises(BadInput, match="a run folder or a name"):
            open_run(name, tmp_path)


def test_rounds_that_may_not_be_read_are_left_out(folder: Path, forbid: Callable[[Path], None]) -> None:
    assert len(open_run(folder).rounds) == 2
    forbid(folder.parent / "stages")
    assert open_run(folder).rounds.empty
