"""How often a model obeys the trigger that was planted in one site's training records (METRICS 4)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from evaluation.evidence import Evidence, ScoredModel
from evaluation.metrics.base import Family, has_table, where
from evaluation.metrics.intervals import Floats, stratified_mean, wilson
from evaluation.metrics.value import Value, undefined

TABLE = "backdoor"
"""Name of the probe's table: record, site, split, selected, retained, hit, clean."""
RELEARNED = "backdoor-relearned"
"""Name of the table of the same and an epoch, after so many epochs of relearning the clean forgotten records."""
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


def _rate(evidence: Evidence, model: ScoredModel, name: str = TABLE, epoch: int = 0) -> Value:
    records = _test_records(evidence, model, name, epoch)
    return records if isinstance(records, Value) else success_rate(records["hit"].to_numpy(np.float64))


def _difference(evidence: Evidence, name: str = TABLE, epoch: int = 0) -> Value:
    """Return the rate minus gold's, with a bootstrap interval of the difference record by record."""
    rate = _rate(evidence, evidence.model, name, epoch)
    if math.isnan(rate.value):
        return rate
    if evidence.gold is None:
        return undefined("needs gold")
    gold = _rate(evidence, evidence.gold, name, epoch)
    if math.isnan(gold.value):
        return undefined(f"gold: {gold.reason}")
    mine, theirs = (_test_records(evidence, model, name, epoch) for model in (evidence.model, evidence.gold))
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


def _tables(evidence: Evidence, name: str) -> list[pd.DataFrame]:
    """Return the tables of that name that the model or gold has; none where nothing was planted, or relearned."""
    models = [one for one in (evidence.model, evidence.gold) if one is not None]
    return [one.tables[name] for one in models if name in one.tables]


def _test_records(evidence: Evidence, model: ScoredModel, name: str = TABLE, epoch: int = 0) -> pd.DataFrame | Value:
    """Return the triggered records of the reference set, else of all sites' holdouts, by id; or why there are none."""
    if name not in model.tables:
        return undefined("not scored" if name == TABLE else "not relearned")
    table = model.tables[name]
    if name == RELEARNED:
        table = table[table["epoch"] == epoch]
        if reasons := [reason for reason in table["reason"].unique() if reason]:
            return undefined(str(reasons[0]))
    split = "reference" if evidence.has_reference else "holdout"
    return table[table["split"] == split].set_index("record").sort_index()


def _after_each(compute: Callable[[Evidence, int], Value]) -> Callable[[Evidence], dict[str, Value]]:
    def several(evidence: Evidence) -> dict[str, Value]:
        tables = _tables(evidence, RELEARNED)
        epochs = sorted(int(epoch) for epoch in tables[0]["epoch"].unique()) if tables else []
        return {str(epoch): compute(evidence, epoch) for epoch in epochs}

    return several


METRIC = [
    Family(
        name="backdoor_asr",
        title="share of triggered test records decided as planted; gold's is the rate by chance, which is not 0",
        unit="fraction",
        low=0.0,
        high=1.0,
        better="gold",
        several=where(has_table(TABLE), lambda evidence: _rate(evidence, evidence.model)),
        difference=where(has_table(TABLE), _difference),
    ),
    Family(
        name="backdoor_clean_{metric}",
        title="task metric on the same records without the trigger",
        unit="",
        low=-math.inf,
        high=math.inf,
        better="gold",
        several=where(has_table(TABLE), _clean),
    ),
    Family(
        name="backdoor_asr_relearned_{each}",
        title="the same share after {each} epochs of training on the clean forgotten records",
        unit="fraction",
        low=0.0,
        high=1.0,
        better="gold",
        several=_after_each(lambda evidence, epoch: _rate(evidence, evidence.model, RELEARNED, epoch)),
        difference=_after_each(lambda evidence, epoch: _difference(evidence, RELEARNED, epoch)),
    ),
]
