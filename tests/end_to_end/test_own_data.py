"""The page on one's own data is complete: its files, taken from the text as they stand, are a working data set."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from in_process import run_group
from PIL import Image
from third_party import third_party

from evaluation.runs import open_run
from flower_apps import cli
from flower_apps.settings import GroupSettings
from partitions.catalogue import DATASETS
from partitions.errors import BadInput

PAGE = Path(__file__).resolve().parents[2] / "docs" / "own-data.md"
BLOCK = re.compile(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = dict(BLOCK.findall(PAGE.read_text(encoding="utf-8")))
SITES = {"north": ("p01", "p02"), "south": ("p03", "p04"), "west": ("p05",)}
IMAGES = 12
"""Of each patient, half of them with an effusion."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    package, home = tmp_path_factory.mktemp("ward"), tmp_path_factory.mktemp("home")
    for name, text in FILES.items():
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_text(text, encoding="utf-8")
    _write_images(home / "data" / "ward")
    with third_party(package):
        yield home
    for module in [name for name in sys.modules if name.partition(".")[0] == "lethe_ward"]:
        del sys.modules[module]


def _write_images(folder: Path) -> None:
    """Write the table with the header that the page shows, and an image for each row: bright below, or not."""
    (folder / "images").mkdir(parents=True)
    noise = np.random.default_rng(0)
    lines = [FILES["records.csv"].splitlines()[0]]
    for site, patients in SITES.items():
        for patient in patients:
            for number in range(IMAGES):
                name = f"images/{patient}-{number}.png"
                grey = noise.integers(0, 90, (40, 36), dtype=np.uint8)
                grey[20:] += 150 * (number % 2)
                Image.fromarray(grey).save(folder / name)
                lines.append(f"{name},{('no finding', 'effusion')[number % 2]},{patient},{site}")
    (folder / "records.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_its_records_are_what_the_table_says(home: Path) -> None:
    data = DATASETS.get("ward").load(home, 0)
    assert data.inputs.shape == (5 * IMAGES, 28, 28) and data.inputs.dtype == np.uint8
    assert data.classes == ("no finding", "effusion")
    effusions = data.inputs[data.targets == 1][:, 20:].mean(), data.inputs[data.targets == 0][:, 20:].mean()
    assert effusions[0] > effusions[1] + 100
    counts = data.table.groupby("site")["patient"].nunique().to_dict()
    assert counts == {site: len(patients) for site, patients in SITES.items()}
    assert len(DATASETS.get("ward").load(home, 3).table) == 3 * 2 * 5


def test_it_is_listed_checked_and_partitioned_by_the_command(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "check", "ward", "--home", str(home)]) == 0
    where = ["--set", "dataset=ward", "--json", "--home", str(home)]
    capsys.readouterr()
    assert cli.main(["partition", *where, "--set", "requests=client:north"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert [site["site"] for site in shown["sites"]] == list(SITES)


def test_a_patient_is_forgotten(home: Path, tmp_path: Path) -> None:
    settings = {
        "name": "ward",
        "dataset": "ward",
        "rounds": 1,
        "local-epochs": 1,
        "batch-size": 8,
        "lr": 0.05,
        "recovery-rounds": 1,
        "device": "cpu",
        "requests": "patient:p03",
        "methods": "ga",
        "preset": "safe",
        "unlearn-epochs": 1,
    }
    run_group(GroupSettings.parse(settings), home, tmp_path / "run")
    results: pd.DataFrame = open_run(tmp_path / "run").results
    assert set(results["request"]) == {"patient:p03"}
    assert set(results["method"]) >= {"original", "retrain", "ga"}
    assert set(results.query("metric == 'test_accuracy'")["status"]) == {"ok"}


def test_what_is_missing_or_wrong_is_said_in_one_line(home: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"put records\.csv .* into .*data/ward \(source: the archive"):
        DATASETS.get("ward").load(tmp_path, 0)
    folder = tmp_path / "data" / "ward"
    shutil.copytree(home / "data" / "ward", folder, dirs_exist_ok=True)
    table = folder / "records.csv"
    table.write_text(table.read_text().replace("effusion", "efusion", 1))
    with pytest.raises(BadInput, match=r"records\.csv='efusion': allowed is a label of no finding, effusion"):
        DATASETS.get("ward").load(tmp_path, 0)
