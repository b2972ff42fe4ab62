"""The chapter on searches: what was chosen, every trial, what one shared setting says, and a figure."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_up_run import write_run

from evaluation.report.chapters import chapters_of
from evaluation.report.write import write_report
from evaluation.runs import Run
from evaluation.trials import COLUMNS, write_trials

LABELS = {"experiment": "audit", "task": "classification", "dataset": "bloodmnist", "partition": "dirichlet"}
LABELS |= {"alpha": 0.1, "model": "cnn", "request": "client:site-0", "granularity": "client"}
WHY = "site-2: the parameter norm went from 14.6 to 554"


def trial(method: str, number: int, lr: float | None, score: float, forget: float, **changes: Any) -> dict[str, Any]:
    values = {} if lr is None else {"lr": lr}
    base = dict.fromkeys(COLUMNS, "") | LABELS | {"search": "s0", "method": method, "preset": "lethe", "trial": number}
    base |= {"values": json.dumps(values), "sampler": "grid", "rule": "retain-forget", "checkpoint": "recovered"}
    base |= {"train_seed": 0, "unlearn_seed": 0, "search_seed": 0, "metric": "accuracy", "higher_is_better": True}
    base |= {"score": score, "retain_train": 0.8, "forget_train": 0.8 - score, "forget": forget, "gold_forget": 0.52}
    base |= {"retain": 0.7, "gold_retain": 0.71, "test": 0.7, "gold_test": 0.68, "kl_forget": 0.1, "seconds": 3.0}
    return base | {"chosen": False, "status": "ok", "reason": ""} | changes


FAILED = {"status": "diverged", "reason": WHY}
TRIALS = [
    trial("ga", 0, None, 0.1, 0.7),
    trial("ga", 1, 0.01, 0.2, 0.7),
    trial("ga", 2, 0.1, 0.4, 0.53, chosen=True),
    trial("fedquit", 0, None, 0.2, 0.6),
    trial("fedquit", 1, 0.01, 0.3, 0.56, chosen=True),
    trial("fedquit", 2, 0.1, math.nan, math.nan, **FAILED),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("searched"), seeds=(0,), curves=False)
    write_trials(folder, TRIALS)
    return folder


def test_the_chapter_of_the_request_that_was_searched_has_it_and_no_other(run: Path) -> None:
    searched, other = chapters_of(Run(run))
    grids = dict(searched.further)["Search of settings"]
    assert [grid.caption.rpartition(": ")[2] for grid in grids] == [
        "settings that the searches chose",
        "what one shared setting would have concluded",
        "every trial",
    ]
    assert all("after recovery" in grid.caption for grid in grids)
    assert "Search of settings" not in dict(other.further)
    assert not any(plot.name.endswith("search") for plot in other.plots)


def test_what_was_chosen_stands_with_its_distance_from_gold(run: Path) -> None:
    grid = dict(chapters_of(Run(run))[0].further)["Search of settings"][0]
    lines = {line.name: [cell.text for cell in line.cells] for line in grid.lines}
    assert lines["ga"] == ["lr 0.1", "2 of 2", "0.40", "0.80", "0.40", "0.010", "0.095", "0"]
    assert lines["fedquit"] == ["lr 0.01", "1 of 2", "0.30", "0.80", "0.50", "0.025", "0.045", "1"]


def test_every_trial_is_there_and_a_failed_one_says_why(run: Path) -> None:
    grid = dict(chapters_of(Run(run))[0].further)["Search of settings"][2]
    lines = {line.name: line for line in grid.lines}
    assert list(lines) == ["fedquit 0", "fedquit 1 (chosen)", "fedquit 2", "ga 0", "ga 1", "ga 2 (chosen)"]
    assert lines["fedquit 2"].kind == "bad"
    assert lines["fedquit 2"].cells[-1].text == f"diverged: {WHY}"


def test_a_shared_setting_is_said_to_turn_the_methods_around(run: Path) -> None:
    grid = dict(chapters_of(Run(run))[0].further)["Search of settings"][1]
    assert [column.head for column in grid.columns] == ["fedquit", "ga", "turned around"]
    told = {line.name: [cell.text for cell in line.cells] for line in grid.lines}
    assert told == {
        "each its own search": ["2 (0.025)", "1 (0.010)", ""],
        "each its preset": ["1 (0.045)", "2 (0.095)", "fedquit before ga"],
        "lr = 0.01": ["1 (0.025)", "2 (0.095)", "fedquit before ga"],
        "lr = 0.1": ["2 (failed)", "1 (0.010)", ""],
    }
    assert grid.notes[0].startswith("2 of 3 ways to set all methods alike turn pairs of them around")


def test_the_figure_has_every_scored_trial_and_gold_s_own_score(run: Path, tmp_path: Path) -> None:
    chapter = chapters_of(Run(run))[0]
    plot = next(plot for plot in chapter.plots if plot.name.endswith("recovered-search"))
    assert len(plot.data) == len(TRIALS)
    assert "1 of 6 failed" in plot.caption
    assert "ga chose trial 2 with 0.40" in plot.alt
    gold = chapter.section.gold("recovered")
    assert gold is not None
    score = gold["metrics"]["retain_train_accuracy"]["mean"] - gold["metrics"]["forget_train_accuracy"]["mean"]
    assert f"retrain would score {score:.2f}" in plot.alt
    assert plot.drawn("png")[:4] == b"\x89PNG"


def test_the_written_report_has_it_on_the_page_and_among_the_tables(run: Path, tmp_path: Path) -> None:
    told: list[str] = []
    write_report(run, tmp_path / "report", told.append)
    assert told[0].startswith("chapter 1 of 2: ") and told[1].startswith("chapter 2 of 2: ")
    assert told[2:] == ["training curves", "files"]
    page, tables = ((tmp_path / "report" / name).read_text() for name in ("report.html", "tables.md"))
    for text in ("Search of settings", "what one shared setting would have concluded", "fedquit before ga"):
        assert text in page
    assert "every trial" in tables
    assert list((tmp_path / "report" / "figures").glob("*recovered-search.png"))


def test_searches_by_other_rules_are_told_of_separately(run: Path, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", datasets=("bloodmnist",), seeds=(0,), curves=False)
    write_trials(folder, [*TRIALS, *(one | {"rule": "oracle", "search": "s1"} for one in TRIALS)])
    grids = dict(chapters_of(Run(folder))[0].further)["Search of settings"]
    assert len(grids) == 6 and len({grid.slug for grid in grids}) == 6
    assert "(retain-forget, grid, lethe)" in grids[0].caption and "(oracle, grid, lethe)" in grids[3].caption
    assert "an oracle" in grids[3].columns[2].meaning


def test_two_train_seeds_are_two_lines_and_one_conclusion(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", datasets=("bloodmnist",), curves=False)
    again = [one | {"train_seed": 1} for one in TRIALS]
    write_trials(folder, [*TRIALS, *again])
    chosen, shared, _ = dict(chapters_of(Run(folder))[0].further)["Search of settings"]
    assert [line.name for line in chosen.lines][:2] == ["fedquit, train seed 0", "fedquit, train seed 1"]
    assert len(shared.lines) == 4
    assert isinstance(Run(folder).trials, pd.DataFrame)
