"""Costs and speed-ups (METRICS 3.6)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from evaluation.catalogue import METRICS

HERE = {"host": "h", "workers": 2, "threads": 1, "jobs": 1}


def cost(seconds: float, examples: int, recovery: float | None = None, **where: Any) -> dict[str, Any]:
    spent = {"seconds": seconds, "client_examples": examples, "bytes_up": 10} | HERE | where
    if recovery is not None:
        spent |= {"recovery_seconds": recovery, "recovery_client_examples": 100, "recovery_bytes_up": 5}
        spent |= {f"recovery_{key}": value for key, value in (HERE | where).items()}
    return spent


@pytest.fixture
def measure(make_model, make_evidence):
    gold = make_model("retrain", cost=cost(20.0, 1000, recovery=5.0))

    def value(name: str, spent: dict[str, Any] | None, method: str = "ga", anchor: Any = gold) -> Any:
        return METRICS.get(name).compute(make_evidence(make_model(method, cost=spent), anchor))

    return value


def test_speedup_is_retraining_over_the_unlearning_step_alone(measure) -> None:
    assert measure("speedup", cost(2.0, 50, recovery=3.0)).value == 10.0
    assert measure("speedup_total", cost(2.0, 50, recovery=3.0)).value == 4.0


def test_speedup_in_examples_needs_no_clock(measure) -> None:
    far = cost(2.0, 50, recovery=3.0, host="elsewhere")
    assert measure("speedup_examples", far).value == 20.0
    assert measure("speedup_examples_total", far).value == pytest.approx(1000 / 150)


def test_retraining_is_as_fast_as_itself_and_slower_with_recovery(measure) -> None:
    spent = cost(20.0, 1000, recovery=5.0)
    assert measure("speedup", spent, "retrain").value == 1.0
    assert measure("speedup_total", spent, "retrain").value == 0.8


def test_a_checkpoint_before_recovery_costs_the_step(measure) -> None:
    assert measure("seconds_total", cost(2.0, 50)).value == measure("seconds_unlearn", cost(2.0, 50)).value == 2.0


def test_totals_count_recovery(measure) -> None:
    spent = cost(2.0, 50, recovery=3.0)
    assert (measure("seconds_unlearn", spent).value, measure("seconds_total", spent).value) == (2.0, 5.0)
    assert (measure("bytes_up", spent).value, measure("bytes_up_unlearn", spent).value) == (15.0, 10.0)
    assert measure("client_examples", spent).value == 150.0


@pytest.mark.parametrize("where", [{"host": "other"}, {"workers": 4}, {"threads": 2}, {"jobs": 3}])
def test_times_of_other_hardware_are_not_divided(measure, where: dict[str, Any]) -> None:
    for name in ("speedup", "speedup_total"):
        found = measure(name, cost(2.0, 50, recovery=3.0, **where))
        assert (found.status, found.reason) == ("undefined", "timings not comparable")


def test_a_recovery_timed_elsewhere_spoils_only_the_total(measure) -> None:
    spent = cost(2.0, 50, recovery=3.0) | {"recovery_host": "other"}
    assert measure("speedup", spent).status == "ok"
    assert measure("speedup_total", spent).reason == "timings not comparable"


def test_the_original_model_unlearned_nothing(measure) -> None:
    for name in ("speedup", "speedup_examples", "seconds_unlearn"):
        assert measure(name, cost(9.0, 1), "original").status == "not_applicable"
    assert measure("seconds_total", cost(9.0, 1), "original").value == 9.0


def test_a_step_under_a_millisecond_is_reported_and_flagged(measure) -> None:
    found = measure("speedup", cost(0.0005, 0))
    assert (found.value, found.status, found.reason) == (40_000.0, "ok", "under 1 ms")


def test_no_time_and_no_records_give_no_infinite_speedup(measure) -> None:
    assert measure("speedup", cost(0.0, 0)).reason == "took no time"
    assert measure("speedup_examples", cost(1.0, 0)).reason == "processed no records at the sites"


def test_what_was_not_measured_is_not_zero(measure) -> None:
    assert math.isnan(measure("bytes_down", cost(1.0, 1)).value)
    assert measure("speedup", None).reason == "not measured"
    assert measure("speedup", cost(1.0, 1), anchor=None).reason == "needs gold"
