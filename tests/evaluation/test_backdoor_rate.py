"""The attack success rate in the panel, gold's beside it, and why it is missing where it is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from evaluation.catalogue import METRICS
from evaluation.metrics.backdoor import success_rate
from evaluation.metrics.intervals import wilson


def table(holdout: list[float], reference: list[float] = [], clean: float = 1.0) -> pd.DataFrame:  # noqa: B006
    hits = np.array([*holdout, *reference], dtype=np.float64)
    return pd.DataFrame(
        {
            "record": [f"{i:016x}" for i in range(len(hits))],
            "site": "site-0",
            "split": ["holdout"] * len(holdout) + ["reference"] * len(reference),
            "selected": False,
            "retained": True,
            "hit": hits,
            "clean": np.full(len(hits), clean),
        }
    )


def rows_of(evidence: Any, family: str) -> dict[str, Any]:
    return dict(METRICS.get(family).rows(evidence))


@pytest.fixture
def measured(make_model, make_evidence):
    """Return what measures a metric of a model with one table against a gold with another."""

    def measure(what: str, mine: pd.DataFrame | None, gold: pd.DataFrame | None = None, **changes: Any) -> Any:
        def scored(method: str, found: pd.DataFrame | None) -> Any:
            return make_model(method, tables={} if found is None else {"backdoor": found})

        evidence = make_evidence(scored("ga", mine), scored("retrain", gold), **changes)
        return rows_of(evidence, what.removeprefix("delta_"))[what.format(metric="accuracy")]

    return measure


@pytest.mark.parametrize(
    ("hits", "rate"), [([1, 1, 1], 1.0), ([0, 0, 0], 0.0), ([1, 1, 0, 1], 0.75)], ids=["all", "none", "3 of 4"]
)
def test_the_rate_is_the_share_of_hits_with_wilsons_interval(measured, hits: list[float], rate: float) -> None:
    found = measured("backdoor_asr", table(hits))
    assert (found.value, found.n, found.status) == (rate, len(hits), "ok")
    assert (found.ci_low, found.ci_high) == wilson(sum(hits), len(hits))


def test_the_difference_is_the_models_minus_golds(measured) -> None:
    found = measured("delta_backdoor_asr", table([1, 1, 0, 1]), table([0, 1, 0, 0]))
    assert (found.value, found.n) == (0.5, 4)
    assert found.ci_low <= 0.5 <= found.ci_high


def test_the_order_of_the_records_does_not_matter(measured) -> None:
    mine, gold = table([1, 1, 0, 1]), table([0, 1, 0, 0])
    for what in ("backdoor_asr", "delta_backdoor_asr", "backdoor_clean_{metric}"):
        assert measured(what, mine[::-1], gold) == measured(what, mine, gold)


def test_gold_is_at_no_distance_from_itself(measured) -> None:
    assert measured("delta_backdoor_asr", table([1, 0]), table([1, 0])).value == 0.0


def test_with_a_reference_set_it_is_of_that_alone(measured) -> None:
    mine = table([1, 1, 1], [0, 1])
    assert measured("backdoor_asr", mine, has_reference=True).value == 0.5
    assert measured("backdoor_asr", mine, has_reference=False).value == 1.0


def test_the_clean_metric_is_of_the_same_records(measured) -> None:
    found = measured("backdoor_clean_{metric}", table([1, 1, 1], [0, 1], clean=0.5), has_reference=True)
    assert (found.value, found.n) == (0.5, 2)


ALL = ("backdoor_asr", "delta_backdoor_asr", "backdoor_clean_{metric}")


@pytest.mark.parametrize("what", ALL)
@pytest.mark.parametrize(
    ("mine", "gold", "status", "reason"),
    [
        (None, table([1]), "undefined", "not scored"),
        (table([]), table([]), "undefined", "every test record is of the target class"),
    ],
)
def test_a_missing_rate_has_a_status_and_a_reason(measured, what, mine, gold, status, reason) -> None:
    found = measured(what, mine, gold)
    assert math.isnan(found.value)
    assert (found.status, found.reason) == (status, reason)


@pytest.mark.parametrize("what", ALL)
def test_outputs_that_are_not_finite_are_undefined_and_not_zero(measured, what) -> None:
    found = measured(what, table([1, math.nan], clean=math.nan), table([1, 1]))
    assert math.isnan(found.value) and found.status == "undefined"
    assert "non-finite outputs" in found.reason


def test_a_difference_says_when_it_is_gold_that_has_none(measured) -> None:
    mine = table([1, 1])
    assert measured("delta_backdoor_asr", mine, table([1, math.nan])).reason.startswith("gold: non-finite")
    assert measured("delta_backdoor_asr", mine, None).reason == "gold: not scored"


def test_without_gold_there_is_a_rate_and_no_difference(make_model, make_evidence) -> None:
    alone = make_evidence(make_model(tables={"backdoor": table([1, 0])}), None)
    rows = rows_of(alone, "backdoor_asr")
    assert rows["backdoor_asr"].value == 0.5
    assert rows["delta_backdoor_asr"].reason == "needs gold"


@pytest.mark.parametrize("family", ["backdoor_asr", "backdoor_clean_{metric}", "backdoor_asr_relearned_{each}"])
def test_where_nothing_was_planted_there_is_no_row(make_model, make_evidence, family) -> None:
    assert rows_of(make_evidence(make_model(), make_model("retrain")), family) == {}


def relearned(*epochs: list[float], reason: str = "") -> pd.DataFrame:
    parts = [table(hits).assign(epoch=epoch, reason=reason if epoch else "") for epoch, hits in enumerate(epochs)]
    return pd.concat(parts, ignore_index=True)


def test_after_each_epoch_of_relearning_there_is_a_rate_of_its_own(make_model, make_evidence) -> None:
    mine, gold = relearned([1, 1], [1, 0], [0, 0]), relearned([0, 0], [0, 0], [0, 0])
    models = [make_model(m, tables={"backdoor-relearned": found}) for m, found in (("ga", mine), ("retrain", gold))]
    rows = rows_of(make_evidence(*models), "backdoor_asr_relearned_{each}")
    assert [rows[f"backdoor_asr_relearned_{epoch}"].value for epoch in range(3)] == [1.0, 0.5, 0.0]
    assert [rows[f"delta_backdoor_asr_relearned_{epoch}"].value for epoch in range(3)] == [1.0, 0.5, 0.0]


def test_a_relearning_that_diverged_has_a_reason_and_no_rate(make_model, make_evidence) -> None:
    mine = relearned([1.0, 1.0], [math.nan, math.nan], reason="relearning diverged in epoch 1")
    evidence = make_evidence(make_model(tables={"backdoor-relearned": mine}), None)
    rows = rows_of(evidence, "backdoor_asr_relearned_{each}")
    assert rows["backdoor_asr_relearned_0"].value == 1.0
    assert math.isnan(rows["backdoor_asr_relearned_1"].value)
    assert "diverged in epoch 1" in rows["backdoor_asr_relearned_1"].reason


def test_no_record_is_undefined() -> None:
    assert success_rate(np.zeros(0)).status == "undefined"
