"""The published tables, and a run's results beside them: nothing dropped, nothing set beside what it is not."""

from __future__ import annotations

import math
from importlib.resources import files
from typing import Any

import pandas as pd
import pytest

from evaluation.published.join import COLUMNS, join_published
from evaluation.published.tables import parse_published, published
from evaluation.results import COLUMNS as RESULTS
from evaluation.results import merge_results, read_results, write_results

HEAD = "table,task,dataset,granularity,alpha,model,method,metric,value,std\n"
GOOD = "3,classification,bloodmnist,client,0.1,fedavgcnn,puf,forget_accuracy,0.462,\n"


def row(metric: str = "forget_accuracy", value: float = 0.5, **changes: Any) -> dict[str, Any]:
    base = dict.fromkeys(RESULTS, "") | {"cell": "c", "task": "classification", "dataset": "bloodmnist", "alpha": 0.1}
    base |= {"partition": "dirichlet", "model": "cnn", "request": "client:site-0", "granularity": "client"}
    base |= {"method": "puf", "preset": "lethe", "checkpoint": "recovered", "status": "ok", "n": 100}
    base |= {"train_seed": 0, "unlearn_seed": 0, "evaluate_seed": 0, "ci_low": math.nan, "ci_high": math.nan}
    return base | {"metric": metric, "value": value} | changes


def results(tmp_path, *rows: dict[str, Any]) -> pd.DataFrame:
    return read_results(write_results(tmp_path, rows))


def both(joined: pd.DataFrame) -> pd.DataFrame:
    return joined[joined["published"].notna() & joined["ours"].notna()]


def test_every_published_number_is_read_with_its_table() -> None:
    found = published()
    assert found["table"].str.startswith("lethe ").sum() == 1595
    assert found["table"].str.startswith("mufac ").sum() == 54
    assert found["value"].notna().all()
    assert found["alpha"].isna().any()
    one = found[(found["table"] == "lethe 5") & (found["method"] == "puf") & (found["dataset"] == "bloodmnist")].iloc[0]
    assert (one["metric"], one["value"], one["std"]) == ("calibrated_mia_auc", 0.549, 0.016)


def test_the_tables_travel_with_the_package() -> None:
    assert {"lethe.csv", "mufac.csv"} <= {file.name for file in files("evaluation.published").iterdir()}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HEAD + GOOD.replace("0.462", "46.2"), "lethe 3 bloodmnist puf: forget_accuracy 46.2"),
        (HEAD + GOOD.replace("0.462", "high"), "high"),
        (HEAD + GOOD.replace("0.462,", "0.462,-0.1"), "lethe 3 bloodmnist puf"),
        (HEAD + GOOD + GOOD, "given twice: lethe 3 classification bloodmnist client 0.1 fedavgcnn puf forget_accuracy"),
        (HEAD + GOOD.replace("puf", ""), "a row without method"),
        (HEAD.replace(",std", "") + GOOD.replace(",\n", "\n"), r"columns \['std'\]"),
    ],
)
def test_a_damaged_table_is_refused_with_the_row_at_fault(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_published(text, "lethe")


def test_a_number_of_theirs_goes_with_ours_on_held_out_and_on_trained_records(tmp_path) -> None:
    ours = results(tmp_path, row(value=0.5), row("forget_train_accuracy", 0.6))
    found = both(join_published(ours)).query("table == 'lethe 3'").set_index("our_metric")
    assert list(join_published(ours).columns) == list(COLUMNS)
    assert found["published"].to_dict() == {"forget_accuracy": 0.462, "forget_train_accuracy": 0.462}
    assert found.loc["forget_accuracy", "difference"] == pytest.approx(0.5 - 0.462)
    assert found["note"].to_dict() == {
        "forget_accuracy": "on held-out records",
        "forget_train_accuracy": "on trained records",
    }


def test_seeds_are_averaged_with_their_sample_deviation(tmp_path) -> None:
    ours = results(tmp_path, row(value=0.4), row(value=0.6, train_seed=1), row(value=math.nan, train_seed=2))
    found = both(join_published(ours)).iloc[0]
    assert (found["ours"], found["ours_std"], found["seeds"]) == pytest.approx((0.5, math.sqrt(0.02), 3))


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"dataset": "pathmnist"}, "no run on bloodmnist"),
        ({"task": "segmentation"}, "no run of task classification"),
        ({"method": "ga"}, "puf was not run on it"),
        ({"alpha": 0.5}, "run with another split than concentration 0.1"),
        ({"partition": "quantity"}, "run with another split than concentration 0.1"),
        ({"model": "resnet18"}, "run with another network than cnn"),
        ({"granularity": "sample"}, "no client request on this data set"),
        ({"metric": "retain_accuracy"}, "the results have no forget_accuracy or forget_train_accuracy"),
    ],
)
def test_a_published_number_without_a_counterpart_says_what_is_missing(tmp_path, changes, note: str) -> None:
    joined = join_published(results(tmp_path, row(**changes)))
    mine = (joined["table"] == "lethe 3") & (joined["dataset"] == "bloodmnist") & (joined["method"] == "puf")
    found = joined[mine & (joined["metric"] == "forget_accuracy")]
    assert list(found["note"]) == [note]
    assert found["ours"].isna().all()


