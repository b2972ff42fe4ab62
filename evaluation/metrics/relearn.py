"""Durability: what a model knows of the forgotten records while it relearns them, beside gold (METRICS 6).

From table ``relearn`` of a model: the rows of its scorecard that are about forgotten records, once for each epoch. Its
means and intervals are those of any other scorecard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pandas as pd

from evaluation.curves import Curve, Point
from evaluation.evidence import Evidence, ScoredModel, SplitName
from evaluation.metrics.base import Family, has_table, where
from evaluation.metrics.value import Value, undefined

TABLE = "relearn"
_WHICH: dict[SplitName, str] = {
    "forget": "held-out records like the forgotten ones (sample requests: the forgotten records)",
    "forget_train": "the forgotten training records, which are relearned",
}
Values = dict[str, Value]
Rows = pd.DataFrame


def _table(model: ScoredModel | None) -> Rows | None:
    return None if model is None else model.tables.get(TABLE)


def _epochs(evidence: Evidence) -> list[int]:
    """Return the epochs from 0, of the model or else of gold; none where nothing was relearned."""
    for model in (evidence.model, evidence.gold):
        if (table := _table(model)) is not None:
            return sorted(int(epoch) for epoch in table["epoch"].unique())
    return []


def _at(evidence: Evidence, pick: Callable[[Rows], Rows]) -> Evidence | str:
    """Return the evidence with what `pick` takes of the tables as scorecards, or why there is none."""
    table = _table(evidence.model)
    if table is None:
        return "not relearned"
    mine = pick(table)
    if reasons := [reason for reason in mine["reason"].unique() if reason]:
        return str(reasons[0])
    model = replace(evidence.model, scorecard=mine)
    if evidence.gold is evidence.model:
        return replace(evidence, model=model, gold=model, comparison=None)
    gold = _table(evidence.gold)
    if gold is None or evidence.gold is None:
        return replace(evidence, model=model, gold=None, comparison=None)
    return replace(evidence, model=model, gold=replace(evidence.gold, scorecard=pick(gold)), comparison=None)


def _epoch(number: int) -> Callable[[Rows], Rows]:
    return lambda table: table[table["epoch"] == number]


def _averaged(table: Rows) -> Rows:
    """Return each record with its mean over the epochs of relearning; what one of them lacks, the mean lacks."""
    learnt = table[table["epoch"] > 0]
    means = {
        column: learnt.pivot(index="record", columns="epoch", values=column).mean(axis=1, skipna=False)
        for column in ("metric", "loss")
    }
    once = learnt.drop_duplicates("record").assign(reason=max(learnt["reason"], default=""))
    return once.assign(**{column: once["record"].map(found) for column, found in means.items()})


def _mean(evidence: Evidence, pick: Callable[[Rows], Rows], which: SplitName) -> Value:
    found = _at(evidence, pick)
    return undefined(found) if isinstance(found, str) else found.mean("metric", which)


def _difference(evidence: Evidence, pick: Callable[[Rows], Rows], which: SplitName) -> Value:
    """Return the model's mean minus gold's, record by record; gold's own misfortune is named as gold's."""
    found, gold = _at(evidence, pick), _gold_problem(evidence, pick)
    if isinstance(found, str) or gold:
        return undefined(found if isinstance(found, str) else f"gold: {gold}")
    return found.mean_difference("metric", which)


def _gold_problem(evidence: Evidence, pick: Callable[[Rows], Rows]) -> str:
    if evidence.of_gold is None:
        return ""  # said by the difference
    found = _at(evidence.of_gold, pick)
    return found if isinstance(found, str) else ""


def _curve(which: SplitName) -> Family:
    def several(evidence: Evidence) -> Values:
        return {str(epoch): _mean(evidence, _epoch(epoch), which) for epoch in _epochs(evidence)}

    def difference(evidence: Evidence) -> Values:
        return {str(epoch): _difference(evidence, _epoch(epoch), which) for epoch in _epochs(evidence)}

    return Family(
        name=f"relearn_{which}_{{metric}}_{{each}}",
        title=f"R_{{each}}: task metric after {{each}} epochs of relearning, on {_WHICH[which]}",
        unit="",
        low=-math.inf,
        high=math.inf,
        better="gold",
        several=several,
        difference=difference,
    )


def _area(which: SplitName) -> Family:
    return Family(
        name=f"relearn_area_{which}_{{metric}}",
        title=f"sum of R_j minus gold's R*_j over epochs j = 1 to k, over k; 0 is gold; on {_WHICH[which]}",
        unit="",
        low=-math.inf,
        high=math.inf,
        better="gold",
        several=where(has_table(TABLE), lambda evidence: _difference(evidence, _averaged, which)),
    )


def _points(evidence: Evidence) -> Iterator[Point]:
    """Yield mean metric over epoch, NaN where there is none; nothing for a model that did not relearn."""
    if _table(evidence.model) is None:
        return
    for which in _WHICH:
        for epoch in _epochs(evidence):
            yield Point(which, float(epoch), _mean(evidence, _epoch(epoch), which).value)


METRIC = [make(which) for make in (_curve, _area) for which in _WHICH]
CURVE = Curve(TABLE, _points)
