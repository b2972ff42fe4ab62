"""Methods ranked over data sets, from results tables to the page."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from evaluation.ranking import Ranking, rank_methods, read_runs
from evaluation.ranking_table import ranking_text
from evaluation.results import COLUMNS, write_results
from partitions.errors import BadInput

SETS = ("blood", "organa", "path", "oct", "kvasir", "camelyon")
KEPT = Path(__file__).resolve().parent.parent.parent / "docs" / "results" / "methods.csv"


def row(dataset: str, method: str, value: float, **changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = dict.fromkeys(COLUMNS, "") | {
        "experiment": "study",
        "task": "classification",
        "dataset": dataset,
        "partition": "dirichlet",
        "alpha": 0.1,
        "model": "cnn",
        "request": "client:site-0",
        "granularity": "client",
        "method": method,
        "preset": "" if method in ("original", "retrain") else "lethe",
        "checkpoint": "trained" if method == "original" else "recovered",
        "train_seed": 0,
        "unlearn_seed": 0,
        "evaluate_seed": 0,
        "metric": "delta_test_accuracy",
        "value": value,
        "n": 500,
        "ci_low": math.nan,
        "ci_high": math.nan,
        "status": "ok",
    }
    row = plain | changes
    seeds = [row["train_seed"], row["unlearn_seed"]]
    return row | {"cell": changes.get("cell", f"{method}-{dataset}-{row['request']}-{row['preset']}-{seeds}")}


def table(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows))[list(COLUMNS)]


def one(rows: Iterable[dict[str, Any]], **options: Any) -> Ranking:
    (found,) = rank_methods(table(rows), **options)
    return found


def study(sets: Iterable[str] = SETS, **changes: Any) -> list[dict[str, Any]]:
    """Make a study in which three gentle methods are near gold in turn, and ascent is far from it everywhere."""
    rows = []
    for index, name in enumerate(sets):
        gentle = np.roll([0.01, -0.02, 0.03], index)
        values = dict(zip(("fine-tuning", "fedquit", "pga"), gentle, strict=True))
        values |= {"ga": -0.5, "neggrad": -0.6, "retrain": 0.0, "original": 0.05}
        rows += [row(name, method, float(value), **changes) for method, value in values.items()]
    return rows


def test_distance_to_gold_is_ranked_without_its_sign() -> None:
    found = one([row(name, method, v) for name in SETS for method, v in (("a", 0.1), ("b", -0.2), ("c", 0.3))])
    assert found.methods == ("a", "b", "c")
    assert found.test.mean_ranks.tolist() == [1, 2, 3]
    assert found.signed.tolist() == pytest.approx([0.1, -0.2, 0.3])
    assert found.scores[0].tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_the_test_is_scipys_on_the_same_matrix() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.random((6, 4)) + np.array([0, 0.2, 0.4, 0.6])
    rows = [row(n, m, matrix[i, j]) for i, n in enumerate(SETS) for j, m in enumerate("wxyz")]
    found = one(rows)
    theirs = stats.friedmanchisquare(*matrix.T)
    assert (found.test.chi2, found.test.p) == pytest.approx((theirs.statistic, theirs.pvalue))


def test_methods_not_told_apart_are_tied_and_those_that_are_do_not_share_a_letter() -> None:
    found = one(study())
    letters = dict(zip(found.methods, found.letters, strict=True))
    assert letters["fedquit"] == letters["pga"] == letters["fine-tuning"]
    assert not set(letters["neggrad"]) & set(letters["fine-tuning"])
    assert found.pairs is not None
    assert found.test.p < 0.05


def test_without_a_significant_test_there_is_one_group_and_no_pair_is_compared() -> None:
    rows = [row(n, m, v) for i, n in enumerate(SETS) for m, v in zip("xyz", np.roll([0.1, 0.2, 0.3], i), strict=True)]
    found = one(rows)
    assert found.test.p > 0.05
    assert found.groups == ((0, 1, 2),)
    assert found.pairs is None
    assert "all are tied" in ranking_text([found])


def test_pairs_beyond_the_critical_difference_stay_tied_when_the_test_finds_nothing() -> None:
    matrix = np.random.default_rng(1).random((12, 8))
    matrix[:, 0] -= 0.3
    matrix[:, 7] += 0.3
    found = one(row(f"set-{i}", "abcdefgh"[j], 1 + v) for (i, j), v in np.ndenumerate(matrix))
    assert np.ptp(found.test.mean_ranks) > found.difference
    assert (found.test.p > 0.05, len(found.groups)) == (True, 1)


def test_a_stricter_level_ties_more() -> None:
    assert len(one(study()).groups) > len(one(study(), level=1e-6).groups) == 1


def test_gold_and_the_original_do_not_compete_but_have_a_rank_of_their_own() -> None:
    found = one(study())
    assert set(found.methods) == {"fine-tuning", "fedquit", "pga", "ga", "neggrad"}
    assert found.anchors == {"original": 4.0, "retrain": 1.0}


def test_seeds_are_averaged_first_and_are_no_blocks() -> None:
    rows = [row(n, m, v + s / 100, train_seed=s) for n in SETS for m, v in (("a", 0.1), ("b", 0.2)) for s in range(3)]
    found = one(rows)
    assert len(found.blocks) == 6
    assert found.scores[0].tolist() == pytest.approx([0.11, 0.21])


def test_the_distance_of_a_seed_is_to_its_own_gold_so_signs_do_not_cancel() -> None:
    rows = [row(n, "a", v, train_seed=s) for n in SETS for s, v in enumerate((-0.3, 0.3))]
    rows += [row(n, "b", 0.1, train_seed=s) for n in SETS for s in range(2)]
    found = one(rows)
    assert found.methods == ("b", "a")
    assert found.scores[0].tolist() == pytest.approx([0.1, 0.3])


def test_splits_and_requests_of_a_data_set_are_one_block_unless_asked_for() -> None:
    rows = [
        row(name, method, value * alpha, alpha=alpha, request=request)
        for name in SETS[:2]
        for alpha in (0.1, 0.5)
        for request in ("client:site-0", "client:site-1")
        for method, value in (("a", 0.1), ("b", 0.2), ("c", 0.4))
    ]
    assert one(rows).blocks == ("blood", "organa")
    assert one(rows, block="split").blocks[:2] == ("blood dirichlet 0.1", "blood dirichlet 0.5")
    assert len(one(rows, block="request").blocks) == 8
    assert any("not independent" in text for text in one(rows, block="split").warnings)


def test_one_data_set_is_ranked_but_not_tested_and_the_way_to_more_blocks_is_shown() -> None:
    rows = [row("blood", m, v, alpha=a) for a in (0.1, 0.5) for m, v in (("a", 0.1), ("b", 0.2), ("c", 0.3))]
    found = one(rows)
    assert (found.test.source, found.methods) == ("none", ("a", "b", "c"))
    assert any("`--block split` has 2 blocks" in text for text in found.warnings)
    assert "No test: 1 block" in ranking_text([found])


def test_kinds_of_requests_are_ranked_apart() -> None:
    rows = study() + study(request="class:2", granularity="class")
    assert [found.granularity for found in rank_methods(table(rows))] == ["client", "class"]


def test_a_method_missing_in_more_than_a_quarter_is_left_out_with_its_reason() -> None:
    rows = study()
    for index, name in enumerate(SETS):
        missing = {"status": "not_applicable"} if index < 2 else {}
        rows.append(row(name, "prune", math.nan if missing else 0.2, **missing))
    found = one(rows)
    assert "prune" not in found.methods
    assert found.left_out == {"prune": "no score in 2 of 6 blocks (does not apply)"}
    assert "not ranked: prune: no score in 2 of 6 blocks (does not apply)" in ranking_text([found])


def test_a_method_missing_in_a_quarter_or_less_costs_the_block() -> None:
    rows = [one for one in study() if (one["dataset"], one["method"]) != ("path", "pga")]
    found = one(rows)
    assert "pga" in found.methods
    assert "path" not in found.blocks
    assert found.dropped == {"path": "no score of pga"}


def test_a_diverged_model_has_no_score_although_it_has_a_number() -> None:
    rows = [one | ({"status": "diverged"} if one["method"] == "ga" else {}) for one in study()]
    assert one(rows).left_out == {"ga": "no score in 6 of 6 blocks (diverged)"}


def test_one_diverged_seed_is_not_averaged_away() -> None:
    rows = [one | {"train_seed": s, "cell": one["cell"] + str(s)} for one in study() for s in range(2)]
    for found in rows:
        if (found["method"], found["train_seed"]) == ("ga", 1):
            found["status"] = "diverged"
    assert one(rows).left_out == {"ga": "no score in 6 of 6 blocks (diverged under 1 of 2 seeds)"}


def test_a_method_that_lacks_a_setting_of_a_block_has_no_score_there() -> None:
    rows = study() + [found for found in study(alpha=0.5) if found["method"] != "pga"]
    assert one(rows).left_out == {"pga": "no score in 6 of 6 blocks (not run in all their settings)"}


def test_underpowered_values_are_numbers() -> None:
    assert len(one([found | {"status": "underpowered"} for found in study()]).methods) == 5


def test_few_blocks_bring_the_power_warning() -> None:
    found = one(study(SETS[:4]))
    assert "4 blocks, 5 methods: two must differ by 3.05 of at most 4 ranks" in found.warnings[0]
    text = " ".join(ranking_text([found]).split())
    assert "76% of the scale" in text
    assert "lack of power" in text


def test_seeds_that_disagree_are_named_with_the_advice() -> None:
    rows = [row(n, m, v, train_seed=s) for n in SETS for m in "ab" for s, v in enumerate((0.0, 0.3))]
    found = one(rows)
    assert "add train seeds" in found.unstable[0]
    assert one(study()).unstable == ()


def test_equal_scores_averaged_in_another_order_are_ties() -> None:
    parts = [0.1, 0.2, 0.3]
    rows = [row(n, m, v, train_seed=s) for n in SETS for m in "xy" for s, v in enumerate(parts)]
    rows = [one | {"value": parts[(one["train_seed"] + (one["method"] == "y")) % 3]} for one in rows]
    assert sum(parts) / 3 != (parts[1] + parts[2] + parts[0]) / 3
    assert one(rows).test.mean_ranks.tolist() == [1.5, 1.5]


def test_a_difference_that_no_pair_shows_is_said_so() -> None:
    found = [found for found in rank_methods(read_runs([KEPT]), block="split") if found.granularity == "sample"]
    assert found[0].test.p < 0.05
    assert len(found[0].groups) == 1
    assert "The methods differ, but no two of them can be named" in ranking_text(found)


def test_presets_and_settings_of_one_method_compete_with_each_other() -> None:
    rows = study() + [row(name, "ga", 0.1, preset="safe") for name in SETS]
    assert {"ga lethe", "ga safe"} <= set(one(rows).methods)
    both = [row("blood", "ga", v, cell=cell) for v, cell in ((0.1, "aaaaaa1"), (0.2, "bbbbbb2"))]
    assert set(one(both).methods) == {"ga aaaaaa", "ga bbbbbb"}


def test_a_metric_with_a_difference_to_gold_is_ranked_by_it() -> None:
    rows = study() + [found | {"metric": "test_accuracy", "value": 0.5} for found in study()]
    assert one(rows, metric="test_accuracy").metric == "delta_test_accuracy"


def test_a_metric_without_one_is_ranked_by_its_own_direction() -> None:
    rows = [found | {"metric": "retrain_gap_l2", "value": abs(found["value"])} for found in study()]
    found = one(rows, metric="retrain_gap_l2")
    assert (found.better, found.methods[-1]) == ("low", "neggrad")
    rows = [found | {"metric": "completeness_test", "value": 1 - abs(found["value"])} for found in study()]
    found = one(rows, metric="completeness_test")
    assert (found.better, found.methods[-1]) == ("high", "neggrad")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"metric": "delta_test_acuracy"}, "did you mean 'delta_test_accuracy'"),
        ({"metric": "param_norm"}, "can be ranked"),
        ({"checkpoint": "recoverd"}, "did you mean 'recovered'"),
        ({"block": "datasets"}, "did you mean 'dataset'"),
        ({"level": 1.5}, "between 0 and 1"),
    ],
)
def test_what_cannot_be_ranked_is_refused(options: dict[str, Any], says: str) -> None:
    rows = study() + [found | {"metric": "param_norm"} for found in study()]
    with pytest.raises(BadInput, match=says):
        rank_methods(table(rows), **options)


def test_requests_that_separate_nothing_are_named() -> None:
    rows = study()
    rows += [row("blood", "fine-tuning", 0.01, metric="delta_forget_accuracy", ci_low=-0.1, ci_high=0.1)]
    rows += [row("blood", "fine-tuning", 0.01, metric="delta_forget_train_accuracy", ci_low=0.009, ci_high=0.011)]
    said = [text for text in one(rows).warnings if "judges no forgetting" in text]
    assert len(said) == 1
    assert said[0].startswith("Recovery alone cannot be told from gold by forget accuracy,")
    assert said[0].endswith(": blood dirichlet 0.1 client:site-0.")


def test_runs_are_read_together_and_a_cell_in_two_runs_counts_once(tmp_path: Path) -> None:
    write_results(tmp_path / "a", study(SETS[:3]))
    write_results(tmp_path / "b", study(SETS[2:]))
    found = read_runs([tmp_path / "a", tmp_path / "b" / "results.csv"])
    assert len(found) == len(study())
    assert len(one(found.to_dict("records")).blocks) == 6


def test_two_experiments_that_ran_the_same_setting_are_one(tmp_path: Path) -> None:
    first = [found for found in study() if found["method"] != "pga"]
    second = [found | {"experiment": "other"} for found in study() if found["method"] in ("pga", "ga", "retrain")]
    write_results(tmp_path / "a", first)
    write_results(tmp_path / "b", second)
    found = one(read_runs([tmp_path / "a", tmp_path / "b"]).to_dict("records"))
    assert len(found.methods) == 5
    assert found.left_out == {}


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="a run folder"):
        read_runs(["none"], tmp_path)


def test_the_page_fits_100_columns_and_names_everything() -> None:
    long = [found | {"dataset": f"{found['dataset']}-with-a-name-that-is-long"} for found in study()]
    text = ranking_text(rank_methods(table(long)))
    assert max(map(len, (line.rstrip() for line in text.splitlines()))) <= 100
    assert "…" not in text
    assert "Friedman: p = " in text
    assert "critical difference" in text
    assert "fine-tuning is recovery alone" in text


def test_json_has_no_nan_and_the_same_ranking() -> None:
    found = one(study())
    loaded = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert [method["method"] for method in loaded["methods"]] == list(found.methods)
    assert loaded["test"]["p"] == found.test.p
    assert loaded["methods"][0]["by_block"].keys() == set(SETS)
    small = one([row("blood", "a", 0.1)])
    assert json.loads(json.dumps(small.to_json(), allow_nan=False))["test"]["p"] is None


def test_a_run_with_nothing_but_the_original_ranks_nothing() -> None:
    rows = [row("blood", "original", 0.1), row("blood", "retrain", 0.0)]
    found = one(rows)
    assert (found.methods, found.blocks, found.groups) == ((), (), ())
    assert "No test" in ranking_text([found])


def test_the_kept_table_of_the_docs_can_be_ranked() -> None:
    found = rank_methods(read_runs([KEPT]), block="split")
    assert [one.granularity for one in found] == ["client", "class", "sample"]
    assert all(len(one.blocks) == 2 for one in found)
    assert "ga" in found[0].left_out
    assert max(len(line.rstrip()) for line in ranking_text(found).splitlines()) <= 100
