"""The figures of attacks, curves and sites: what they show, their numbers, and that none is made of nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_up_run import EPOCHS, LEFT, REFERENCES, SITES, write_run

from evaluation.curves import COLUMNS as CURVES
from evaluation.curves import write_curves
from evaluation.report.attack_figures import _first_point, _golds_references, _steps, bands, roc
from evaluation.report.attacks import attacked
from evaluation.report.durability import backdoor, relearning
from evaluation.report.features import embedding
from evaluation.report.palette import looks
from evaluation.report.sections import Section, sections_of
from evaluation.report.site_figures import held_out
from evaluation.results import write_results
from evaluation.runs import Run

LOOKS = looks(LEFT)
MAKERS = (roc, bands, relearning, backdoor, held_out, embedding)


@pytest.fixture(scope="module")
def section(tmp_path_factory: pytest.TempPathFactory) -> Section:
    run = write_run(tmp_path_factory.mktemp("figures") / "run", datasets=["bloodmnist"], seeds=[0])
    return sections_of(Run(run))[0]


@pytest.fixture(scope="module")
def plots(section: Section) -> dict[str, Any]:
    made = {maker.__name__: maker(section, "unlearned", LOOKS) for maker in MAKERS}
    assert all(plot is not None for plot in made.values())
    return made


def test_every_figure_has_all_formats_and_words(plots) -> None:
    for plot in plots.values():
        assert plot.files["svg"].lstrip().startswith(b"<?xml")
        assert plot.files["png"].startswith(b"\x89PNG")
        assert len(plot.caption) > 60
        assert len(plot.alt) > 60
        assert len(plot.data)


@pytest.mark.parametrize("maker", MAKERS)
def test_without_curves_and_attacks_there_is_no_figure(tmp_path: Path, section: Section, maker) -> None:
    plain = section.results[section.results["metric"].isin(("forget_accuracy", "retain_train_accuracy"))]
    write_results(tmp_path, plain.to_dict("records"))
    (tmp_path / "run.json").write_text('{"created": 0.0, "cells": []}')
    assert maker(sections_of(Run(tmp_path))[0], "unlearned", LOOKS) is None


def test_curves_of_a_run_are_those_of_its_request(section: Section) -> None:
    assert set(section.curves["kind"]) == {"roc", "roc-reference", "site", "tsne"}
    row = section.gold("unlearned")
    assert row is not None
    assert set(section.points(row, "roc-reference")["label"]) == {str(number) for number in range(REFERENCES)}


def test_a_curve_of_another_request_or_cell_is_not_taken(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", datasets=["bloodmnist"], seeds=[0], curves=False)
    base = dict.fromkeys(CURVES, "") | {"train_seed": 0, "unlearn_seed": 0, "evaluate_seed": 0, "x": 0.5, "y": 0.5}
    base |= {"cell": "blo-ga-0", "method": "ga", "checkpoint": "unlearned", "kind": "site", "series": "retain"}
    write_curves(run, [base | {"request": "client:site-0"}, base | {"request": "client:site-1", "series": "forget"}])
    found = sections_of(Run(run))[0].curves
    assert list(found["series"]) == ["retain"]


# ---------------------------------------------------------------------- membership
def test_the_roc_steps_from_one_false_positive_on_and_takes_the_best_rate() -> None:
    points = pd.DataFrame({"fpr": [0.0, 0.0, 0.1, 0.1, 0.3, 1.0], "tpr": [0.0, 0.2, 0.2, 0.4, 0.4, 1.0]})
    x, y = _steps(points, 0.1)
    assert x.tolist() == [0.1, 0.3, 1.0, 1.0]
    assert y.tolist() == [0.4, 0.4, 1.0, 1.0]


def test_one_false_positive_is_the_smallest_step_of_any_curve() -> None:
    about = {"model": "a", "run": "0", "reference": ""}
    points = pd.DataFrame([about | {"fpr": x} for x in (0.0, 0.5, 1.0)])
    other = pd.DataFrame([about | {"model": "b", "fpr": x} for x in (0.0, 0.25, 1.0)])
    assert _first_point(pd.concat([points, other])) == 0.25


def test_the_rocs_data_has_every_attack_model_and_reference(plots, section: Section) -> None:
    data = plots["roc"].data
    assert set(data["attack"]) == {"U-LiRA", "LiRA", "retrain-calibrated", "population loss"}
    assert set(data.loc[data["reference"] == "", "method"]) == set(LEFT)
    assert set(data.loc[data["reference"] != "", "method"]) == {"retrain"}
    ga = section.points(next(row for row in section.at("unlearned") if row["method"] == "ga"), "roc")
    mine = data[(data["method"] == "ga") & (data["attack"] == "LiRA")]
    assert mine["tpr"].tolist() == ga[ga["series"] == "lira"]["y"].tolist()


def test_the_words_of_the_roc_are_its_numbers(plots) -> None:
    data = plots["roc"].data
    lira = data[(data["attack"] == "U-LiRA") & (data["reference"] == "") & (data["fpr"] <= 0.01)]
    best = lira.groupby("model")["tpr"].max()
    assert best.idxmax() == "original"
    assert f"to {best.max():.0%} (original)" in plots["roc"].alt


def test_the_bands_name_who_is_distinguishable(plots) -> None:
    data = plots["bands"].data
    lira = data[data["attack"] == "LiRA"].set_index("model")
    assert lira.loc["not", "underpowered"]
    assert lira.loc["not", "verdict"] == "undecided: fewer than 10 positives"
    outside = lira[lira["verdict"] == "distinguishable from gold"]
    assert "original" in outside.index
    inside = (lira["auc"] >= lira["band_low"]) & (lira["auc"] <= lira["band_high"])
    assert not inside[outside.index].any()
    assert "LiRA: band 0.44 to 0.56; distinguishable from gold: original" in plots["bands"].alt


def test_attacks_without_any_band_make_no_figure_of_bands(section: Section, tmp_path: Path) -> None:
    names = section.results["metric"]
    plain = section.results[~names.str.contains("band") & ~names.str.contains("distinguishable")]
    write_results(tmp_path, plain.to_dict("records"))
    (tmp_path / "run.json").write_text('{"created": 0.0, "cells": []}')
    other = sections_of(Run(tmp_path))[0]
    assert bands(other, "unlearned", LOOKS) is None
    verdicts = set(attacked(other, "unlearned")["verdict"])
    assert verdicts == {"gold", "undecided: not judged", "undecided: no band for this attack"}


def test_references_of_gold_stand_for_all_where_there_are_such() -> None:
    about = {"attack": "LiRA", "model": "a", "method": "ga", "reference": ""}
    rows = [about, about | {"reference": "0"}, about | {"method": "retrain", "reference": "0"}]
    rows += [about | {"attack": "U-LiRA", "reference": "0"}]
    kept = _golds_references(pd.DataFrame(rows))
    assert list(kept.index) == [0, 2, 3]


# ---------------------------------------------------------------------- what comes back
def test_relearning_is_read_against_gold_epoch_by_epoch(plots, section: Section) -> None:
    data = plots["relearning"].data
    assert set(data["split"]) == {"forget", "forget_train"}
    assert sorted(data["epoch"].unique()) == list(range(EPOCHS + 1))
    assert (data.loc[data["method"] == "retrain", "gap"] == 0).all()
    one = data[(data["method"] == "ga") & (data["split"] == "forget") & (data["epoch"] == 3)].iloc[0]
    of = section.results.query("method == 'ga' and checkpoint == 'unlearned' and metric == 'relearn_forget_accuracy_3'")
    assert one["value"] == of["value"].iloc[0]
    assert f"{one['gap']:+.2f}" in plots["relearning"].caption.split("ga ")[1]


def test_a_backdoor_without_a_rate_is_left_out_and_gold_is_no_bar(plots) -> None:
    data = plots["backdoor"].data.set_index("model")
    assert "ga" not in data.index
    assert data.loc["retrain", "asr"] == 0.11
    assert data.loc["original", ["ci_low", "ci_high"]].tolist() == pytest.approx([0.89 - 0.05, 0.89 + 0.05])
    assert "retrain 0.11" in plots["backdoor"].alt


# ---------------------------------------------------------------------- sites and features
def test_sites_are_read_against_gold_at_the_same_site(plots) -> None:
    data = plots["held_out"].data
    assert set(data["site"]) == set(SITES)
    one = data[(data["model"] == "not") & (data["site"] == "site-3")].iloc[0]
    assert (one["side"], one["n"]) == ("retain", 63)
    assert one["difference"] == pytest.approx(-0.35)
    assert "not at site-3, -0.35" in plots["held_out"].alt


def test_features_have_a_panel_a_model_and_warn_of_distances(plots) -> None:
    data = plots["embedding"].data
    assert set(data["model"]) == set(LEFT)
    assert set(data["side"]) == {"forget", "retain"}
    assert np.isfinite(data[["x", "y"]]).all(axis=None)
    assert "Distances between clusters, their sizes and their places mean little" in plots["embedding"].caption


def test_a_model_that_diverged_is_named_so_in_its_panel(section: Section) -> None:
    plot = held_out(section, "recovered", LOOKS)
    assert plot is not None
    assert plot.data.set_index("model").loc["ga", "status"].iloc[0] == "diverged"


def test_the_original_is_read_against_gold_before_recovery_alone(section: Section) -> None:
    before, after = attacked(section, "unlearned"), attacked(section, "recovered")
    assert not math.isnan(before.loc[before["model"] == "original", "auc"].iloc[0])
    assert "original" not in set(after["model"])
    assert "fine-tuning" in set(after["model"])
