"""What a report says a run can tell: attacks in words, difficulty, seeds, ranking, and the published numbers beside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_up_run import LEFT, write_run

from evaluation.catalogue import METRICS
from evaluation.curves import CURVES
from evaluation.metrics.shadow_attacks import AUC_NAMES
from evaluation.report.attacks import ATTACKS, POPULATION, attack_grid
from evaluation.report.attacks import CURVES as TITLES_OF_CURVES
from evaluation.report.beside_published import published_grid
from evaluation.report.chapters import chapter_of
from evaluation.report.grid import Grid
from evaluation.report.judgements import difficulty_grid, ranking_grids, spread_grid, verdict
from evaluation.report.latex import latex
from evaluation.report.markdown import markdown
from evaluation.report.page import page
from evaluation.report.sections import Section, sections_of
from evaluation.results import read_results, write_results
from evaluation.runs import Run


@pytest.fixture(scope="module")
def sections(tmp_path_factory: pytest.TempPathFactory) -> list[Section]:
    return sections_of(Run(write_run(tmp_path_factory.mktemp("judgements") / "run", curves=False)))


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Section:
    run = write_run(tmp_path_factory.mktemp("single") / "run", datasets=["lung-ct"], seeds=[0], curves=False)
    return sections_of(Run(run))[0]


def cells(grid: Grid | None, column: str) -> list[tuple[str, str]]:
    assert grid is not None
    place = [one.head for one in grid.columns].index(column)
    return [(line.name, line.cells[place].text) for line in grid.lines]


def test_every_attack_is_told_in_words_beside_golds_band(single: Section) -> None:
    grid = attack_grid(single, "unlearned")
    attacks = [text for _, text in cells(grid, "attack")]
    assert list(dict.fromkeys(attacks)) == ["U-LiRA", "LiRA", "retrain-calibrated", "population loss"]
    said = cells(grid, "verdict")
    verdicts = {(attack, name): text for attack, (name, text) in zip(attacks, said, strict=True)}
    assert verdicts["U-LiRA", "original"] == "distinguishable from gold"
    assert verdicts["U-LiRA", "federaser"] == "inside gold's band"
    assert verdicts["LiRA", "not"] == "undecided: fewer than 10 positives"
    assert verdicts["U-LiRA", "retrain"] == "gold"
    assert ("retrain", "[0.44, 0.56]") in cells(grid, "gold's band")


def test_an_attack_on_one_seed_has_its_interval_and_on_several_their_deviation(single, sections) -> None:
    assert all("[" in text for _, text in cells(attack_grid(single, "unlearned"), "AUC"))
    assert all("±" in text for _, text in cells(attack_grid(sections[0], "unlearned"), "AUC"))


def test_attacks_have_the_names_that_the_panel_gives_them() -> None:
    panel = {METRICS.get(name).name for name in METRICS.names()}
    for attack in ATTACKS:
        assert {attack.area, f"{attack.name}_tpr_at_1pct_fpr"} <= panel
        if attack.name != POPULATION:
            assert {f"{attack.name}_distinguishable", f"{attack.name}_auc_band_low"} <= panel
            assert AUC_NAMES[attack.name] == attack.area
            assert attack.name in TITLES_OF_CURVES
    assert {"roc", "roc-reference", "site"} <= set(CURVES.names())


def test_seeds_that_disagree_are_counted(sections) -> None:
    found = {text for _, text in cells(attack_grid(sections[0], "recovered"), "verdict")}
    assert any(text.startswith("distinguishable from gold under 1 of 2 seeds") for text in found)


def test_a_run_without_shadows_has_no_table_of_attacks(tmp_path: Path, single: Section) -> None:
    kept = single.results[~single.results["metric"].str.startswith(("lira", "ulira", "calibrated"))]
    write_results(tmp_path, kept.to_dict("records"))
    (tmp_path / "run.json").write_text('{"created": 0.0, "cells": []}')
    assert attack_grid(sections_of(Run(tmp_path))[0], "unlearned") is None


def test_the_verdict_says_by_what_methods_can_be_told_apart(single: Section) -> None:
    said = verdict(single)
    assert said.startswith("Before recovery, this request can separate methods by forget accuracy")
    assert "After recovery, this request" in said
    assert "it cannot separate them by MIA AUC, where recovery alone is not told from gold." in said
    grid = difficulty_grid(single)
    assert ("MIA AUC", "no") in cells(grid, "separates")
    assert ("forget accuracy", "yes") in cells(grid, "separates")


def test_a_request_that_separates_nothing_says_so_of_methods(tmp_path: Path, single: Section) -> None:
    results = single.results.copy()
    gaps = results["metric"].str.startswith("delta_")
    results.loc[gaps, ["value", "ci_low", "ci_high"]] = [0.01, -0.05, 0.07]
    write_results(tmp_path, results.to_dict("records"))
    (tmp_path / "run.json").write_text('{"created": 0.0, "cells": []}')
    said = verdict(sections_of(Run(tmp_path))[0])
    assert said.startswith("Before recovery, this request cannot separate methods by forget accuracy, ")
    assert "where the original is not told from gold. After recovery, this request cannot separate methods by" in said


def test_a_request_that_nothing_is_known_of_has_no_verdict(tmp_path: Path, single: Section) -> None:
    kept = single.results[single.results["method"] == "ga"]
    write_results(tmp_path, kept.to_dict("records"))
    (tmp_path / "run.json").write_text('{"created": 0.0, "cells": []}')
    section = sections_of(Run(tmp_path))[0]
    assert verdict(section) == ""
    assert difficulty_grid(section) is None


def test_the_spread_over_seeds_is_told_and_an_unstable_method_flagged(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", datasets=["bloodmnist"], curves=False)
    results = read_results(run)
    mine = (results["method"] == "fedquit") & (results["checkpoint"] == "unlearned") & (results["train_seed"] == 1)
    results.loc[mine & (results["metric"] == "forget_accuracy"), "value"] = 0.1
    write_results(run, results.to_dict("records"))
    grid = spread_grid(sections_of(Run(run))[0], "unlearned")
    told = dict(cells(grid, "stability"))
    assert told["fedquit"].startswith("unstable: forget: deviation ")
    assert "add train seeds" in told["fedquit"]
    assert told["federaser"] == "stable"


def test_one_seed_has_no_spread(single: Section) -> None:
    assert spread_grid(single, "unlearned") is None


def test_methods_are_ranked_over_data_sets_with_ties_and_the_power_warning(sections) -> None:
    (grid,) = ranking_grids(sections)
    names = [name for name, _ in cells(grid, "mean rank")]
    assert set(names) == set(LEFT) - {"original", "retrain", "ga"}
    assert {text for _, text in cells(grid, "tied")} == {"a"}
    assert any("2 blocks, 4 methods: no two can be told apart" in note for note in grid.notes)
    assert any(note.startswith("not ranked: ga") for note in grid.notes)


def test_one_data_set_is_no_ranking(sections) -> None:
    assert ranking_grids(sections[:1]) == []


def test_published_numbers_of_the_same_setting_are_beside_ours(sections, single: Section) -> None:
    grid = published_grid(sections[0])
    assert ("federaser", "0.445") in cells(grid, "published")
    assert any("on trained records" in text for _, text in cells(grid, "note"))
    assert ("federaser", "lethe 3, lethe 14") in cells(grid, "table")
    assert grid is not None
    assert any("arXiv" in note or "Lethe study" in note for note in grid.notes)
    assert published_grid(single) is None


def test_all_tables_are_in_markdown_latex_and_on_the_page(sections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evaluation.report.figures.plots_of", lambda *_: [])
    chapter = chapter_of(sections[0], {})
    rankings = ranking_grids(sections)
    grids = [*chapter.grids, *rankings]
    heads = [
        "what this request lets one tell",
        "membership attacks",
        "spread over seeds",
        "published numbers",
        "ranked",
    ]
    html = page("run", {}, [chapter], [], rankings)
    for text in (markdown(grids), latex(grids), html):
        for head in heads:
            assert head in text
    assert html.index("can separate methods by") < html.index("Before recovery</h3>")
    assert '<a href="#ranking">' in html
    assert all(line.count("&") == tex_columns for line, tex_columns in _latex_rows(latex(grids)))


def _latex_rows(text: str) -> list[tuple[str, int]]:
    """Return every row with the number of column breaks that its table has."""
    rows, breaks = [], 0
    for line in text.splitlines():
        if line == r"\toprule":
            breaks = -1
        elif line.endswith(r"\\"):
            breaks = line.count("&") - line.count(r"\&") if breaks < 0 else breaks
            rows.append((line.replace(r"\&", ""), breaks))
    return rows


def test_what_was_known_before_training_leads_the_verdict(single: Section) -> None:
    assert not verdict(single).startswith("By its records"), "a record of a run that keeps none"
    before = {"level": "hard", "reason": "no record of bone stays (40% of what departs)"}
    told = verdict(replace(single, before=before))
    assert told.startswith("By its records the request is hard: no record of bone stays (40% of what departs). ")
    assert told.endswith(verdict(single))
