"""The population loss attack in the panel: can forgotten records be told from never-seen ones? (METRICS 1.2, 1.6)."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np

from evaluation.evidence import Evidence
from evaluation.metrics.base import Metric, difference_to_gold
from evaluation.metrics.intervals import Floats
from evaluation.metrics.population import Preset, attack_accuracy, forgetting_score
from evaluation.metrics.roc import balanced_accuracy, rare_tpr, roc_auc, tpr_at_fpr
from evaluation.metrics.value import Value, undefined

Statistic = Callable[[Floats, Floats, int], Value]


_KNOWN: OrderedDict[tuple[Statistic, bytes, int], Value] = OrderedDict()
MOST_KNOWN = 4096
"""Statistics that are remembered, by a hash of the losses: some hundred bytes each."""


def _computed(statistic: Statistic, forget: Floats, unseen: Floats, seed: int) -> Value:
    """Compute a statistic of losses once a process: several metrics use it, and every model needs gold's."""
    digest = hashlib.sha256(f"{forget.size}|".encode() + forget.tobytes() + unseen.tobytes()).digest()
    key = (statistic, digest, seed)
    found = _KNOWN.get(key)
    if found is None:
        found = _KNOWN[key] = statistic(forget, unseen, seed)
        if len(_KNOWN) > MOST_KNOWN:
            with suppress(KeyError):  # another thread was here
                _KNOWN.popitem(last=False)
    return found


def _attack(statistic: Statistic) -> Callable[[Evidence], Value]:
    """Make a metric from a statistic of the losses of forget and of unseen records and the evaluate seed."""

    def compute(evidence: Evidence) -> Value:
        if evidence.problem:
            return undefined(evidence.problem)
        forget, unseen, note = evidence.attack_sets
        if forget.empty or unseen.empty:
            return undefined("empty forget set" if forget.empty else "no unseen records to compare with")
        losses, others = (rows["loss"].to_numpy(np.float64) for rows in (forget, unseen))
        return _computed(statistic, losses, others, evidence.seed).because(note)

    return compute


def _accuracy(preset: Preset) -> Callable[[Floats, Floats, int], Value]:
    return lambda forget, unseen, seed: attack_accuracy(forget, unseen, preset=preset, seed=seed)


def _auc(forget: Floats, unseen: Floats, seed: int) -> Value:
    """Low loss is member-like, so the attack's score is the negated loss."""
    return roc_auc(-forget, -unseen, seed=seed)


def _from_half(compute: Callable[[Evidence], Value]) -> Callable[[Evidence], Value]:
    """Make ``|value - 0.5|`` of an accuracy or AUC."""

    def distance(evidence: Evidence) -> Value:
        found = compute(evidence)
        return replace(found, value=forgetting_score(found.value), ci_low=math.nan, ci_high=math.nan)

    return distance


def _metric(name: str, title: str, high: float, better: str, compute: Callable[[Evidence], Value]) -> Metric:
    difference = difference_to_gold(compute) if better == "gold" else None
    return Metric(name, title, "fraction", 0.0, high, better, compute, difference, of_forgotten=True)


_honest, _mufac, _area = _attack(_accuracy("honest")), _attack(_accuracy("mufac")), _attack(_auc)


def loss_attack(preset: Preset) -> Callable[[Evidence], Value]:
    """Return the metric "accuracy of the loss attack" of a preset, for scores that are made of it."""
    return _honest if preset == "honest" else _mufac


METRIC = [
    _metric(
        "population_mia_accuracy", "cross-validated accuracy of the loss attack, balanced sides", 1, "gold", _honest
    ),
    _metric("forgetting_score", "|accuracy - 0.5| of the loss attack", 0.5, "low", _from_half(_honest)),
    _metric("population_mia_accuracy_mufac", "the same as published by MUFAC", 1, "gold", _mufac),
    _metric("forgetting_score_mufac", "|accuracy - 0.5| as published by MUFAC", 0.5, "low", _from_half(_mufac)),
    _metric("population_mia_auc", "AUC of the loss attack, low loss taken as member", 1, "gold", _area),
    _metric("population_mia_auc_distance", "|AUC - 0.5|: a low AUC leaks as well", 0.5, "low", _from_half(_area)),
    _metric(
        "population_mia_tpr_at_1pct_fpr",
        "true-positive rate of the loss attack at 1 % false positives",
        1,
        "low",
        _attack(lambda forget, unseen, _: tpr_at_fpr(-forget, -unseen, 0.01)),
    ),
    _metric(
        "population_mia_tpr_at_01pct_fpr",
        "true-positive rate of the loss attack at 0.1 % false positives",
        1,
        "low",
        _attack(lambda forget, unseen, _: rare_tpr(-forget, -unseen)),
    ),
    _metric(
        "population_mia_balanced_accuracy",
        "balanced accuracy of the loss attack at its best threshold",
        1,
        "low",
        _attack(lambda forget, unseen, _: balanced_accuracy(-forget, -unseen)),
    ),
]
