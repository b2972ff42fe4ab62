"""Pruning, dampening, FUSED and training the last layers through the whole of a group: kinds of requests, resume."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pandas as pd
import pytest
from in_process import InProcessGrid, Killed, kill_at, run_group

from flower_apps.settings import GroupSettings
from strategies.registry import METHODS

NAMES = ("prune", "ssd", "lfssd", "cf-k", "eu-k", "fused")
REQUESTS = ("class:3>client:site-1", "sample:0.2")
SMALL = {
    "name": "methods-b",
    "dataset": "digits",
    "cap": 14,
    "split": "dirichlet",
    "sites": 3,
    "alpha": 2.0,
    "rounds": 2,
    "local-epochs": 1,
    "batch-size": 16,
    "lr": 0.05,
    "requests": ";".join(REQUESTS),
    "methods": ",".join(NAMES),
    "preset": "safe",
    "unlearn-epochs": 2,
    "recovery-rounds": 1,
    "recovery-epochs": 1,
    "device": "cpu",
}
METRICS = ("forget_accuracy", "retain_accuracy", "test_accuracy", "retrain_gap_l2", "param_norm")


def small(**changes: object) -> GroupSettings:
    return GroupSettings.parse({**SMALL, **{key.replace("_", "-"): value for key, value in changes.items()}})


def results(out: Path) -> pd.DataFrame:
    return pd.read_csv(out / "results.csv", keep_default_na=False)


def trained(grid: InProcessGrid) -> int:
    return sum(count for kind, count in grid.sent.items() if kind.startswith("train."))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    home, out = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("run")
    run_group(small(), home, out)
    return home, results(out)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["class:3", "class:3>client:site-1", "sample:0.2"])
def test_every_request_a_method_declares_is_scored_and_finite(
    done: tuple[Path, pd.DataFrame], name: str, text: str
) -> None:
    table = done[1]
    ours = table[(table["method"] == name) & (table["request"] == text) & table["metric"].isin(METRICS)]
    steps = {step.partition(":")[0] for step in text.split(">")}
    if not steps <= set(METHODS.get(name).granularities):
        assert set(ours["status"]) == {"not_applicable"} and set(ours["value"]) == {""}
        return
    assert len(ours) == 2 * len(METRICS) and set(ours["status"]) <= {"ok", "diverged"}
    assert all(math.isfinite(float(value)) for value in ours[ours["status"] == "ok"]["value"])
    assert (ours["status"] == "ok").any()


def test_a_cached_run_sends_nothing_to_train(done: tuple[Path, pd.DataFrame], tmp_path: Path) -> None:
    grid = run_group(small(requests="class:3"), done[0], tmp_path)
    assert trained(grid) == 0 and grid.sent["evaluate.scorecard"] == 0


def test_a_killed_run_of_fused_resumes_to_the_same_results(done: tuple[Path, pd.DataFrame], tmp_path: Path) -> None:
    own = {
        "requests": "class:3",
        "methods": "fused",
        "recovery_rounds": 3,
        "overrides": '{"fused": {"adapter": "lora", "rank": 4}}',
    }
    home, killed = tmp_path / "home", tmp_path / "killed"
    shutil.copytree(done[0], home)
    with pytest.raises(Killed):
        run_group(small(**own), home, killed, kill_at("train.adapt", 5))
    grid = run_group(small(**own), home, killed)
    assert 0 < grid.sent["train.adapt"] < 9, "the rounds before were not computed again"
    run_group(small(**own), done[0], tmp_path / "whole")
    tables = [
        t[~t["metric"].str.contains("seconds|speedup")].reset_index(drop=True)
        for t in map(results, (tmp_path / "whole", killed))
    ]
    pd.testing.assert_frame_equal(*tables)
