"""Every small twin of a study runs, in process, on a few of its records and with a round each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from in_process import run_group

from flower_apps.cells import cells_of
from flower_apps.manifest import load_manifest

SHIPPED = load_manifest(Path(__file__).resolve().parents[2] / "experiments.yaml")
QUICK = ("cap=40", "rounds=1", "local-epochs=1", "unlearn-epochs=1", "train-seed=0", "device=cpu", "shadows=0")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED.choose([], ["small"]))
def test_a_small_twin_runs_and_every_cell_is_there(name: str, home: Path, tmp_path: Path) -> None:
    group = SHIPPED.groups([name], QUICK)[0]
    run_group(group, home, tmp_path)
    cells = json.loads((tmp_path / "run.json").read_text())["cells"]
    assert {(c["request"], c["method"], c["unlearn_seed"]) for c in cells} == set(cells_of(group))
    assert {c["status"] for c in cells} <= {"ok", "diverged"}
