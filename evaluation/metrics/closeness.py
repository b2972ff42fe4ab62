"""Closeness to the retrained model in weights and in behaviour, side by side (METRICS 3.1-3.4, 5.1, 5.2)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from evaluation.evidence import Evidence, ScoredModel, SplitName
from evaluation.metrics.base import Family, Metric
from evaluation.metrics.distances import l2_distance, layer_distances
from evaluation.metrics.value import Value, undefined
from unlearning.state import State

_WHERE: tuple[SplitName, ...] = ("forget", "retain", "test")


def _gap(model: ScoredModel, gold: ScoredModel | None, measure: Callable[[State, State], float]) -> Value:
    if gold is None:
        return undefined("needs gold")
    if model.state is None or gold.state is None:
        return undefined("no weights")
    value = measure(model.state, gold.state)
    return Value(value, 1) if math.isfinite(value) else undefined("non-finite weights")


def _relative(model: State, gold: State) -> float:
    size = gold.norm()
    return l2_distance(model, gold) / size if size else math.nan


def _param_norm(evidence: Evidence) -> Value:
    return _gap(evidence.model, evidence.model, lambda state, _: state.norm())


def _root_mean_square(which: SplitName) -> Callable[[Evidence], Value]:
    """Make the root of the mean square of ``actdist``, which SUPREME reports for its mean."""

    def compute(evidence: Evidence) -> Value:
        found = evidence.mean("actdist_squared", which)
        value, low, high = (math.sqrt(number) for number in (found.value, found.ci_low, found.ci_high))
        return replace(found, value=value, ci_low=low, ci_high=high)

    return compute


def _behaviour(name: str, title: str, unit: str, high: float, better: str, column: str) -> list[Metric]:
    """Make the mean of one comparison column on forget, retain and test records."""

    def mean(which: SplitName) -> Callable[[Evidence], Value]:
        return lambda evidence: evidence.mean(column, which)

    return [
        Metric(f"{name}_{w}", f"{title}, {w} records", unit, 0.0, high, better, mean(w), of_forgotten=w == "forget")
        for w in _WHERE
    ]


def _by_tensor(evidence: Evidence) -> dict[str, Value]:
    """Return the distance of each parameter tensor to gold's (METRICS 3.4); nothing where gold has no weights."""
    model, gold = evidence.model, evidence.gold
    if gold is None or gold.state is None:
        return {}
    if model.state is None:
        return dict.fromkeys(gold.state.params, undefined("no weights"))
    found = layer_distances(model.state, gold.state)[["tensor", "distance"]]
    return {
        str(name): Value(value, 1) if math.isfinite(value) else undefined("non-finite weights")
        for name, value in found.itertuples(index=False, name=None)
    }


METRIC = [
    Family(
        "retrain_gap_l2_of_{each}",
        "L2 distance of the parameters {each} to gold's",
        "",
        0.0,
        math.inf,
        "low",
        _by_tensor,
    ),
    Metric(
        "retrain_gap_l2",
        "L2 distance of the parameters to gold's",
        "",
        0.0,
        math.inf,
        "low",
        lambda evidence: _gap(evidence.model, evidence.gold, l2_distance),
    ),
    Metric(
        "retrain_gap_l2_relative",
        "L2 distance over the norm of gold's parameters",
        "",
        0.0,
        math.inf,
        "low",
        lambda evidence: _gap(evidence.model, evidence.gold, _relative),
    ),
    Metric(
        "retrain_gap_l2_other_checkpoint",
        "L2 distance to gold before recovery for recovered models, after it for unlearned ones",
        "",
        0.0,
        math.inf,
        "none",
        lambda evidence: _gap(evidence.model, evidence.other_gold, l2_distance),
    ),
    Metric("param_norm", "L2 norm of the parameters", "", 0.0, math.inf, "gold", _param_norm),
    *_behaviour("retrain_gap_kl", "KL(model || gold) of the outputs", "nats", math.inf, "low", "kl"),
    *_behaviour("retrain_gap_kl_t4", "KL(model || gold) at temperature 4", "nats", math.inf, "low", "kl_t4"),
    *_behaviour("js", "Jensen-Shannon divergence to gold", "nats", math.log(2), "low", "js"),
    *_behaviour("js_supreme", "divergence that SUPREME prints as JS", "nats", math.inf, "low", "js_supreme"),
    *_behaviour("actdist", "L2 distance of softmax outputs to gold's", "", math.sqrt(2), "low", "actdist"),
    *_behaviour("completeness", "share of records with gold's decision", "fraction", 1.0, "high", "agree"),
    *[
        Metric(
            f"actdist_rms_{which}",
            f"root mean square of the same (SUPREME), {which} records",
            "",
            0.0,
            math.sqrt(2),
            "low",
            _root_mean_square(which),
            of_forgotten=which == "forget",
        )
        for which in _WHERE
    ],
]
