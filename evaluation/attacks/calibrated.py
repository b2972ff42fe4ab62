"""Per-sample attack calibrated by retrained models, with the band in which retrained models themselves lie.

METRICS 1.5; Lethe, Eq. 9 and App. C.1, read as calibration by models trained without the records only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from evaluation.attacks.lira import Location, fit_world, log_ratio, offline_z, unusable
from evaluation.attacks.separation import Attack, judge, unscored
from evaluation.metrics.intervals import Floats, stratified_mean
from evaluation.metrics.roc import auc
from evaluation.metrics.value import Value, not_applicable, undefined

FEWEST = 3
"""References below which there is no band: each is compared with the others, of which two must be left."""

Verdict = Literal["distinguishable from gold", "not distinguishable from gold", "undecided"]


@dataclass(frozen=True)
class Band:
    """Where a number lies for retrained models of other seeds.

    Attributes
    ----------
    values : tuple of float
        The number of each reference against the others.
    mean, std : float
        Of these, ``ddof=1``.
    low, high : float
        The 95 % prediction interval of one more retrained model, ``mean -+ t std sqrt(1 + 1/R)``; NaN without a band.
    reason : str
        Why there is no band; empty when there is one.
    """

    values: tuple[float, ...]
    mean: float
    std: float
    low: float
    high: float
    reason: str = ""

    def verdict(self, found: Value) -> Verdict:
        """Return whether a model's number can be told from a retrained model's: only outside the band."""
        if math.isnan(self.low) or found.status != "ok":
            return "undecided"
        inside = self.low <= found.value <= self.high
        return "not distinguishable from gold" if inside else "distinguishable from gold"


@dataclass(frozen=True, eq=False)
class Calibrated:
    """The attack on one model.

    Attributes
    ----------
    attack : Attack
        Scores are z in units of the references' standard deviation. Ideal AUC 0.5.
    mean_z : Value
        Mean z of the forgotten records: above 0 memory is left, below 0 more was forgotten than retraining forgets.
    """

    attack: Attack
    mean_z: Value


@dataclass(frozen=True)
class GoldBands:
    """The noise floor of the attack.

    Attributes
    ----------
    auc, mean_z : Band
        Of the AUC and of the mean z.
    scores : tuple of ndarray
        The z of each reference against the others, which the bands are made of.
    """

    auc: Band
    mean_z: Band
    scores: tuple[Floats, ...] = ()


def calibrated_attack(
    target_phi: ArrayLike,
    reference_phi: ArrayLike,
    forget: ArrayLike,
    *,
    location: Location = "median",
    clients: ArrayLike | None = None,
    seed: int = 0,
) -> Calibrated:
    """Attack an unlearned model with retrained models as the measure of what is normal for each record.

    Parameters
    ----------
    target_phi : array_like of float, shape (n,)
        Phi of the model in nats, on forget records and on matched records that no model has seen.
    reference_phi : array_like of float, shape (R, n)
        Phi of models retrained without the forget records, gold's schedule, other seeds. Gold of the target's own seed
        is not among them: it shares the initial weights.
    forget : array_like of bool, shape (n,)
        Whether the record is to be forgotten; the others are never seen.
    location : {"median", "mean"}
        Centre of a record's phi.
    clients : array_like of str, shape (n,), optional
        Clients to resample instead of records.
    seed : int
        The evaluate seed.

    Returns
    -------
    Calibrated
        ``undefined`` without forget records, below two references or for NaN phi; ``not_applicable`` without never-seen
        records (a class none of whose records was held out); ``underpowered`` below ten forget records.
    """
    target, positive = np.asarray(target_phi, dtype=np.float64), np.asarray(forget, dtype=bool)
    missing = _missing(target, np.asarray(reference_phi, dtype=np.float64), positive)
    if missing is not None:
        return Calibrated(unscored(target.size, missing), missing)
    scores = _z(target, np.asarray(reference_phi, dtype=np.float64), location)
    return Calibrated(judge(scores, positive, clients=clients, seed=seed), stratified_mean(scores[positive], seed=seed))


def two_sided_attack(
    target_phi: ArrayLike,
    trained_phi: ArrayLike,
    reference_phi: ArrayLike,
    forget: ArrayLike,
    *,
    location: Location = "median",
    clients: ArrayLike | None = None,
    seed: int = 0,
) -> Attack:
    """Attack with the two-sided ratio, where models of other seeds trained with the forget records exist too.

    A second column beside `calibrated_attack`, never mixed with it: the two give different numbers for one model.

    Parameters
    ----------
    target_phi, reference_phi, forget, location, clients, seed
        As `calibrated_attack`.
    trained_phi : array_like of float, shape (S, n)
        Phi of models trained with the forget records (originals of other seeds).

    Returns
    -------
    Attack
        Ideal AUC 0.5; missing as `calibrated_attack`.
    """
    target, positive = np.asarray(target_phi, dtype=np.float64), np.asarray(forget, dtype=bool)
    sides = [np.asarray(phi, dtype=np.float64) for phi in (reference_phi, trained_phi)]
    for references in sides:
        missing = _missing(target, references, positive)
        if missing is not None:
            return unscored(target.size, missing)
    outside, inside = (fit_world(phi, location=location, shrink=False) for phi in sides)
    return judge(log_ratio(target, inside, outside), positive, clients=clients, seed=seed)


def gold_bands(reference_phi: ArrayLike, forget: ArrayLike, *, location: Location = "median") -> GoldBands:
    """Return where the attack puts retrained models: each reference attacked with the others as its references.

    Parameters
    ----------
    reference_phi : array_like of float, shape (R, n)
        Phi of the retrained models in nats.
    forget : array_like of bool, shape (n,)
        Whether the record is to be forgotten.
    location : {"median", "mean"}
        Centre of a record's phi.

    Returns
    -------
    GoldBands
        Without a band, and with a reason, below three references or when one cannot be attacked.
    """
    phi, positive = np.asarray(reference_phi, dtype=np.float64), np.asarray(forget, dtype=bool)
    if len(phi) < FEWEST:
        none = _no_band(f"{len(phi)} references: {FEWEST} are needed")
        return GoldBands(none, none)
    missing = _missing(phi[0], phi, positive)
    if missing is not None:
        return GoldBands(_no_band(missing.reason), _no_band(missing.reason))
    scores = [_z(phi[one], np.delete(phi, one, axis=0), location) for one in range(len(phi))]
    areas = [auc(z[positive], z[~positive]) for z in scores]
    return GoldBands(band_of(areas), band_of([float(np.sort(z[positive]).mean()) for z in scores]), tuple(scores))


def _z(target: Floats, references: Floats, location: Location) -> Floats:
    """Score against the references; up to 31 of them share one variance (METRICS 1.5)."""
    return offline_z(target, fit_world(references, location=location, shrink=False))


def _missing(target: Floats, references: Floats, forget: NDArray[np.bool_]) -> Value | None:
    """Return why there is no attack, None when there is."""
    if len(references) < 2:
        return undefined(f"{len(references)} references: two are needed")
    if not forget.any():
        return undefined("empty forget set")
    if forget.all():
        return not_applicable("no never-seen records to compare with")
    return unusable(target, references=(references, None))


def band_of(values: list[float]) -> Band:
    """Return the band of a number that each of several retrained models gave; without a band below three of them."""
    if len(values) < FEWEST:
        return _no_band(f"{len(values)} references: {FEWEST} are needed")
    if bad := sum(map(math.isnan, values)):
        return _no_band(f"{bad} of {len(values)} references could not be attacked")
    n, mean, std = len(values), float(np.mean(np.sort(values))), float(np.std(np.sort(values), ddof=1))
    half = float(stats.t.ppf(0.975, n - 1)) * std * math.sqrt(1 + 1 / n)
    return Band(tuple(values), mean, std, mean - half, mean + half)


def _no_band(reason: str) -> Band:
    return Band((), math.nan, math.nan, math.nan, math.nan, reason)