def test_nothing_published_is_dropped(tmp_path) -> None:
    about = ["table", "task", "dataset", "granularity", "model", "method", "metric"]
    joined = join_published(results(tmp_path, row()))
    assert set(published()[about].itertuples(index=False)) <= set(joined[about].itertuples(index=False))
    assert (joined["note"] != "").sum() == len(joined)


def test_a_data_set_that_nobody_published_is_listed_and_set_beside_others_only_on_demand(tmp_path) -> None:
    ours = results(tmp_path, row(dataset="lung-ct", partition="natural", alpha=math.nan))
    alone = join_published(ours)
    assert both(alone).empty
    assert list(alone[alone["ours"].notna()]["note"]) == ["no published number on lung-ct"]
    found = both(join_published(ours, other_datasets=True))
    assert {"bloodmnist", "pathmnist", "kvasir"} <= set(found["dataset"])
    assert set(found["our_dataset"]) == {"lung-ct"}
    assert found["note"].str.startswith("another data set (lung-ct, not ").all()


def test_ours_whose_setting_is_in_no_table_are_listed(tmp_path) -> None:
    ours = results(tmp_path, row(), row(method="scrub"), row(alpha=5.0, cell="d"))
    joined = join_published(ours)
    found = joined[joined["published"].isna()].set_index(["method", "alpha"])["note"].to_dict()
    assert found == {
        ("scrub", 0.1): "no published number of scrub on bloodmnist",
        ("puf", 5.0): "no published number of this metric, split, network and kind of request",
    }


def test_the_other_checkpoint_another_request_and_a_diverged_model_are_said(tmp_path) -> None:
    gone = {"status": "diverged", "reason": "the norm went from 1 to 900"}
    ours = results(
        tmp_path,
        row(checkpoint="unlearned"),
        row(method="retrain"),
        row(method="pga", request="client:site-3", **gone),
    )
    notes = both(join_published(ours)).query("table == 'lethe 3'").set_index("method")["note"].to_dict()
    assert notes["puf"] == "on held-out records; before recovery; the study reports after it"
    assert "which the study does not have" in notes["retrain"]
    assert notes["pga"].endswith("the study removes client:site-0; diverged: the norm went from 1 to 900")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("u_lira_auc", "ulira_auc"),
        ("calibrated_mia_auc", "calibrated_mia_auc"),
        ("speedup", "speedup"),
    ],
)
def test_names_of_metrics_are_mapped(tmp_path, theirs: str, ours: str) -> None:
    found = both(join_published(results(tmp_path, row(ours, 0.6))))
    assert set(found["metric"]) == {theirs}


def test_hospitals_of_their_own_match_a_natural_split(tmp_path) -> None:
    ours = results(
        tmp_path, row(dataset="camelyon17", partition="natural", alpha=math.nan, request="client:hospital-0")
    )
    found = both(join_published(ours)).iloc[0]
    assert (found["published"], found["note"]) == (0.799, "on held-out records")


def test_means_over_data_sets_and_sole_holders_have_no_counterpart(tmp_path) -> None:
    joined = join_published(results(tmp_path, row()))
    for table, said in (("lethe 20", "a mean over data sets"), ("lethe 18", "sole holder")):
        assert joined[joined["table"] == table]["note"].str.contains(said).all()


@pytest.mark.parametrize("rows", [(), (row("a_metric_of_no_study"),)])
def test_a_run_without_any_metric_of_the_studies_leaves_their_numbers_alone(tmp_path, rows) -> None:
    joined = join_published(merge_results(rows))
    assert list(joined.columns) == list(COLUMNS)
    assert joined["published"].notna().sum() == len(joined) == len(published())
    assert joined["ours"].isna().all()
