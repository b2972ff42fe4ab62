"""The panel: every metric of one model as rows for the results table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from evaluation.catalogue import METRICS
from evaluation.evidence import Evidence, ScoredModel
from evaluation.failures import named_failure
from evaluation.metrics.value import Value

Row = dict[str, Any]


def measure(evidence: Evidence, earlier: Sequence[str] = ()) -> list[Row]:
    """Compute every registered metric of one model, and what concerns forgotten records for each earlier request too.

    Parameters
    ----------
    evidence : Evidence
        The model and what it is read against.
    earlier : sequence of str
        Granularities of the request's earlier steps. Their metrics are named after the step: ``step1_forget_accuracy``
        is the accuracy, after all steps, on what the first one forgot.

    Returns
    -------
    list of dict
        Keys metric, value, n, ci_low, ci_high, status, reason, in order of metric. A missing value is NaN with its
        reason. Every row of a model whose own status is not ``ok`` carries that status and reason.

    Raises
    ------
    RunFailed
        When a metric raises, as where a record was scored twice or the model's tensors are not gold's.
    """
    measured = [*_measure(evidence)]
    for step, of_step in enumerate(earlier, start=1):
        measured += _measure(evidence.of_step(step, of_step), f"step{step}_")
    return [_row(name, value, evidence.model) for name, value in sorted(measured, key=lambda one: one[0])]


def _measure(evidence: Evidence, prefix: str = "") -> Iterator[tuple[str, Value]]:
    """Yield every metric by name; with a prefix only those about the forgotten records."""
    for registered in METRICS.names():
        metric = METRICS.get(registered)
        if metric.of_forgotten or not prefix:
            with named_failure("metric", registered):
                rows = [*metric.rows(evidence, prefix)]
            yield from rows


def _row(name: str, value: Value, model: ScoredModel) -> Row:
    """Make a results row; the model's own misfortune overrules the status of its numbers."""
    row: Row = {"metric": name} | asdict(value)
    if model.status != "ok":
        row["status"] = model.status
        row["reason"] = "; ".join(part for part in (model.reason, value.reason) if part)
    return row
