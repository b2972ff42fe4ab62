"""Facts about homes that share a depot: whole groups, in process, without Flower's transport."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from flaky import Flaky
from in_process import InProcessGrid, run_group

from flower_apps import cli
from flower_apps.settings import GroupSettings
from partitions.depot import open_depot

SMALL = {
    "name": "small",
    "dataset": "digits",
    "cap": 12,
    "split": "iid",
    "sites": 2,
    "rounds": 1,
    "local-epochs": 1,
    "requests": "client:site-1",
    "methods": "ga",
    "preset": "safe",
    "unlearn-epochs": 1,
    "recovery-rounds": 1,
    "recovery-epochs": 1,
    "device": "cpu",
}
MEASURED = "seconds|speedup|bytes_per_second"
URL = "flaky://depot"


def small(**changes: object) -> GroupSettings:
    return GroupSettings.parse({**SMALL, **{key.replace("_", "-"): value for key, value in changes.items()}})


def worked(grid: InProcessGrid) -> set[str]:
    """Return which operations sites were asked for, beside questions."""
    return {kind for kind in grid.sent if not kind.startswith("query.")}


def computed(out: Path) -> pd.DataFrame:
    """Return the results but for those that a clock gave."""
    table = pd.read_csv(out / "results.csv", keep_default_na=False)
    return table[~table["metric"].str.contains(MEASURED)].reset_index(drop=True)


@pytest.fixture(scope="module", autouse=True)
def depot() -> Iterator[None]:
    Flaky.renew()
    open_depot.cache_clear()
    yield
    Flaky.renew()
    open_depot.cache_clear()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, depot: None) -> tuple[Path, Path]:
    home, out = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("run")
    run_group(small(depot=URL), home, out)
    return home, out


def test_a_second_home_computes_nothing_and_has_the_same_results(done: tuple[Path, Path], tmp_path: Path) -> None:
    grid = run_group(small(depot=URL), tmp_path / "home", tmp_path / "out")
    assert worked(grid) == set()
    for name in ("results.csv", "curves.csv"):
        assert (tmp_path / "out" / name).read_bytes() == (done[1] / name).read_bytes()
    for kind in ("train", "retrain", "unlearn", "recover", "score"):
        mine, theirs = ({p.name for p in (home / "stages" / kind).iterdir()} for home in (done[0], tmp_path / "home"))
        assert mine == theirs


def test_with_and_without_a_depot_the_results_are_the_same(done: tuple[Path, Path], tmp_path: Path) -> None:
    grid = run_group(small(), tmp_path / "home", tmp_path / "out")
    assert "train.train" in worked(grid)
    assert len(computed(tmp_path / "out")) > 100
    pd.testing.assert_frame_equal(computed(tmp_path / "out"), computed(done[1]))


def test_a_method_of_another_home_replays_the_rounds_that_came_from_the_depot(
    done: tuple[Path, Path], tmp_path: Path
) -> None:
    settings = small(depot=URL, methods="fedrecovery")
    grid = run_group(settings, tmp_path / "home", tmp_path / "out")
    assert "train.train" not in worked(grid)
    table = pd.read_csv(tmp_path / "out" / "results.csv")
    assert (table[table["method"] == "fedrecovery"]["status"] == "ok").any()


def test_a_depot_that_fails_in_the_middle_changes_no_result(done: tuple[Path, Path], tmp_path: Path) -> None:
    Flaky.fail("get_file", 4)
    Flaky.failing["put_file"] = 0
    try:
        run_group(small(depot=URL), tmp_path / "home", tmp_path / "out")
    finally:
        Flaky.mend()
    pd.testing.assert_frame_equal(computed(tmp_path / "out"), computed(done[1]))
    notes = [json.loads(line).get("text", "") for line in (tmp_path / "out" / "events.jsonl").read_text().splitlines()]
    assert any("going on with what is here" in text for text in notes)


def test_a_run_says_nowhere_how_it_is_let_in(done: tuple[Path, Path]) -> None:
    told = "".join(path.read_text() for path in done[1].rglob("*") if path.suffix in (".json", ".jsonl", ".csv"))
    assert URL in told and not re.search(r"://[^/\s]*:[^/\s]*@", told)


def test_the_command_runs_from_the_depot_alone(
    done: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "experiments.yaml"
    manifest.write_text(json.dumps({"small": {key: value for key, value in SMALL.items() if key != "name"}}))
    monkeypatch.setattr("flower_apps.command_run.Lanes", None)  # nothing is missing: Flower is not started
    out = tmp_path / "out"
    code = cli.main(f"run --manifest {manifest} --depot {URL} --home {tmp_path / 'home'} --out {out}".split())
    assert code == 0, capsys.readouterr().err
    assert (out / "results.csv").read_bytes() == (done[1] / "results.csv").read_bytes()
    assert f"depot {URL}: " in capsys.readouterr().err
