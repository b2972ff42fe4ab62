"""Seeds aggregated as they nest, and when to ask for more of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from evaluation.results import COLUMNS
from evaluation.spread import is_fraction, spread, spreads


def rows(values: dict[tuple[int, int, int], float], **labels: Any) -> pd.DataFrame:
    """Make the rows of one metric: (train, unlearn, evaluate) seed to value."""
    plain: dict[str, Any] = dict.fromkeys(COLUMNS, "") | {"alpha": math.nan, "cell": "aaaaaa1", "status": "ok"}
    plain |= {"method": "ga", "metric": "forget_accuracy", "n": 40, "ci_low": math.nan, "ci_high": math.nan}
    seeds = ("train_seed", "unlearn_seed", "evaluate_seed")
    return pd.DataFrame(
        [plain | labels | dict(zip(seeds, key, strict=True)) | {"value": value} for key, value in values.items()]
    )


def nested(seeds: tuple[int, int, int] = (3, 2, 2), **scale: float) -> dict[tuple[int, int, int], float]:
    """Draw values of nested seeds; keywords are the deviations of the levels."""
    rng = np.random.default_rng(0)
    train, unlearn, evaluate = seeds
    of_train, of_unlearn, of_evaluate = (scale.get(level, 0.0) for level in ("train", "unlearn", "evaluate"))
    found = {}
    for i in range(train):
        a = of_train * rng.standard_normal()
        for j in range(unlearn):
            b = of_unlearn * rng.standard_normal()
            for k in range(evaluate):
                found[i, j, k] = 0.5 + a + b + of_evaluate * rng.standard_normal()
    return found


def test_mean_and_sample_deviation_are_over_all_seeds_and_raw_values_are_kept() -> None:
    values = nested(train=0.1, unlearn=0.05, evaluate=0.01)
    found = spread(rows(values), "forget_accuracy")
    assert found.values == tuple(values.values())
    assert found.mean == pytest.approx(np.mean(list(values.values())))
    assert found.std == pytest.approx(np.std(list(values.values()), ddof=1))


def test_seeds_are_counted_as_they_nest() -> None:
    assert spread(rows(nested((3, 2, 4))), "m").seeds == {"train": 3, "unlearn": 2, "evaluate": 4}


def test_values_are_in_the_order_of_the_seeds_whatever_the_order_of_the_rows() -> None:
    frame = rows(nested(train=0.1, evaluate=0.1))
    assert spread(frame[::-1], "m") == spread(frame, "m")


def test_each_level_has_its_own_deviation() -> None:
    found = spread(rows({(0, 0, 0): 0.1, (0, 0, 1): 0.3, (0, 1, 0): 0.5, (0, 1, 1): 0.7, (1, 0, 0): 0.4}), "m")
    assert found.between["evaluate"] == pytest.approx(math.sqrt((0.02 + 0.02) / 2))
    assert found.between["unlearn"] == pytest.approx(np.std([0.2, 0.6], ddof=1))
    assert found.between["train"] == pytest.approx(0.0)  # training seed 0 averages to 0.4, as 1 does


def test_one_seed_has_no_deviation_and_is_not_called_unstable() -> None:
    found = spread(rows({(0, 0, 0): 0.5}), "forget_accuracy")
    assert math.isnan(found.std)
    assert (found.unstable, found.advice) == (False, "")
    assert all(math.isnan(value) for value in found.between.values())


@pytest.mark.parametrize(("gap", "unstable"), [(0.10, False), (0.16, True)])  # deviations 0.071 and 0.113
def test_a_deviation_above_ten_points_is_unstable(gap: float, unstable: bool) -> None:
    found = spread(rows({(0, 0, 0): 0.5, (1, 0, 0): 0.5 + gap}), "forget_accuracy")
    assert found.unstable == unstable
    assert bool(found.advice) == unstable


def test_the_threshold_can_be_moved() -> None:
    frame = rows({(0, 0, 0): 0.5, (1, 0, 0): 0.6})
    assert spread(frame, "forget_accuracy", threshold=0.05).unstable
    assert "above 5" in spread(frame, "forget_accuracy", threshold=0.05).advice


@pytest.mark.parametrize("level", ["train", "unlearn", "evaluate"])
def test_the_advice_names_the_seeds_that_the_deviation_comes_from(level: str) -> None:
    found = spread(rows(nested((6, 6, 6), **{level: 0.4})), "forget_accuracy")
    assert f"add {level} seeds" in found.advice


def test_only_fractions_are_in_percentage_points() -> None:
    names = ["delta_forget_train_accuracy", "step1_test_accuracy", "population_mia_auc", "completeness_forget"]
    assert all(map(is_fraction, names))
    others = ["forget_loss", "retrain_gap_l2", "seconds_total", "forget_psnr", "js_forget"]
    assert not any(map(is_fraction, others))
    frame = rows({(0, 0, 0): 1.0, (1, 0, 0): 9.0})
    assert not spread(frame, "forget_loss").unstable


def test_a_missing_value_is_counted_and_not_averaged() -> None:
    found = spread(rows({(0, 0, 0): 0.5, (1, 0, 0): math.nan, (2, 0, 0): 0.7}), "forget_accuracy")
    assert (found.values, found.mean, found.missing) == ((0.5, 0.7), pytest.approx(0.6), 1)
    none = spread(rows({(0, 0, 0): math.nan}), "forget_accuracy")
    assert (none.values, none.missing, none.unstable) == ((), 1, False)
    assert math.isnan(none.mean)


def test_the_same_seeds_twice_are_no_seeds_of_one_thing() -> None:
    frame = rows({(0, 0, 0): 0.5})
    with pytest.raises(ValueError, match="twice"):
        spread(pd.concat([frame, frame]), "m")


def test_a_table_has_one_row_a_method_and_metric_and_never_mixes_settings() -> None:
    frame = pd.concat(
        [
            rows({(0, 0, 0): 0.2, (1, 0, 0): 0.4}, method="pga"),
            rows({(0, 0, 0): 0.1}, cell="bbbbbb2"),
            rows({(0, 0, 0): 0.9}),
            rows({(0, 0, 0): 5.0}, metric="seconds_total", method="pga"),
        ],
        ignore_index=True,
    )
    found = spreads(frame).set_index(["method", "variant", "metric"])
    assert found["mean"].to_dict() == {
        ("pga", "", "forget_accuracy"): pytest.approx(0.3),
        ("ga", "bbbbbb", "forget_accuracy"): 0.1,
        ("ga", "aaaaaa", "forget_accuracy"): 0.9,
        ("pga", "", "seconds_total"): 5.0,
    }
    assert found.loc["pga", "", "forget_accuracy"]["unstable"]
    assert spreads(frame.iloc[:0]).empty


def test_an_original_without_unlearning_seeds_is_aggregated_too() -> None:
    frame = rows({(0, 0, 0): 0.2, (1, 0, 0): 0.4}, method="original").assign(
        unlearn_seed=pd.array([None, None], dtype="Int64")
    )
    assert spread(frame, "m").seeds == {"train": 2, "unlearn": 1, "evaluate": 1}
    assert len(spreads(frame)) == 1
