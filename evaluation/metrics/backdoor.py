"""How often a model obeys the trigger that was planted in one site's training records (METRICS 4)."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from evaluation.evidence import Evidence, ScoredModel
from evaluation.metrics.base import Metric
from evaluation.metrics.intervals import Floats, stratified_mean, wilson
from evaluation.metrics.value import Value, not_applicable, undefined

TABLE = "backdoor"
"""Name of the probe's table: record, site, split, selected, retained, hit, clean."""
EMPTY = "every test record is of the target class"


def success_rate(hits: Floats) -> Value:
    """Return the share of successes with Wilson's interval.

    Parameters
    ----------
    hits : ndarray of float, shape (n,)
        1 (the decision is what was planted) or 0 for each triggered record that is not of the target class.

    Returns
    -------
    Value
        ``undefined`` without records, and where the model's outputs are not finite (NaN).

    Examples
    --------
    >>> success_rate(np.array([1.0, 1.0, 0.0, 1.0])).value
    0.75
    """
    if not hits.size:
        return undefined(EMPTY)
    if bad := int(np.isnan(hits).sum()):
        return undefined(f"non-finite outputs on {bad} of {hits.size} triggered records", int(hits.size))
    low, high = wilson(int(hits.sum()), int(hits.size))
    return Value(float(hits.mean()), int(hits.size), low, high)


def _rate(evidence: Evidence, model: ScoredModel) -> Value:
    records = _test_records(evidence, model)
    return records if isinstance(records, Value) else success_rate(records["hit"].to_numpy(np.float64))


def _difference(evidence: Evidence) -> Value:
    """Return the rate minus gold's, with a bootstrap interval of the difference record by record."""
    rate = _rate(evidence, evidence.model)
    if math.isnan(rate.value):
        return rate
    if evidence.gold is None:
        return undefined("needs gold")
    gold = _rate(evidence, evidence.gold)
    if math.isnan(gold.value):
        return undefined(f"gold: {gold.reason}")
    mine, theirs = (_test_records(evidence, model) for model in (evidence.model, evidence.gold))
    assert isinstance(mine, pd.DataFrame) and isinstance(theirs, pd.DataFrame), "both have a rate"
    return stratified_mean((mine["hit"] - theirs["hit"]).to_numpy(np.float64), seed=evidence.seed)


def _clean(evidence: Evidence) -> Value:
    records = _test_records(evidence, evidence.model)
    if isinstance(records, Value):
        return records
    metric = records["clean"].to_numpy(np.float64)
    if not metric.size:
        return undefined(EMPTY)
    if bad := int(np.isnan(metric).sum()):
        return undefined(f"non-finite outputs on {bad} of {metric.size} records", int(metric.size))
    return stratified_mean(metric, seed=evidence.seed)


def _test_records(evidence: Evidence, model: ScoredModel) -> pd.DataFrame | Value:
    """Return the triggered records of the reference set, else of all sites' holdouts, by id; or why there are none."""
    scored = [one for one in (evidence.model, evidence.gold) if one is not None and TABLE in one.tables]
    if not scored:
        return not_applicable("no backdoor was planted")
    if TABLE not in model.tables:
        return undefined("not scored")
    table = model.tables[TABLE]
    split = "reference" if evidence.has_reference else "holdout"
    return table[table["split"] == split].set_index("record").sort_index()


METRIC = [
    Metric(
        name="backdoor_asr",
        title="share of triggered test records decided as planted; gold's is the rate by chance, which is not 0",
        unit="fraction",
        low=0.0,
        high=1.0,
        better="gold",
        compute=lambda evidence: _rate(evidence, evidence.model),
        difference=_difference,
    ),
    Metric(
        name="backdoor_clean_{metric}",
        title="task metric on the same records without the trigger",
        unit="",
        low=-math.inf,
        high=math.inf,
        better="gold",
        compute=_clean,
    ),
]
