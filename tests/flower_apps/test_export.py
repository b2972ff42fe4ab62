import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file, save_file

from clients.catalogue import TASKS
from evaluation.results import COLUMNS, write_results
from evaluation.runs import open_run
from flower_apps import cli, places
from flower_apps.settings import GroupSettings
from partitions.errors import BadInput
from strategies.registry import METHODS
from unlearning.state import State

SETTINGS = GroupSettings.parse(
    {
        "name": "t",
        "dataset": "digits",
        "cap": 20,
        "split": "iid",
        "sites": 3,
        "requests": "client:site-1; sample:0.1@site-0",
        "methods": "ga",
        "overrides": '{"ga": {"max-norm": 5}}',
    }
)


def model():
    return TASKS.get("classification").build("cnn", (8, 8), 10)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LETHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def run(home):
    """A run folder with an original, a retrained model and two cells of one method, with figures for the first."""
    folder = home / "runs" / "20260101-000000-t"
    weights = home / "stages" / "x" / "model.safetensors"
    for path in (folder, weights.parent):
        path.mkdir(parents=True)
    torch.manual_seed(3)
    save_file(State.from_module(model()).to_arrays(), weights)
    both = {"unlearned": str(weights), "recovered": str(weights)}
    cells = [
        cell("o1", "original", checkpoints={"trained": str(weights)}),
        cell("r1", "retrain", checkpoints=both),
        cell("g1", "ga", checkpoints=both),
        cell("g2", "ga", request="sample:0.1@site-0", checkpoints={"unlearned": str(weights)}, status="diverged"),
    ]
    other = SETTINGS.to_run_config() | {"lr": 0.5}
    cells += [cell("r2", "retrain", checkpoints=both) | {"settings": other}]
    environment = {"commit": "0123456789abcdef", "platform": "Linux", "libraries": {"torch": "2.9"}}
    (folder / "run.json").write_text(json.dumps({"created": 1767225600, "environment": environment, "cells": cells}))
    rows = [
        row("o1", "original", "trained", "forget_accuracy", 0.9),
        row("r1", "retrain", "recovered", "forget_accuracy", 0.61),
        row("r1", "retrain", "unlearned", "forget_accuracy", 0.11),
        row("r2", "retrain", "recovered", "forget_accuracy", 0.99),
        row("g1", "ga", "recovered", "forget_accuracy", 0.65),
        row("g1", "ga", "recovered", "seconds_total", 12.5),
        row("g1", "ga", "recovered", "delta_forget_accuracy", 0.04),
        row("g2", "ga", "unlearned", "forget_accuracy", 0.22, request="sample:0.1@site-0"),
    ]
    write_results(folder, rows)
    return folder


def cell(name, method, *, request="client:site-1", checkpoints, status="ok"):
    return {
        "cell": name,
        "method": method,
        "preset": "lethe",
        "request": request,
        "train_seed": 0,
        "unlearn_seed": 0,
        "checkpoints": checkpoints,
        "settings": SETTINGS.to_run_config(),
        "status": status,
        "config": {"max-norm": 5},
    }


def row(name, method, checkpoint, metric, value, request="client:site-1"):
    facts = dict.fromkeys(COLUMNS, "") | {"alpha": 0.1, "train_seed": 0, "unlearn_seed": 0, "evaluate_seed": 0}
    facts |= {"dataset": "digits", "partition": "iid", "model": "cnn", "request": request, "status": "ok"}
    facts |= {"cell": name, "method": method, "checkpoint": checkpoint, "metric": metric, "value": value, "n": 5}
    return facts | {"ci_low": float("nan"), "ci_high": float("nan")}


def test_the_weights_are_the_plain_state_dict_of_the_model(run):
    assert cli.main(["export", "latest", "retrain"]) == 0
    found = load_file(run / "exports" / "retrain-recovered" / "weights.safetensors")
    torch.manual_seed(3)
    expected = model().state_dict()
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], tensor.numpy()) for name, tensor in expected.items())


