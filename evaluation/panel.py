"""The panel: every metric of one model as rows for the results table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from evaluation.catalogue import METRICS
from evaluation.evidence import Evidence, ScoredModel
from evaluation.metrics.value import Value
from evaluation.shadows import Shadows

__all__ = ["ScoredModel", "score_model"]

Row = dict[str, Any]


def score_model(
    model: ScoredModel,
    gold_same_checkpoint: ScoredModel | None,
    comparison: pd.DataFrame | None,
    *,
    granularity: str,
    metric_name: str,
    higher_is_better: bool,
    has_reference: bool,
    evaluate_seed: int,
    gold_other_checkpoint: ScoredModel | None = None,
    earlier: Sequence[str] = (),
    shadows: Shadows | None = None,
) -> list[Row]:
    """Compute every registered metric of one model, and what concerns forgotten records for each earlier request too.

    Parameters
    ----------
    model : ScoredModel
        The model to score.
    gold_same_checkpoint : ScoredModel or None
        Retrained model of the same seed: as trained for the original and for checkpoint ``unlearned``, after the same
        recovery for ``recovered``. The retrained model itself may be given or left out.
    comparison : DataFrame or None
        Divergences of the outputs, model first, to that gold; None for gold itself or where not compared.
    granularity : str
        Of the request's last step: client, class, patient or sample.
    metric_name, higher_is_better : str, bool
        The task's metric and its direction.
    has_reference : bool
        Whether there is a reference set, which then is ``test``.
    evaluate_seed : int
        Seed of bootstrap and subsampling.
    gold_other_checkpoint : ScoredModel or None
        The other anchor, for ``retrain_gap_l2_other_checkpoint``.
    earlier : sequence of str
        Granularities of the request's earlier steps. Their metrics are named after the step: ``step1_forget_accuracy``
        is the accuracy, after all steps, on what the first one forgot.
    shadows : Shadows or None
        For the attacks that need other models.

    Returns
    -------
    list of dict
        Keys metric, value, n, ci_low, ci_high, status, reason, in order of metric. A missing value is NaN with its
        reason. Every row of a model whose own status is not ``ok`` carries that status and reason.

    Raises
    ------
    ValueError
        When a record was scored twice, or the model's tensors are not gold's.
    """
    gold = model if gold_same_checkpoint is None and model.method == "retrain" else gold_same_checkpoint
    evidence = Evidence(
        model,
        gold,
        gold_other_checkpoint,
        comparison,
        granularity,
        metric_name,
        higher_is_better,
        has_reference,
        evaluate_seed,
        shadows,
    )
    measured = [*_measure(evidence)]
    for step, of_step in enumerate(earlier, start=1):
        measured += _measure(evidence.of_step(step, of_step), f"step{step}_")
    return [_row(name, value, model) for name, value in sorted(measured, key=lambda one: one[0])]


def _measure(evidence: Evidence, prefix: str = "") -> Iterator[tuple[str, Value]]:
    """Yield every metric by name; with a prefix only those about the forgotten records."""
    for registered in METRICS.names():
        metric = METRICS.get(registered)
        if prefix and not metric.of_forgotten:
            continue
        name = prefix + metric.name.format(metric=evidence.metric_name)
        yield name, metric.compute(evidence)
        if metric.difference is not None:
            yield f"delta_{name}", metric.difference(evidence)


def _row(name: str, value: Value, model: ScoredModel) -> Row:
    """Make a results row; the model's own misfortune overrules the status of its numbers."""
    row: Row = {"metric": name} | asdict(value)
    if model.status != "ok":
        row["status"] = model.status
        row["reason"] = "; ".join(part for part in (model.reason, value.reason) if part)
    return row
