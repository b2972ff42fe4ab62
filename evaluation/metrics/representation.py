"""How a model represents what it was to forget: penultimate features, where a run asked the sites for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from evaluation.curves import Curve, Point
from evaluation.evidence import Evidence, ScoredModel
from evaluation.features import TABLE, refusing, standardised, values_of
from evaluation.metrics.base import Family, has_table, where
from evaluation.metrics.geometry import linear_cka, silhouettes
from evaluation.metrics.intervals import Floats, stratified_mean
from evaluation.metrics.value import Value, undefined

FEWEST = 3
"""Records whose features can be compared: of two, any two models' features are aligned."""
ENOUGH = 10
"""Records to forget, and to retain, below which a silhouette is underpowered."""
CHANCE = 0.5
"""An alignment is underpowered where records paired at random give more than this."""
SIDES = {"": "all", "_forget": "forget", "_retain": "retain"}


def _problem(model: ScoredModel) -> Value | None:
    """Return why a model has no features to compare; None when it has."""
    table = model.tables.get(TABLE)
    if table is None:
        return undefined("no features of this model")
    if sites := refusing(table):
        return undefined(f"site {', '.join(sites)} refuses features")
    if bad := int((~np.isfinite(values_of(table)).all(axis=1)).sum()):
        return undefined(f"non-finite features of {bad} of {len(table)} records", len(table))
    return None


def _table(model: ScoredModel) -> pd.DataFrame:
    """Return the features of a model without a `_problem`, in order of record."""
    return model.tables[TABLE].sort_values("record", kind="stable", ignore_index=True)


def _pair(evidence: Evidence) -> tuple[pd.DataFrame, pd.DataFrame] | Value:
    """Return the model's and gold's features of the same records in the same order, or why not."""
    if problem := _problem(evidence.model):
        return problem
    if evidence.gold is None:
        return undefined("needs gold")
    if problem := _problem(evidence.gold):
        return replace(problem, reason=f"gold: {problem.reason}")
    model, gold = _table(evidence.model), _table(evidence.gold)
    if model["record"].tolist() != gold["record"].tolist():
        return undefined("the model's features and gold's are of different records")
    return model, gold


def _apart(table: pd.DataFrame, granularity: str) -> tuple[Floats, NDArray[np.str_]] | Value:
    """Return the silhouettes of a model's records and the strata within which they hold, or why there are none.

    A forgotten class has no record to retain: it is compared with all others.
    """
    forget = table["selected"].to_numpy(dtype=bool)
    if min(forget.sum(), (~forget).sum()) < 2:
        return undefined(
            f"features of {forget.sum()} forget and {(~forget).sum()} retain records: at least 2 each are needed"
        )
    strata = table["stratum"].to_numpy(dtype=str)
    compared = np.full_like(strata, "") if granularity == "class" else strata
    features = standardised(values_of(table))
    if not features.shape[1]:
        return undefined("the features do not vary", len(table))
    found = silhouettes(features, forget, compared)
    if np.isnan(found).all():
        return undefined("no stratum has features of 2 forget and 2 retain records")
    return found, compared


def _mean(of: Floats, table: pd.DataFrame, strata: NDArray[np.str_], seed: int) -> Value:
    """Average the silhouettes of the records to forget, with the interval of a mean of independent values."""
    kept = ~np.isnan(of)
    forget = table["selected"].to_numpy(dtype=bool)
    value = stratified_mean(of[kept], strata[kept], seed=seed)
    if left_out := int(forget.sum() - kept.sum()):
        value = value.because(f"{left_out} forget records of strata with too few retain records left out")
    fewest = min(int(kept.sum()), int((~forget & np.isin(strata, strata[kept])).sum()))
    if fewest < ENOUGH:
        few = f"{fewest} records on the smaller side: at least {ENOUGH} are needed"
        value = replace(value, status="underpowered").because(few)
    return value


def _silhouette(evidence: Evidence) -> Value:
    if problem := _problem(evidence.model):
        return problem
    table = _table(evidence.model)
    found = _apart(table, evidence.granularity)
    return found if isinstance(found, Value) else _mean(found[0], table, found[1], evidence.seed)


def _silhouette_difference(evidence: Evidence) -> Value:
    pair = _pair(evidence)
    if isinstance(pair, Value):
        return pair
    model, gold = (_apart(table, evidence.granularity) for table in pair)
    if isinstance(model, Value):
        return model
    if isinstance(gold, Value):
        return replace(gold, reason=f"gold: {gold.reason}")
    return _mean(model[0] - gold[0], pair[0], model[1], evidence.seed)


def _alignment(side: str) -> Callable[[Evidence], Value]:
    """Make the alignment with gold on all records, on those to forget, or on those to retain."""

    def compute(evidence: Evidence) -> Value:
        pair = _pair(evidence)
        if isinstance(pair, Value):
            return pair
        selected = pair[0]["selected"].to_numpy(dtype=bool)
        rows = np.full_like(selected, True) if side == "all" else selected == (side == "forget")
        n = int(rows.sum())
        if n < FEWEST:
            return undefined(f"features of {n} {side} records: at least {FEWEST} are needed", n)
        value, chance = linear_cka(*(values_of(table[rows]) for table in pair))
        if np.isnan(value):
            return undefined("the features do not vary", n)
        if chance > CHANCE:
            few = f"{n} records are few: paired at random they give {chance:.2f}"
            return Value(value, n, status="underpowered", reason=few)
        return Value(value, n)

    return compute


def _map(evidence: Evidence) -> Iterator[Point]:
    """Yield a point a mapped record, called by its stratum."""
    table = evidence.model.tables.get(TABLE)
    if table is None or "map_x" not in table:
        return
    mapped = table[table["map_x"].notna()]
    for selected, x, y, stratum in zip(
        *(mapped[name] for name in ("selected", "map_x", "map_y", "stratum")), strict=True
    ):
        yield Point("forget" if selected else "retain", float(x), float(y), str(stratum))


METRIC = [
    Family(
        "feature_silhouette",
        "mean silhouette of forget against retain records of the same stratum, in standardised penultimate features",
        "",
        -1.0,
        1.0,
        "gold",
        where(has_table(TABLE), _silhouette),
        difference=where(has_table(TABLE), _silhouette_difference),
    ),
    *[
        Family(
            f"feature_cka_gold{suffix}",
            f"linear CKA of the penultimate features with gold's, {side} records",
            "",
            0.0,
            1.0,
            "high",
            where(has_table(TABLE), _alignment(side)),
        )
        for suffix, side in SIDES.items()
    ],
]

CURVE = Curve("tsne", _map)
