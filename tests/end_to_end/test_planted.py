"""A backdoor through a whole group: the federation learns the trigger, gold does not; every mistake is one line."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from in_process import InProcessGrid, read_group, run_group

from flower_apps import preflight
from flower_apps.settings import GroupSettings
from partitions.errors import BadInput

PLANTED = {
    "name": "planted",
    "dataset": "digits",
    "cap": 60,
    "split": "iid",
    "sites": 2,
    "rounds": 4,
    "local-epochs": 3,
    "batch-size": 16,
    "lr": 0.05,
    "momentum": 0.5,
    "requests": "client:site-1",
    "methods": "fedquit",
    "unlearn-epochs": 1,
    "recovery-rounds": 1,
    "recovery-epochs": 1,
    "device": "cpu",
    "backdoor-site": "site-1",
    "backdoor-target": 3,
}


def planted(**changes: object) -> GroupSettings:
    return GroupSettings.parse({**PLANTED, **{key.replace("_", "-"): value for key, value in changes.items()}})


def asr(out: Path, metric: str = "backdoor_asr") -> pd.Series:
    table = pd.read_csv(out / "results.csv")
    return table[table["metric"] == metric].set_index(["method", "checkpoint"])["value"]


def trained(grid: InProcessGrid) -> int:
    return sum(count for kind, count in grid.sent.items() if kind.startswith("train."))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    home, out = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("run")
    run_group(planted(), home, out)
    return home, out


def test_the_original_obeys_the_trigger_and_gold_does_not(done: tuple[Path, Path]) -> None:
    rates = asr(done[1])
    assert rates["original", "trained"] > 0.8
    assert rates["retrain", "unlearned"] < 0.2
    assert rates.notna().all()
    difference = asr(done[1], "delta_backdoor_asr")["original", "trained"]
    assert difference == pytest.approx(rates["original", "trained"] - rates["retrain", "unlearned"])
    assert asr(done[1], "backdoor_clean_accuracy")["original", "trained"] > 0.8


def test_it_comes_from_the_cache_whatever_the_number_of_workers(done: tuple[Path, Path], tmp_path: Path) -> None:
    home, out = done
    grid = run_group(planted(workers=2), home, tmp_path / "again")
    assert trained(grid) == 0
    assert grid.sent["evaluate.backdoor"] == 0
    read_group(planted(), home, tmp_path / "read")
    for name in ("again", "read"):
        assert (tmp_path / name / "results.csv").read_bytes() == (out / "results.csv").read_bytes()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"backdoor_site": "site-2"}, "backdoor-site='site-2'"),
        ({"backdoor_target": 10}, "backdoor-target=10: allowed is a class index, 0 to 9"),
        ({"backdoor_size": 9}, "backdoor-size=9: allowed is 1 to 8 pixels"),
        ({"backdoor_fraction": 0}, "backdoor-fraction=0: allowed is"),
        ({"backdoor_fraction": 1.1}, "backdoor-fraction=1.1: allowed is"),
        ({"backdoor_target": -1}, "backdoor-target=-1: allowed is"),
        ({"backdoor_seed": -2}, "backdoor-seed=-2: allowed is"),
    ],
)
def test_a_mistake_is_named_in_one_line_before_anything_starts(
    done: tuple[Path, Path], tmp_path: Path, changes: dict[str, object], named: str
) -> None:
    with pytest.raises(BadInput, match=named) as caught:
        read_group(planted(**changes), done[0], tmp_path)
    assert "\n" not in str(caught.value)


def test_a_task_without_class_logits_has_no_class_to_plant(monkeypatch: pytest.MonkeyPatch) -> None:
    from clients.catalogue import TASKS

    monkeypatch.setattr(TASKS.get("classification"), "has_logits", False, raising=False)
    with pytest.raises(BadInput, match=r"backdoor-site='site-1': allowed is empty: .*no class logits"):
        preflight.check_groups([planted()])
