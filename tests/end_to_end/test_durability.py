"""Durability through the whole of a group: relearning curves of every arm and of gold, cached, resumed, extended."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from in_process import InProcessGrid, Killed, kill_at, read_group, run_group

from flower_apps.settings import GroupSettings
from strategies.history import History

SMALL = {
    "name": "small",
    "dataset": "digits",
    "cap": 30,
    "split": "dirichlet",
    "sites": 3,
    "alpha": 1.0,
    "rounds": 2,
    "local-epochs": 1,
    "batch-size": 16,
    "lr": 0.05,
    "requests": "class:3",
    "methods": "",
    "preset": "safe",
    "unlearn-epochs": 1,
    "recovery-rounds": 1,
    "recovery-epochs": 1,
    "relearn-epochs": 2,
    "device": "cpu",
}
ARMS = ("retrain", "fine-tuning")


def small(**changes: object) -> GroupSettings:
    return GroupSettings.parse({**SMALL, **{key.replace("_", "-"): value for key, value in changes.items()}})


def results(out: Path) -> pd.DataFrame:
    table = pd.read_csv(out / "results.csv", keep_default_na=False, dtype=str)
    return table[~table["metric"].str.contains("seconds|speedup")].reset_index(drop=True)


def stages(home: Path, kind: str) -> dict[str, tuple[Path, dict[str, object]]]:
    found = {path.parent: json.loads(path.read_text()) for path in (home / "stages" / kind).glob("*/stage.json")}
    return {str(record["key"]): (folder, record) for folder, record in found.items()}


def curve(home: Path) -> list[str]:
    """Return the hashes of the models after every epoch of every arm."""
    histories = [History(folder / "history") for folder, _ in stages(home, "relearn").values()]
    return sorted(history.after(epoch).sha256() for history in histories for epoch in history.rounds)


def sent(grid: InProcessGrid) -> tuple[int, int]:
    return grid.sent["train.relearn"], grid.sent["evaluate.forgotten"]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    home, out = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("run")
    run_group(small(), home, out)
    return home, out


def test_every_recovered_model_has_a_curve_and_no_other(done: tuple[Path, Path]) -> None:
    table = results(done[1])
    ours = table[table["metric"].str.contains("relearn")]
    assert set(zip(ours["method"], ours["checkpoint"], strict=True)) == {(arm, "recovered") for arm in ARMS}
    assert set(ours["status"]) == {"ok"}
    for arm in ARMS:
        metrics = set(ours.loc[ours["method"] == arm, "metric"])
        assert {f"relearn_forget_train_accuracy_{epoch}" for epoch in (0, 1, 2)} <= metrics
        assert len(metrics) == 2 * (3 + 3 + 1)
    points = pd.read_csv(done[1] / "curves.csv")
    assert len(points[points["kind"] == "relearn"]) == len(ARMS) * 2 * 3


def test_epoch_zero_is_the_models_own_accuracy(done: tuple[Path, Path]) -> None:
    values = results(done[1]).set_index(["method", "checkpoint", "metric"])
    for arm in ARMS:
        for name in ("forget_accuracy", "forget_train_accuracy", "delta_forget_accuracy"):
            delta, plain = name.startswith("delta_"), name.removeprefix("delta_")
            relearnt = f"{'delta_' if delta else ''}relearn_{plain}_0"
            columns = ["value", "n", "ci_low", "ci_high"]
            assert values.loc[(arm, "recovered", relearnt), columns].tolist() == (
                values.loc[(arm, "recovered", name), columns].tolist()
            )


def test_relearning_learns_and_gold_is_at_no_distance_from_itself(done: tuple[Path, Path]) -> None:
    values = results(done[1]).set_index(["method", "checkpoint", "metric"])["value"]
    gold = [float(values["retrain", "recovered", f"relearn_forget_train_accuracy_{epoch}"]) for epoch in (0, 1, 2)]
    assert gold[0] < gold[2]
    for name in ("delta_relearn_forget_accuracy_2", "relearn_area_forget_train_accuracy"):
        assert float(values["retrain", "recovered", name]) == 0.0


def test_the_scored_model_is_the_one_that_did_not_relearn(done: tuple[Path, Path], tmp_path: Path) -> None:
    run_group(small(relearn_epochs=0), done[0], tmp_path)
    with_curves = results(done[1])
    without = with_curves[~with_curves["metric"].str.contains("relearn")].reset_index(drop=True)
    pd.testing.assert_frame_equal(results(tmp_path), without)
    assert not set(stages(done[0], "relearn")) & set(stages(done[0], "recover"))


def test_a_cached_curve_asks_nobody_and_needs_no_federation(done: tuple[Path, Path], tmp_path: Path) -> None:
    home, out = done
    assert sent(run_group(small(workers=4, jobs=2, timeout=99.0), home, tmp_path / "again")) == (0, 0)
    read_group(small(), home, tmp_path / "read")
    for other in ("again", "read"):
        assert (tmp_path / other / "results.csv").read_bytes() == (out / "results.csv").read_bytes()
        assert (tmp_path / other / "curves.csv").read_bytes() == (out / "curves.csv").read_bytes()


@pytest.mark.parametrize(("kind", "count"), [("train.relearn", 4), ("evaluate.forgotten", 4)])
def test_a_killed_run_goes_on_to_the_same_bits(done: tuple[Path, Path], tmp_path: Path, kind: str, count: int) -> None:
    home, out = tmp_path / "home", tmp_path / "run"
    with pytest.raises(Killed):
        run_group(small(), home, out, kill_at(kind, count))
    run_group(small(), home, out)
    assert curve(home) == [one for one in curve(done[0]) if one in set(curve(home))]
    pd.testing.assert_frame_equal(results(out), results(done[1]))


def test_a_method_that_diverged_before_recovery_has_golds_rows_without_values(
    done: tuple[Path, Path], tmp_path: Path
) -> None:
    run_group(small(methods="ga", overrides='{"ga": {"max-norm": 0}}', unlearn_epochs=30), done[0], tmp_path)
    table = results(tmp_path)
    ours = table[(table["method"] == "ga") & table["metric"].str.contains("relearn")]
    assert set(ours["status"]) == {"diverged"} and set(ours["value"]) == {""}
    assert len(ours) == len(table[(table["method"] == "retrain") & table["metric"].str.contains("relearn")])
