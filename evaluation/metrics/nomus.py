"""NoMUS: utility and forgetting in one number (METRICS 2; Choi and Na 2023, MUFAC)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from evaluation.evidence import Evidence
from evaluation.metrics.base import Metric
from evaluation.metrics.membership import loss_attack
from evaluation.metrics.population import Preset, forgetting_score
from evaluation.metrics.value import Value, not_applicable, undefined

WEIGHT = 0.5
"""Share of the utility (lambda)."""


def nomus_score(accuracy: float, attack: float) -> float:
    """Return ``lambda Acc + (1 - lambda) (1 - 2 |M - 0.5|)`` with ``lambda = 0.5``; range [0, 1], best 1.

    Parameters
    ----------
    accuracy : float
        Test accuracy, in [0, 1].
    attack : float
        Accuracy `M` of the population loss attack, in [0, 1]; a perfectly inverted attack is as bad as a perfect one.

    Examples
    --------
    >>> round(nomus_score(0.5951916829, 0.7136212625), 6)
    0.583975
    """
    return WEIGHT * accuracy + (1 - WEIGHT) * (1 - 2 * forgetting_score(attack))


def _nomus(preset: Preset) -> Callable[[Evidence], Value]:
    """Make the score of test accuracy and attack; it is not anchored to gold, whose own score is below 1."""

    def compute(evidence: Evidence) -> Value:
        if evidence.metric_name != "accuracy":
            return not_applicable(f"the task's metric is {evidence.metric_name}, not accuracy")
        return _combined(evidence, evidence.mean("metric", "test"), preset)

    return compute


def _nomus_star(evidence: Evidence) -> Value:
    """Score utility as a share of gold's, clipped to [0, 1], for task metrics that are no accuracies."""
    if not evidence.higher_is_better:
        return not_applicable(f"a lower {evidence.metric_name} is better: no share of gold's")
    if evidence.of_gold is None:
        return undefined("needs gold")
    mine, gold = evidence.mean("metric", "test"), evidence.of_gold.mean("metric", "test")
    if math.isnan(gold.value) or gold.value <= 0:
        return undefined(f"gold: {gold.reason}" if math.isnan(gold.value) else "gold's utility is not above 0")
    share = min(max(mine.value / gold.value, 0.0), 1.0) if not math.isnan(mine.value) else math.nan
    return _combined(evidence, replace(mine, value=share), "honest")


def _combined(evidence: Evidence, utility: Value, preset: Preset) -> Value:
    attack = loss_attack(preset)(evidence)
    for part in (utility, attack):
        if math.isnan(part.value):
            return undefined(part.reason)
    value = Value(nomus_score(utility.value, attack.value), attack.n, status=attack.status, reason=attack.reason)
    return value.because(_shared_identities(evidence))


def _shared_identities(evidence: Evidence) -> str:
    """Say when test has patients of the attack's two sides, which the published protocol keeps apart."""
    forget, unseen, _ = evidence.attack_sets
    shared = set(evidence.sample("test").rows["patient"]) & (set(forget["patient"]) | set(unseen["patient"]))
    return f"test shares {len(shared)} patients with the attack's records" if shared else ""


def _metric(name: str, title: str, compute: Callable[[Evidence], Value]) -> Metric:
    return Metric(name, title, "fraction", 0.0, 1.0, "high", compute, of_forgotten=True)


METRIC = [
    _metric("nomus", "half test accuracy, half forgetting; balanced attack; read beside gold's", _nomus("honest")),
    _metric("nomus_mufac", "the same with the attack as published by MUFAC", _nomus("mufac")),
    _metric("nomus_star", "NoMUS with test utility as a share of gold's in place of accuracy", _nomus_star),
]
