"""FedCARE, BFU and UNSIR in whole groups: every granularity, kill and resume, and the cache. In process."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from in_process import InProcessGrid, Killed, kill_at, run_group

from flower_apps.settings import GroupSettings

SMALL = {
    "name": "small",
    "dataset": "digits",
    "cap": 12,
    "split": "dirichlet",
    "sites": 3,
    "alpha": 1.0,
    "rounds": 2,
    "local-epochs": 1,
    "batch-size": 16,
    "lr": 0.05,
    "methods": "fedcare,bfu,unsir",
    "preset": "safe",
    "unlearn-epochs": 2,
    "recovery-rounds": 1,
    "recovery-epochs": 1,
    "device": "cpu",
    "overrides": '{"fedcare": {"images-per-class": 2, "image-steps": 5}, "unsir": {"noise-steps": 5}}',
}
REQUESTS = "client:site-1;class:3;sample:0.2"
SERVER_GRAD = '{"fedcare": {"ref": "server-grad"}}'


def small(**changes: object) -> GroupSettings:
    changed = {key.replace("_", "-"): value for key, value in changes.items()}
    return GroupSettings.parse({**SMALL, "requests": REQUESTS, **changed})


def results(out: Path) -> pd.DataFrame:
    return pd.read_csv(out / "results.csv", keep_default_na=False)


def trained(grid: InProcessGrid) -> int:
    return sum(count for kind, count in grid.sent.items() if kind.startswith("train."))


def weights(home: Path, kind: str) -> set[str]:
    return {json.loads(p.read_text())["sha256"] for p in (home / "stages" / kind).glob("*/stage.json")}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, InProcessGrid]:
    home, out = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("run")
    return home, out, run_group(small(), home, out)


@pytest.mark.parametrize("method", ["fedcare", "bfu", "unsir"])
@pytest.mark.parametrize("request_", REQUESTS.split(";"))
def test_each_method_forgets_at_each_granularity_it_declares(
    done: tuple[Path, Path, InProcessGrid], method: str, request_: str
) -> None:
    table = results(done[1])
    ours = table[(table["method"] == method) & (table["request"] == request_)]
    rows = ours[ours["metric"].isin(["test_accuracy", "forget_accuracy", "retrain_gap_l2", "param_norm"])]
    if method == "unsir" and request_.startswith("client"):
        assert set(rows["status"]) == {"not_applicable"} and rows["reason"].str.contains("keeps none").all()
        return
    assert set(rows["status"]) <= {"ok", "diverged"}
    numbers = pd.to_numeric(rows[rows["value"] != ""]["value"])
    assert len(numbers) >= 4 and numbers.abs().lt(float("inf")).all()
    gaps = rows[(rows["metric"] == "retrain_gap_l2") & (rows["value"] != "")]
    assert set(gaps["checkpoint"]) >= {"unlearned"} and pd.to_numeric(gaps["value"]).gt(0).all()


def test_sites_were_asked_what_the_methods_say(done: tuple[Path, Path, InProcessGrid]) -> None:
    sent = done[2].sent
    for op in ("ascend_beside", "unlearn_bayesian", "unsir_class", "unsir_instance"):
        assert sent[f"train.{op}"] > 0, op


def test_a_second_run_sends_nothing(done: tuple[Path, Path, InProcessGrid], tmp_path: Path) -> None:
    home, out, _ = done
    grid = run_group(small(), home, tmp_path)
    assert trained(grid) == 0 and grid.sent["evaluate.scorecard"] == 0
    assert (tmp_path / "results.csv").read_bytes() == (out / "results.csv").read_bytes()


def test_fedcare_with_a_gradient_from_the_server_resumes_to_the_same_bits(
    done: tuple[Path, Path, InProcessGrid], tmp_path: Path
) -> None:
    settings = small(methods="fedcare", requests="client:site-1", overrides=SERVER_GRAD)
    run_group(settings, done[0], tmp_path / "whole")
    killed = tmp_path / "home"
    with pytest.raises(Killed):
        run_group(settings, killed, tmp_path / "run", kill_at("train.ascend_beside", 2))
    grid = run_group(settings, killed, tmp_path / "run")
    assert grid.sent["train.retained_gradient"] == 0, "both gradients were there already"
    assert grid.sent["train.ascend_beside"] == 1
    for stage in ("unlearn", "recover"):
        found = weights(killed, stage)
        assert found and found <= weights(done[0], stage)
