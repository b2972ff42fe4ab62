"""Attacks with shadow federations and retrained references in the panel: LiRA, U-LiRA and the calibrated one.

METRICS 1.3 to 1.5. Each has gold's own band: where the attack puts retrained models of other seeds, each attacked in
the model's place. Only outside it can a model be told from a retrained one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from evaluation.attacks.calibrated import FEWEST, Band, band_of, calibrated_attack, gold_bands
from evaluation.attacks.lira import fit_world, lira, log_ratio
from evaluation.attacks.separation import Attack, unscored
from evaluation.attacks.ulira import ulira
from evaluation.curves import Curve, Point
from evaluation.evidence import Evidence
from evaluation.metrics.base import Family, difference_to_gold, where
from evaluation.metrics.distances import l2_distance
from evaluation.metrics.intervals import Floats
from evaluation.metrics.roc import auc, roc_points
from evaluation.metrics.value import Value, not_applicable, undefined
from evaluation.shadows import Shadows

AUC_NAMES = {"lira": "lira_auc", "ulira": "ulira_auc", "calibrated": "calibrated_mia_auc"}
"""Attacks with the name that their AUC has in the results; the last is the paper's."""
TITLES = {
    "lira": "LiRA: trained on, or never seen",
    "ulira": "U-LiRA: unlearned, or never seen",
    "calibrated": "attack calibrated by retrained references",
}


@dataclass(frozen=True, eq=False)
class Assault:
    """One attack on one model.

    Attributes
    ----------
    attack : Attack
        Scores and what they achieve.
    band : Band
        AUC of the same attack on each reference.
    references : tuple of ndarray
        The scores of those attacks.
    mean_z : Value, or None
        Of the calibrated attack.
    mean_z_band : Band, or None
        The same of each reference.
    """

    attack: Attack
    band: Band
    references: tuple[Floats, ...] = ()
    mean_z: Value | None = None
    mean_z_band: Band | None = None


@lru_cache(maxsize=12)
def assault(evidence: Evidence, attack: str) -> Assault:
    """Make one attack on one model; several metrics and curves read it."""
    shadows = evidence.shadows
    assert shadows is not None, "only asked for with shadows"
    if missing := _missing(evidence, shadows, attack):
        return Assault(unscored(len(shadows.records), missing), _no_band(missing.reason))
    target = evidence.frame.loc[list(shadows.records), "phi"].to_numpy(np.float64)
    clients = shadows.clients if evidence.granularity == "client" else None
    if attack == "calibrated":
        return _calibrated(target, shadows, clients, evidence.seed)
    about: dict[str, Any] = {"clients": clients, "seed": evidence.seed}
    if attack == "lira":
        made = lira(target, shadows.trained, shadows.forgotten, shadows.unlearned, **about)
    else:
        assert shadows.forgot is not None, "said above to be missing"
        # pooled variances: each reference has one fewer to be compared with, which must not be another estimator
        about["shrink"] = False
        made = ulira(target, shadows.forgot, shadows.forgotten, shadows.retrained, shadows.unlearned, **about)
    if made.separation.auc.status in ("undefined", "not_applicable"):
        return Assault(made, _no_band(made.separation.auc.reason))
    scores = tuple(_reference_scores(shadows, attack))
    return Assault(made, band_of([auc(*_sides(one, shadows)) for one in scores]), scores)


def _calibrated(target: Floats, shadows: Shadows, clients: np.ndarray | None, seed: int) -> Assault:
    found = calibrated_attack(target, shadows.retrained, shadows.unlearned, clients=clients, seed=seed)
    bands = gold_bands(shadows.retrained, shadows.unlearned)
    return Assault(found.attack, bands.auc, bands.scores, found.mean_z, bands.mean_z)


def _reference_scores(shadows: Shadows, attack: str) -> Iterator[Floats]:
    """Yield the scores of the attack on each reference; U-LiRA's out-world is then the other references."""
    references, forgotten = shadows.retrained, shadows.forgotten
    if attack == "lira":
        inside, outside = fit_world(shadows.trained, forgotten), fit_world(shadows.trained, ~forgotten)
        yield from (log_ratio(one, inside, outside) for one in references)
    elif shadows.forgot is not None and len(references) >= FEWEST:
        inside = fit_world(shadows.forgot, forgotten, shrink=False)
        for number, one in enumerate(references):
            others = np.delete(references, number, axis=0)
            yield log_ratio(one, inside, fit_world(others, shrink=False))