def test_the_script_loads_and_runs_the_model_anywhere(run, tmp_path):
    out = tmp_path / "für andere"
    assert cli.main(["export", str(run), "original", "--out", str(out)]) == 0
    shown = subprocess.run(
        [sys.executable, str(out / "load.py")], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert shown.returncode == 0, shown.stderr
    assert "output (1, 10)" in shown.stdout


def test_the_card_tells_what_was_forgotten_how_well_and_under_which_licence(run):
    assert cli.main(["export", "latest", "ga", "--where", "request=client:site-1"]) == 0
    card = (run / "exports" / "ga-recovered" / "MODEL_CARD.md").read_text()
    assert "`client:site-1` (every record of site-1)" in card
    assert "Gradient ascent (`ga`, preset `lethe`), then 5 recovery rounds" in card
    assert "| max-norm | 5 | clip of the gradient's L2 norm" in card
    assert "uint8 of shape 8 x 8" in card and "padded with black to 32x32" in card
    assert "Made 2026-01-01 by Lethe at commit `0123456789ab` on Linux, with torch 2.9" in card
    assert "| forget_accuracy | 0.65 | 0.61 | 0.9 |" in card
    assert "| seconds_total | 12.5 | - | - |" in card
    assert "delta_forget_accuracy" not in card
    exported = pd.read_csv(run / "exports" / "ga-recovered" / "metrics.csv").set_index("metric")
    assert exported.loc["delta_forget_accuracy", "this_model"] == 0.04
    assert exported.loc["seconds_total"].isna().tolist() == [False, True, True]
    assert "Licence: CC BY 4.0" in card
    assert "| batch-size | 64 |" in card
    assert str(run.parents[1]) not in card
    assert "do not use this model" not in card


def test_the_card_of_a_model_with_a_planted_backdoor_says_so(run):
    record = json.loads((run / "run.json").read_text())
    next(one for one in record["cells"] if one["cell"] == "o1")["settings"]["backdoor-site"] = "site-1"
    (run / "run.json").write_text(json.dumps(record))
    assert cli.main(["export", str(run), "original"]) == 0
    card = (run / "exports" / "original-trained" / "MODEL_CARD.md").read_text()
    assert "A backdoor was planted in the training records of site-1" in card


def test_the_card_names_settings_as_a_person_writes_them(run):
    record = json.loads((run / "run.json").read_text())
    forgotten = next(one for one in record["cells"] if one["cell"] == "g1")
    forgotten |= {"method": "ssd", "config": METHODS.get("ssd").Config().model_dump(mode="json")}
    (run / "run.json").write_text(json.dumps(record))
    assert cli.main(["export", str(run), "ssd"]) == 0
    text = (run / "exports" / "ssd-recovered" / "MODEL_CARD.md").read_text()
    for key, field in METHODS.get("ssd").Config.fields_by_key().items():
        assert f"| {key} | {field.default} | {field.description} |" in text
    assert "| lambda |" in text


def test_each_checkpoint_is_read_against_its_own_anchor(run):
    where = ["--where", "request=client:site-1"]
    assert cli.main(["export", "latest", "retrain", "--checkpoint", "unlearned", *where]) == 0
    assert "| forget_accuracy | 0.11 | 0.11 | 0.9 |" in (run / "exports/retrain-unlearned/MODEL_CARD.md").read_text()


def test_a_training_with_other_settings_in_the_same_run_is_no_anchor(run):
    assert cli.main(["export", "latest", "retrain", "--where", "lr=0.5"]) == 0
    assert "| forget_accuracy | 0.99 | 0.99 | - |" in (run / "exports/retrain-recovered/MODEL_CARD.md").read_text()


def test_a_diverged_cell_says_so_in_its_card(run):
    assert cli.main(["export", "latest", "ga", "--where", "cell=g2"]) == 0
    card = (run / "exports" / "ga-unlearned" / "MODEL_CARD.md").read_text()
    assert "status is `diverged`: do not use this model" in card
    assert "a seeded 10% of the training records at site-0" in card
    assert "| forget_accuracy | 0.22 | - | - |" in card


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("latest ga", "2 fit: add --where 'request=client:site-1' or --where 'request=sample:0.1@site-0'"),
        ("latest gaa", "did you mean 'ga'"),
        ("latest ga --where requst=x", "did you mean 'request'"),
        ("latest ga --where request", "key=value"),
        ("latest ga --where request=class:1", "conditions that a cell of ga meets"),
        ("latest ga --where cell=g2 --checkpoint recovered", "one of unlearned; the cell is diverged"),
        ("latest original --checkpoint recovered", "one of trained"),
        ("lates ga", "newest: 20260101-000000-t"),
    ],
)
def test_mistakes_are_one_line(run, arguments, says, capsys):
    assert cli.main(["export", *arguments.split()]) == 2
    shown = capsys.readouterr().err
    assert says in shown
    assert shown.count("\n") == 1


def test_a_place_where_no_folder_can_be_is_a_mistake_of_the_person(run, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert cli.main(["export", "latest", "retrain", "--out", str(tmp_path / "file" / "x")]) == 2
    assert "a folder one can make" in capsys.readouterr().err


def test_the_latest_run_is_the_latest_with_something_to_export(run):
    for name, text in {
        "20270101-000000-refused": '{"created": 0.0, "cells": []}',
        "20280101-000000-broken": "{",
    }.items():
        (run.parent / name).mkdir()
        (run.parent / name / "run.json").write_text(text)
    assert cli.main(["export", "latest", "original"]) == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cells": [3]}', '{"cells": [{"cell": "x"}]}'])
def test_a_damaged_record_is_one_line(run, text, capsys):
    (run / "run.json").write_text(text)
    assert cli.main(["export", str(run), "ga"]) == 2
    assert "it is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["cut", "no safetensors", "other arrays", "a folder"])
def test_weights_that_cannot_be_read_are_the_line_that_open_run_gives(run, tmp_path, how, capsys):
    weights = run.parent.parent / "stages" / "x" / "model.safetensors"
    if how == "cut":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif how == "other arrays":
        save_file({"a": np.zeros(2)}, weights)
    else:
        record = (run / "run.json").read_text()
        (run / "run.json").write_text(record.replace(str(weights), str(run if how == "a folder" else run / "run.json")))
    assert cli.main(["export", "latest", "retrain", "--out", str(tmp_path / "new")]) == 2
    said = capsys.readouterr().err
    with pytest.raises(BadInput, match="a file of weights") as raised:
        open_run("latest").model("r1")
    assert said == f"lethe: {raised.value}\n"
    assert {path.name for path in tmp_path.iterdir()} == {"home"}


def test_nothing_is_overwritten_and_nothing_half_written_is_left(run, tmp_path, capsys):
    (tmp_path / "taken").mkdir()
    assert cli.main(["export", "latest", "retrain", "--out", str(tmp_path / "taken")]) == 2
    assert cli.main(["export", "latest", "retrain", "--out", str(places.ROOT / "model")]) == 2
    (run.parent.parent / "stages" / "x" / "model.safetensors").unlink()
    assert cli.main(["export", "latest", "retrain", "--out", str(tmp_path / "new")]) == 2
    assert "the same `lethe run` again computes it" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"home", "taken"}
