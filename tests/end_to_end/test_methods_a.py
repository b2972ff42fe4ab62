"""PGA, PUF, NoT, FedRecovery and FedDNI as whole groups on real digits: every granularity, mode, resume and cache."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import Message
from in_process import InProcessGrid, Killed, run_group

from evaluation.catalogue import METRICS as CATALOGUE
from flower_apps.settings import GroupSettings

METHODS = ("pga", "puf", "not", "fedrecovery", "feddni")
EVERYWHERE = ("pga", "puf", "not", "feddni")
FEW = ("param_norm", "retrain_gap_l2", "test_{metric}")
REQUESTS = ("client:site-1", "class:3", "sample:0.2")
SMALL = {
    "name": "methods-a",
    "dataset": "digits",
    "cap": 12,
    "split": "dirichlet",
    "sites": 3,
    "alpha": 1.0,
    "rounds": 2,
    "local-epochs": 1,
    "batch-size": 16,
    "lr": 0.05,
    "requests": ";".join(REQUESTS),
    "methods": ",".join(METHODS),
    "unlearn-epochs": 1,
    "recovery-rounds": 1,
    "recovery-epochs": 1,
    "device": "cpu",
}
OTHER_MODES = {
    "puf": {"mode": "regular"},
    "feddni": {"mode": "input"},
    "pga": {"rho": "auto", "early-stop": "distance"},
    "not": {"layer": "3"},
    "fedrecovery": {"noise": "dp", "sensitivity": 1e-4, "weights": "sum"},
}


def small(**changes: object) -> GroupSettings:
    return GroupSettings.parse({**SMALL, **{key.replace("_", "-"): value for key, value in changes.items()}})


def results(out: Path) -> pd.DataFrame:
    return pd.read_csv(out / "results.csv", keep_default_na=False)


def unlearned(home: Path) -> set[str]:
    return {json.loads(p.read_text())["sha256"] for p in (home / "stages" / "unlearn").glob("*/stage.json")}


def trained(grid: InProcessGrid) -> dict[str, int]:
    return {kind: count for kind, count in grid.sent.items() if kind.startswith("train.")}


def check(table: pd.DataFrame, method: str, request: str) -> None:
    """Say that a method did a request and that its model has scores."""
    ours = table[(table["method"] == method) & (table["request"] == request)]
    assert set(ours["checkpoint"]) == {"unlearned", "recovered"} and set(ours["status"]) <= {"ok", "diverged"}
    scored = ours[(ours["checkpoint"] == "unlearned") | (ours["status"] == "ok")]
    assert len(scored) >= len(FEW) and np.isfinite(pd.to_numeric(scored["value"])).all()


@pytest.fixture(scope="module", autouse=True)
def _few_metrics() -> Iterator[None]:
    """The panel takes ten times as long as the methods, and is not what is tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CATALOGUE, "names", lambda: list(FEW))
        yield


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, InProcessGrid]:
    home, out = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("run")
    return home, out, run_group(small(), home, out)


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("method", EVERYWHERE)
def test_a_method_does_each_granularity(done: tuple[Path, Path, InProcessGrid], method: str, request_: str) -> None:
    check(results(done[1]), method, request_)


def test_fedrecovery_does_client_requests_and_says_why_no_others(done: tuple[Path, Path, InProcessGrid]) -> None:
    table = results(done[1])
    check(table, "fedrecovery", "client:site-1")
    others = table[(table["method"] == "fedrecovery") & (table["request"] != "client:site-1")]
    assert set(others["status"]) == {"not_applicable"}
    assert others["reason"].str.contains("recorded round").all()


def test_the_methods_of_the_server_ask_no_site_and_the_others_their_own(
    done: tuple[Path, Path, InProcessGrid],
) -> None:
    assert set(trained(done[2])) == {"train.train", "train.recover", "train.ascend_in_ball", "train.pseudo_gradient"}


def test_a_second_run_trains_nothing(done: tuple[Path, Path, InProcessGrid], tmp_path: Path) -> None:
    grid = run_group(small(), done[0], tmp_path)
    assert trained(grid) == {}
    assert (tmp_path / "results.csv").read_bytes() == (done[1] / "results.csv").read_bytes()


def test_the_other_modes_work_too(done: tuple[Path, Path, InProcessGrid], tmp_path: Path) -> None:
    grid = run_group(small(overrides=json.dumps(OTHER_MODES), requests="client:site-1"), done[0], tmp_path)
    for method in METHODS:
        check(results(tmp_path), method, "client:site-1")
    assert {"train.diffuse", "train.ascend_in_ball", "train.pseudo_gradient"} < set(trained(grid))
    assert "train.train" not in trained(grid)


def test_sites_leave_one_after_the_other(done: tuple[Path, Path, InProcessGrid], tmp_path: Path) -> None:
    sequence = "client:site-1>client:site-0"
    run_group(small(requests=sequence), done[0], tmp_path)
    for method in METHODS:
        check(results(tmp_path), method, sequence)


def without_a_history(done: tuple[Path, Path, InProcessGrid]) -> GroupSettings:
    cells = json.loads((done[1] / "run.json").read_text())["cells"]
    path = next(cell["checkpoints"]["trained"] for cell in cells if cell["method"] == "original")
    return small(original=path, methods="pga", requests="client:site-1")


def test_a_killed_pga_of_two_rounds_resumes_to_the_same_bits(
    done: tuple[Path, Path, InProcessGrid], tmp_path: Path
) -> None:
    settings = without_a_history(done)
    run_group(settings, tmp_path / "whole", tmp_path / "whole-run")

    def kill(message: Message) -> None:
        if message.metadata.message_type == "train.ascend_in_ball":
            raise Killed

    with pytest.raises(Killed):
        run_group(settings, tmp_path / "home", tmp_path / "run", kill)
    grid = run_group(settings, tmp_path / "home", tmp_path / "run")
    assert unlearned(tmp_path / "home") == unlearned(tmp_path / "whole")
    assert trained(grid) == {"train.ascend_in_ball": 1, "train.recover": 2}, "the first round is not asked for again"
    check(results(tmp_path / "run"), "pga", "client:site-1")