def _missing(evidence: Evidence, shadows: Shadows, attack: str) -> Value | None:
    """Return why an attack cannot be made; None when it can."""
    if not shadows.records:
        return not_applicable(shadows.reason)
    if evidence.problem:
        return undefined(evidence.problem)
    if attack != "calibrated" and len(shadows.forgotten) < 4:
        return undefined(f"{len(shadows.forgotten)} shadows: 4 are needed, so that two know a record and two do not")
    if attack != "lira" and not len(shadows.retrained):
        return undefined("every reference diverged")
    if attack == "ulira" and shadows.forgot is None:
        if evidence.model.method == "retrain":
            return not_applicable("gold unlearned nothing; its band is that of retrained models")
        return undefined(shadows.reason or "no shadow was put through this method")
    return None


def _sides(scores: Floats, shadows: Shadows) -> tuple[Floats, Floats]:
    scored = ~np.isnan(scores)
    return scores[scored & shadows.unlearned], scores[scored & ~shadows.unlearned]


def _no_band(reason: str) -> Band:
    return Band((), math.nan, math.nan, math.nan, math.nan, reason)


# ---------------------------------------------------------------------- metrics
def _of(attack: str, what: str) -> Callable[[Evidence], Value]:
    """Make a metric from one number of the attack's separation."""

    def compute(evidence: Evidence) -> Value:
        found: Value = getattr(assault(evidence, attack).attack.separation, what)
        return found

    return compute


def _end_of_band(attack: str, end: str) -> Callable[[Evidence], Value]:
    def compute(evidence: Evidence) -> Value:
        return _number(assault(evidence, attack), lambda found: found.band, end)

    return compute


def _number(found: Assault, which: Callable[[Assault], Band | None], end: str) -> Value:
    band = which(found)
    if band is None or math.isnan(band.low):
        missing = found.attack.separation.auc
        reason = (band.reason if band is not None else "") or missing.reason or "no band"
        return not_applicable(reason) if missing.status == "not_applicable" else undefined(reason)
    return Value(float(getattr(band, end)), len(band.values))


def _distinguishable(attack: str) -> Callable[[Evidence], Value]:
    """Make 1 for a model outside gold's band and 0 for one inside."""

    def compute(evidence: Evidence) -> Value:
        found = assault(evidence, attack)
        area, band = found.attack.separation.auc, found.band
        verdict = band.verdict(area)
        if verdict == "undecided":
            reason = area.reason if area.status != "ok" else band.reason or "no band"
            return not_applicable(reason) if area.status == "not_applicable" else undefined(reason, area.n)
        return Value(float(verdict == "distinguishable from gold"), area.n, reason=verdict)

    return compute


def _mean_z(evidence: Evidence) -> Value:
    found = assault(evidence, "calibrated")
    return found.attack.separation.auc if found.mean_z is None else found.mean_z


def _mean_z_band(end: str) -> Callable[[Evidence], Value]:
    def compute(evidence: Evidence) -> Value:
        return _number(assault(evidence, "calibrated"), lambda found: found.mean_z_band, end)

    return compute


def _seed_gap(evidence: Evidence) -> Value:
    """Divide the distance to gold by the mean distance of gold to models retrained with other seeds (METRICS 5.1)."""
    shadows = evidence.shadows
    if shadows is None or not shadows.seed_gaps:
        return undefined((shadows.reason if shadows else "") or "no model was retrained with another seed")
    if evidence.model.state is None or evidence.gold is None or evidence.gold.state is None:
        return undefined("no weights")
    mine = l2_distance(evidence.model.state, evidence.gold.state)
    mean = float(np.mean(np.sort(shadows.seed_gaps)))
    if not math.isfinite(mine) or not mean:
        return undefined("non-finite weights" if mean else "gold does not depend on its seed")
    low, high = mine / max(shadows.seed_gaps), mine / min(shadows.seed_gaps)
    return Value(mine / mean, len(shadows.seed_gaps), low, high, reason="interval: over the references' range")


