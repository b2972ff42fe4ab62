"""Features in a whole group: measured once, compared with gold's, off by default, and refused without ado."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from in_process import read_group, run_group

from evaluation import features
from evaluation.curves import read_curves
from flower_apps.settings import GroupSettings
from flower_apps.workshop import MissingStage
from partitions.errors import BadInput, RunFailed

SMALL = {
    "name": "small",
    "dataset": "digits",
    "cap": 40,
    "split": "iid",
    "sites": 3,
    "rounds": 2,
    "local-epochs": 1,
    "lr": 0.05,
    "requests": "class:3",
    "methods": "ga",
    "preset": "safe",
    "unlearn-epochs": 1,
    "recovery-rounds": 1,
    "recovery-epochs": 1,
    "device": "cpu",
}


def small(**changes: object) -> GroupSettings:
    return GroupSettings.parse({**SMALL, **{key.replace("_", "-"): value for key, value in changes.items()}})


def told(out: Path) -> pd.DataFrame:
    table = pd.read_csv(out / "results.csv", keep_default_na=False)
    return table[table["metric"].str.contains("feature_")]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    home, out = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("run")
    run_group(small(features=8), home, out)
    return home, out


def test_every_model_is_measured_at_every_checkpoint(done: tuple[Path, Path]) -> None:
    table = told(done[1])
    assert set(table["status"]) <= {"ok", "underpowered"}
    found = set(zip(table["method"], table["checkpoint"], strict=True))
    arms = ("retrain", "fine-tuning", "ga")
    assert found == {("original", "trained")} | {(arm, c) for arm in arms for c in ("unlearned", "recovered")}
    at = table.set_index(["method", "checkpoint", "metric"])["value"].astype(float)
    assert at["retrain", "recovered", "feature_cka_gold"] == 1.0
    assert at["original", "trained", "feature_cka_gold"] < 1.0
    assert at["fine-tuning", "unlearned", "feature_silhouette"] == at["original", "trained", "feature_silhouette"]


def test_no_site_is_asked_for_more_than_the_setting_says(done: tuple[Path, Path]) -> None:
    stored = [pd.read_parquet(path) for path in (done[0] / "stages" / "score").glob("*/features.parquet")]
    assert len(stored) == 6  # the control arm's unlearned model is the original
    for table in stored:
        assert table.groupby(["site", "selected"]).size().max() <= 8
        assert table["record"].tolist() == stored[0]["record"].tolist()
        assert set(table["split"]) == {"holdout"}


def test_the_map_is_a_curve_of_every_model(done: tuple[Path, Path]) -> None:
    points = read_curves(done[1]).query("kind == 'tsne'")
    assert points.groupby(["method", "checkpoint"]).size().nunique() == 1
    assert set(points["series"]) == {"forget", "retain"}
    assert set(points[points["series"] == "forget"]["label"]) == {"3"}


def test_from_the_cache_nothing_is_mapped_again(
    done: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapper: Callable[[str], None] = lambda *_: pytest.fail("t-SNE ran")  # noqa: E731
    monkeypatch.setattr(features, "tsne", mapper)
    read_group(small(features=8, evaluate_seeds="0,1"), done[0], tmp_path)
    assert len(read_curves(tmp_path).query("kind == 'tsne'")) == 2 * len(read_curves(done[1]).query("kind == 'tsne'"))


def test_off_asks_nobody_and_another_number_is_another_measurement(done: tuple[Path, Path], tmp_path: Path) -> None:
    assert not run_group(small(), done[0], tmp_path).sent["evaluate.features"]
    assert told(tmp_path).empty
    with pytest.raises(MissingStage, match="features"):
        read_group(small(features=9), done[0], tmp_path)


def test_a_site_that_refuses_is_not_asked_and_the_run_goes_on(done: tuple[Path, Path], tmp_path: Path) -> None:
    grid = run_group(small(features=5), done[0], tmp_path, refuse={1: "features"})
    assert not grid.sent["evaluate.features"]
    assert set(told(tmp_path)["reason"]) == {"site site-1 refuses features"}
    assert set(told(tmp_path)["status"]) == {"undefined"}
    again = run_group(small(features=5), done[0], tmp_path)
    assert again.sent["evaluate.features"] == 6 * 3, "a refusal is not kept: the site may change its mind"
    assert set(told(tmp_path)["status"]) <= {"ok", "underpowered"}


def test_a_site_that_refuses_what_a_run_cannot_do_without_ends_it_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"^site-2 raised in round 1 of original: Refused: site-2 refuses train \("):
        run_group(small(), tmp_path / "home", tmp_path / "out", refuse={2: "train"})


def test_a_policy_that_names_nothing_real_ends_the_run_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"raised: BadInput: refuse='featurs'.*did you mean 'features'"):
        run_group(small(), tmp_path / "home", tmp_path / "out", refuse={2: "featurs"})


@pytest.mark.parametrize("value", [-1, "many"])
def test_the_setting_is_checked(value: object) -> None:
    with pytest.raises(BadInput, match="features"):
        small(features=value)
