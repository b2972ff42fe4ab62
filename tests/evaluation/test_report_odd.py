"""Reports of runs with odd numbers and odd names: whole, without a warning, and files that every disk can hold."""

from __future__ import annotations

import math
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from made_up_run import write_run

from evaluation.curves import read_curves
from evaluation.ranking import rank_methods, read_runs
from evaluation.ranking_table import ranking_text
from evaluation.report.sections import LONGEST_SLUG, slug
from evaluation.report.write import write_report
from evaluation.results import FILE, read_results, write_table

Change = Callable[[pd.DataFrame], pd.DataFrame]
ODD = "s\x02\u202e--$\\bad$ 日本"
METHODS = ("original", "retrain", "ga", "not")


def nothing(table: pd.DataFrame) -> pd.DataFrame:
    return table


def values(number: float) -> Change:
    return lambda table: table.assign(value=number, ci_low=number, ci_high=number)


def large(table: pd.DataFrame) -> pd.DataFrame:
    odd = [sign * 1e308 if place % 2 else value for place, (value, sign) in enumerate(_signed(table))]
    return table.assign(value=odd)


def _signed(table: pd.DataFrame) -> list[tuple[float, int]]:
    return [(value, (-1) ** (place // 2)) for place, value in enumerate(table["value"])]


CASES: dict[str, tuple[Change, Change]] = {
    "long names": (lambda t: t.assign(request="client:" + "s" * 400, dataset="d" * 400), lambda c: c),
    "unknown checkpoints": (lambda t: t.assign(checkpoint="weird"), lambda c: c.assign(checkpoint="weird")),
    "nothing but the original": (lambda t: t[t["method"] == "original"], lambda c: c),
    "all large": (values(1e308), lambda c: c.assign(x=1e308, y=-1e308)),
    "large beside others": (large, lambda c: c.assign(x=[(-1) ** n * 1e308 for n in range(len(c))])),
    "infinite": (values(math.inf), lambda c: c.assign(x=math.inf, y=-math.inf)),
    "no seeds": (lambda t: t.assign(train_seed=pd.NA, unlearn_seed=pd.NA, evaluate_seed=pd.NA), nothing),
    "odd characters": (
        lambda t: t.assign(dataset=ODD, request=f"client:{ODD}", preset=ODD),
        lambda c: c.assign(label=ODD, request=f"client:{ODD}", preset=ODD),
    ),
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, pd.DataFrame]:
    run = write_run(tmp_path_factory.mktemp("plain"), datasets=("bloodmnist",), seeds=(0,))
    results, curves = read_results(run), read_curves(run)
    curves = curves[curves["kind"].isin(("site", "tsne", "roc")) & (curves.groupby("kind").cumcount() % 20 == 0)]
    return results[results["method"].isin(METHODS)], curves


@pytest.mark.parametrize("case", CASES)
def test_the_report_is_whole_and_silent(case: str, tables: tuple[pd.DataFrame, pd.DataFrame], tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"created": 0.0, "cells": []}')
    for change, table, name in zip(CASES[case], tables, (FILE, "curves.csv"), strict=True):
        write_table(run / name, change(table))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        written = write_report(run, tmp_path / "report")
        if case not in ("unknown checkpoints", "nothing but the original"):
            assert ranking_text(rank_methods(read_runs([run])))
    assert (written / "report.html").stat().st_size > 10_000
    for figure in (written / "figures").iterdir():
        assert len(figure.name) < 200
        if figure.suffix == ".svg":
            ElementTree.parse(figure)


def test_long_names_that_differ_late_have_slugs_that_differ() -> None:
    one, two = slug("x" * 400 + "a"), slug("x" * 400 + "b")
    assert one != two
    assert max(len(one), len(two)) < LONGEST_SLUG + 10
    assert slug("X" * LONGEST_SLUG) == "x" * LONGEST_SLUG
