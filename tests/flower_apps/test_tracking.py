"""Facts about following a run in TensorBoard and MLflow, read back with their own readers."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from pathlib import Path

import pandas as pd
import pytest
from small_run import SmallRun
from typer.testing import CliRunner

from evaluation.results import read_results
from evaluation.runs import read_record
from flower_apps.cli import app
from flower_apps.preflight import check_groups
from flower_apps.settings import GroupSettings
from flower_apps.tracking import follow
from flower_apps.tracking.base import WRITERS, RunFacts
from flower_apps.tracking.feed import Feed
from partitions.errors import BadInput

STAGES = {"original": 3, "retrain": 3, "ga": 1, "fedquit": 1, "recover": 1}


@pytest.fixture
def run(small_run: SmallRun, tmp_path: Path) -> Path:
    """A copy of the run folder; the stages stay where they are."""
    return Path(shutil.copytree(small_run.path, tmp_path / "run"))


def track(run: Path, *names: str) -> list[str]:
    """Follow a finished run once, and return the notes."""
    notes: list[str] = []
    with follow.tracked(names, run, notes.append):
        pass
    return notes


def finite(run: Path) -> pd.DataFrame:
    table = read_results(run)
    return table[table["value"].notna() & (table["value"].abs() != float("inf"))]


# ---------------------------------------------------------------------- what there is to tell
def test_every_round_and_every_cell_is_told_once(run: Path) -> None:
    feed = Feed(run)
    points = feed.rounds()
    assert {point.stage for point in points} == {"train", "retrain", "unlearn", "recover"}
    original = [point for point in points if point.label == "original"]
    assert [point.round for point in original] == [1, 2, 3]
    assert all(len(point.key) == 24 for point in points)
    assert set(original[0].values) == {
        "loss",
        "metric",
        "seconds",
        "client_seconds",
        "examples",
        "bytes_down",
        "bytes_up",
    }
    kept, cells = feed.cells()
    assert kept == []  # the original's rounds are kept too, and the events have told of them
    assert {cell.method for cell in cells} == {"original", "retrain", "fine-tuning", "ga", "fedquit"}
    assert feed.rounds() == []
    assert feed.cells() == ([], [])


def test_rounds_that_the_cache_had_are_told_from_their_history(run: Path) -> None:
    events = Feed(run)
    told = [point for point in events.rounds() if point.label == "original"]
    shutil.rmtree(run / "events")
    kept, _ = Feed(run).cells()
    assert [(point.name, point.round) for point in kept] == [(point.name, point.round) for point in told]
    assert [point.values for point in kept] == [point.values for point in told]


def test_a_cell_is_told_again_when_its_results_change(run: Path) -> None:
    feed = Feed(run)
    feed.cells()
    table = (run / "results.csv").read_text()
    assert feed.cells() == ([], [])
    value = float(read_results(run).query("method == 'ga' and metric == 'test_accuracy'")["value"].iloc[0])
    (run / "results.csv").write_text(table.replace(f",test_accuracy,{value}", ",test_accuracy,0.125", 1))
    assert len(feed.cells()[1]) == 1


# ---------------------------------------------------------------------- TensorBoard
def read_scalars(folder: Path) -> dict[tuple[str, int], float]:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = accumulators.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    read.Reload()
    found = {}
    for tag in read.Tags()["scalars"]:
        for event in read.Scalars(tag):
            assert (tag, event.step) not in found, "a point that is there twice"
            found[tag, event.step] = event.value
    return found


def test_tensorboard_has_the_rounds_of_every_stage_and_the_panel_of_every_cell(run: Path) -> None:
    pytest.importorskip("tensorboard")
    assert track(run, "tensorboard") == []
    stages = sorted((run / "tensorboard" / "rounds").iterdir())
    assert (
        len(stages) == 1 + 1 + 2 + 4
    )  # original, gold, the step of both methods, and the recovery of these, gold and fine-tuning
    (original,) = [folder for folder in stages if folder.name.startswith("original-")]
    scalars = read_scalars(original)
    events = [json.loads(line) for file in (run / "events").glob("*.jsonl") for line in file.read_text().splitlines()]
    ends = [e for e in events if e["kind"] == "round-finished" and e["label"] == "original"]
    assert len(ends) == 3
    for event in ends:
        assert scalars["loss", event["round"]] == pytest.approx(event["loss"])
        assert scalars["seconds", event["round"]] == pytest.approx(event["seconds"])
        assert scalars["bytes_up", event["round"]] == event["bytes_up"] > 0
    rows = finite(run)
    for cell, own in rows.groupby("cell"):
        (folder,) = (run / "tensorboard" / "cells").glob(f"*-{cell}")
        found = read_scalars(folder)
        for row in own.to_dict("records"):
            value = found[f"{row['checkpoint']}/{row['metric']}", int(row["evaluate_seed"] or 0)]
            assert value == pytest.approx(row["value"], rel=1e-6)


def test_tensorboard_has_the_settings_of_a_cell_as_hyper_parameters(run: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from tensorboard.plugins.hparams import metadata

    track(run, "tensorboard")
    (folder,) = (run / "tensorboard" / "cells").glob("ga-*")
    read = accumulators.EventAccumulator(str(folder))
    read.Reload()
    content = read.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    given = metadata.parse_session_start_info_plugin_data(content).hparams
    assert given["lr"].number_value == 0.05
    assert given["method"].string_value == "ga"
    assert given["status"].string_value == "ok"
    assert any(name.startswith("ga.") for name in given)


def test_a_resumed_run_writes_no_point_of_tensorboard_twice(run: Path) -> None:
    pytest.importorskip("tensorboard")
    track(run, "tensorboard")
    before = {path: read_scalars(path) for path in (run / "tensorboard").glob("*/*")}
    (events,) = (run / "events").glob("*.jsonl")
    late = {"kind": "round-finished", "stage": "train", "label": "late", "round": 1, "time": 2.0, "seconds": 1.5}
    claimed = {"kind": "claimed", "stage": "train", "name": "late", "key": "d" * 24, "time": 1.0}
    events.write_text(events.read_text() + "".join(json.dumps(one) + "\n" for one in (claimed, late)))
    track(run, "tensorboard")
    after = {path: read_scalars(path) for path in (run / "tensorboard").glob("*/*")}
    assert after.pop(run / "tensorboard" / "rounds" / "late-dddddddd") == {("seconds", 1): 1.5}
    assert after == before


def test_a_cell_of_tensorboard_that_was_computed_again_is_replaced(run: Path) -> None:
    pytest.importorskip("tensorboard")
    track(run, "tensorboard")
    table = pd.read_csv(run / "results.csv", dtype=str, keep_default_na=False)
    chosen = (table["method"] == "ga") & (table["metric"] == "test_accuracy") & (table["checkpoint"] == "recovered")
    table.loc[chosen, "value"] = "0.125"
    table.to_csv(run / "results.csv", index=False, lineterminator="\n")
    track(run, "tensorboard")
    (folder,) = (run / "tensorboard" / "cells").glob("ga-*")
    assert read_scalars(folder)["recovered/test_accuracy", 0] == 0.125


# ---------------------------------------------------------------------- MLflow
def test_mlflow_has_one_run_with_a_child_a_cell_and_a_resume_adds_none(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    pytest.importorskip("alembic")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    record = read_record(run)
    record["cells"][-1]["status"] = "diverged"
    (run / "run.json").write_text(json.dumps(record))
    assert track(run, "mlflow") == []
    client = tracking.MlflowClient(tracking_uri=f"sqlite:///{run / 'mlruns' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("lethe").experiment_id

    def found() -> tuple[object, dict[str, object]]:
        (parent,) = client.search_runs([experiment], "tags.`lethe.kind` = 'run'")
        children = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")
        by_cell = {child.data.tags["lethe.cell"]: child for child in children}
        assert len(by_cell) == len(children)
        return parent, by_cell

    parent, children = found()
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["lethe.run_folder"] == str(run)
    assert parent.data.tags["lethe.commit"] == record["environment"]["commit"]
    assert set(children) == {cell["cell"] for cell in record["cells"]}
    assert children[record["cells"][-1]["cell"]].data.tags["lethe.status"] == "diverged"
    for cell, own in finite(run).groupby("cell"):
        child = children[cell]
        assert child.data.params["lr"] == "0.05"
        last = own[own["evaluate_seed"] == own["evaluate_seed"].max()]
        for row in last.to_dict("records"):
            assert child.data.metrics[f"{row['checkpoint']}/{row['metric']}"] == pytest.approx(row["value"])
    (original,) = [name for name in parent.data.metrics if name.startswith("original-") and name.endswith("/loss")]
    history = client.get_metric_history(parent.info.run_id, original)
    assert [metric.step for metric in history] == [1, 2, 3]

    assert track(run, "mlflow") == []
    again, same = found()
    assert again.info.run_id == parent.info.run_id
    assert {cell: child.info.run_id for cell, child in same.items()} == {
        cell: child.info.run_id for cell, child in children.items()
    }
    assert len(client.get_metric_history(parent.info.run_id, original)) == 3


# ---------------------------------------------------------------------- what can go wrong
class Failing:
    name, packages, requirement = "failing", (), ""

    def open(self, run: RunFacts) -> Failing:
        raise OSError("the server\nis on fire")


def test_a_writer_that_fails_is_one_note_and_the_others_go_on(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    known = WRITERS.get
    monkeypatch.setattr(WRITERS, "get", lambda name: Failing() if name == "failing" else known(name))
    monkeypatch.setattr(follow, "EVERY", 0.01)
    assert track(run, "failing", "tensorboard") == [
        "tracking with failing stopped, the run goes on: the server is on fire"
    ]
    assert any((run / "tensorboard" / "cells").iterdir())


def test_a_writer_that_is_stuck_does_not_hold_the_run_up(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looking, freed = threading.Event(), threading.Event()

    class Stuck(Failing):
        def open(self, run: RunFacts) -> Failing:
            looking.set()
            freed.wait(60)
            raise OSError("late")

    monkeypatch.setattr(WRITERS, "get", lambda name: Stuck())
    monkeypatch.setattr(follow, "EVERY", 0.0)
    monkeypatch.setattr(follow, "PATIENCE", 0.0)
    notes: list[str] = []
    with follow.tracked(["stuck"], run, notes.append):
        assert looking.wait(60)
    assert notes == ["tracking with stuck did not end within 0 s: it is incomplete"]
    freed.set()


def test_without_names_nothing_is_written(run: Path) -> None:
    before = sorted(run.rglob("*"))
    assert track(run) == []
    assert sorted(run.rglob("*")) == before


def test_an_unknown_tool_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"track='tensorbord': allowed is one of mlflow, tensorboard; did you mean"):
        check_groups([GroupSettings.parse({"track": "tensorbord"})])


def test_a_tool_that_is_not_installed_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "alembic", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadInput, match="pip install mlflow-skinny alembic"):
        check_groups([GroupSettings.parse({"track": "mlflow"})])


def test_the_command_takes_tools_before_anything_starts(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["run", "--track", "tensorboard,wandb", "--home", str(tmp_path)])
    assert isinstance(result.exception, BadInput)
    assert "track='wandb'" in str(result.exception)
    assert not (tmp_path / "runs").exists()


def test_following_a_run_is_no_part_of_a_result() -> None:
    from flower_apps.runs import group_id

    assert group_id(GroupSettings.parse({"track": "mlflow"})) == group_id(GroupSettings.parse({}))