def _asked(evidence: Evidence) -> bool:
    return evidence.shadows is not None


def _family(
    name: str,
    title: str,
    unit: str,
    low: float,
    high: float,
    better: str,
    compute: Callable[[Evidence], Value],
    difference: Callable[[Evidence], Value] | None = None,
) -> Family:
    """Make a metric that a model has where shadows were asked for."""
    apart = where(_asked, difference) if difference else None
    return Family(name, title, unit, low, high, better, where(_asked, compute), apart)


def _families_of(attack: str) -> Iterator[Family]:
    def family(name: str, what: str, high: float, better: str, compute: Callable[[Evidence], Value]) -> Family:
        difference = difference_to_gold(compute) if better == "gold" and attack != "ulira" else None
        low = -0.5 if name.endswith("_leakage") else 0.0
        return _family(name, f"{TITLES[attack]}: {what}", "fraction", low, high, better, compute, difference)

    yield family(AUC_NAMES[attack], "AUC", 1.0, "gold", _of(attack, "auc"))
    yield family(f"{attack}_leakage", "AUC - 0.5", 0.5, "none", _of(attack, "leakage"))
    yield family(f"{attack}_tpr_at_1pct_fpr", "TPR at 1 % FPR", 1.0, "low", _of(attack, "tpr_at_1pct_fpr"))
    yield family(f"{attack}_tpr_at_01pct_fpr", "TPR at 0.1 % FPR", 1.0, "low", _of(attack, "tpr_at_01pct_fpr"))
    yield family(f"{attack}_balanced_accuracy", "balanced accuracy", 1.0, "low", _of(attack, "balanced_accuracy"))
    yield family(f"{attack}_distinguishable", "1 outside gold's band", 1.0, "low", _distinguishable(attack))
    for end in ("low", "high"):
        name, title = f"{attack}_auc_band_{end}", f"{TITLES[attack]}: {end} end of gold's band"
        # a prediction interval may reach beyond what an AUC can be
        yield _family(name, title, "fraction", -math.inf, math.inf, "none", _end_of_band(attack, end))


METRIC = [
    *[family for attack in AUC_NAMES for family in _families_of(attack)],
    _family(
        "calibrated_mean_z",
        "mean z of the forgotten records: above 0 memory is left, below 0 more is gone than retraining forgets",
        "sd",
        -math.inf,
        math.inf,
        "gold",
        _mean_z,
    ),
    *[
        _family(
            f"calibrated_mean_z_band_{end}",
            f"{end} end of gold's band of the mean z",
            "sd",
            -math.inf,
            math.inf,
            "none",
            _mean_z_band(end),
        )
        for end in ("low", "high")
    ],
    _family(
        "retrain_gap_l2_over_seed_gap",
        "L2 distance to gold over gold's mean distance to models retrained with other seeds",
        "",
        0.0,
        math.inf,
        "low",
        _seed_gap,
    ),
]


# ---------------------------------------------------------------------- curves
def _roc(evidence: Evidence) -> Iterator[Point]:
    """Yield the ROC of every attack: x false-, y true-positive rate."""
    if not evidence.problem:
        forget, unseen, _ = evidence.attack_sets
        for x, y in roc_points(-forget["loss"].to_numpy(np.float64), -unseen["loss"].to_numpy(np.float64)):
            yield Point("population", x, y)
    if evidence.shadows is not None and evidence.shadows.records:
        for attack in AUC_NAMES:
            for x, y in roc_points(*_sides(assault(evidence, attack).attack.scores, evidence.shadows)):
                yield Point(attack, x, y)


def _reference_roc(evidence: Evidence) -> Iterator[Point]:
    """Yield the ROC of every attack on each reference, whose number is the label: what gold's band is made of."""
    if evidence.shadows is None or not evidence.shadows.records or evidence.problem:
        return
    for attack in AUC_NAMES:
        for number, scores in enumerate(assault(evidence, attack).references):
            for x, y in roc_points(*_sides(scores, evidence.shadows)):
                yield Point(attack, x, y, str(number))


CURVE = [Curve("roc", _roc), Curve("roc-reference", _reference_roc)]
