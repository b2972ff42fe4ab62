"""Likelihood-ratio attack on shadow models, with residual pooling, shrinkage and a floor for few shadows.

METRICS 1.3; Carlini et al. 2022, "Membership Inference Attacks From First Principles".
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from evaluation.attacks.separation import Attack, judge, unscored
from evaluation.metrics.intervals import Floats
from evaluation.metrics.value import Value, not_applicable, undefined

Location = Literal["median", "mean"]

PHI_LIMIT = 50.0
"""Phi is clipped to plus and minus this, in nats."""
SHRINK_FROM, OWN_FROM = 8, 32
"""Models from which an example's own variance is mixed with the pooled one, and from which it stands alone."""
PRIOR_FREEDOM = 8.0
"""Degrees of freedom that the pooled variance counts for in the mixture."""
SD_FLOOR, SD_FLOOR_SHARE = 1e-3, 0.01
"""Least standard deviation, in nats and as a share of the pooled one: identical shadows must not rule the ROC."""


@dataclass(frozen=True, eq=False)
class World:
    """What phi of each example looks like in one world (trained with it, or without it).

    Attributes
    ----------
    location, sd : ndarray of float, shape (n,) or (J, n)
        In nats; NaN for examples that fewer than two models know.
    count : ndarray of int, same shape
        Models the numbers of an example rest on.
    pooled_sd : float
        Standard deviation of all residuals around their example's location; NaN when there are none.
    """

    location: Floats
    sd: Floats
    count: NDArray[np.int64]
    pooled_sd: float


def fit_world(
    phi: ArrayLike, members: ArrayLike | None = None, *, location: Location = "median", shrink: bool = True
) -> World:
    """Fit a normal distribution to each example's phi over the models of one world.

    Parameters
    ----------
    phi : array_like of float, shape (S, n) or (S, J, n)
        Logit-scaled confidence in nats of S models on n examples, in J queries each; clipped to [-50, 50].
    members : array_like of bool, shape (S, n), optional
        Which models belong to this world for which example. Default: all.
    location : {"median", "mean"}
        Centre of an example.
    shrink : bool
        Whether examples known to 8 to 31 models get their own variance mixed with the pooled one; if not, they get the
        pooled one.

    Returns
    -------
    World
        Variances are those of residuals around the example's location with ``m - 1`` in the denominator, never of all
        raw scores together, which would take the spread between examples for noise. Below 8 models an example has the
        pooled variance, from 32 its own. The order of models and of examples changes nothing.

    Raises
    ------
    ValueError
        For NaN phi of a model that belongs to the world.
    """
    scores, mask = _clipped(phi), _mask(members, np.shape(phi))
    if problem := diverged(scores, mask):
        raise ValueError(problem)
    inside = np.ascontiguousarray(np.sort(np.where(mask, scores, np.nan), axis=0))  # one order of summation
    count: NDArray[np.int64] = mask.sum(axis=0)
    centre = np.where(count >= 2, _centre(inside, location), np.nan)
    freedom = np.where(count >= 2, count - 1, 0)
    squares = np.nansum((inside - centre) ** 2, axis=0)
    total = int(freedom.sum())
    pooled = float(np.sort(squares, axis=None).sum() / total) if total else float("nan")
    own = squares / np.maximum(freedom, 1)
    mixed = (PRIOR_FREEDOM * pooled + squares) / (PRIOR_FREEDOM + freedom) if shrink else np.full(count.shape, pooled)
    variance = np.where(count >= OWN_FROM, own, np.where(count >= SHRINK_FROM, mixed, pooled))
    floor = max(SD_FLOOR, SD_FLOOR_SHARE * pooled**0.5)
    sd = np.where(count >= 2, np.maximum(np.sqrt(variance), floor), np.nan)
    return World(centre, sd, count, pooled**0.5)


def log_ratio(phi: ArrayLike, inside: World, outside: World) -> Floats:
    """Return ``log N(phi; inside) - log N(phi; outside)`` of each example in nats, averaged over the queries.

    Parameters
    ----------
    phi : array_like of float, shape (n,) or (J, n)
        Of the attacked model, in nats; clipped to [-50, 50].
    inside, outside : World
        Of models trained with and without the example.

    Returns
    -------
    ndarray of float, shape (n,)
        Positive: more like a member. NaN where fewer than two models know the example in either world.
    """
    scores = _clipped(phi)
    return _over_queries(_log_density(scores, inside) - _log_density(scores, outside))


def offline_z(phi: ArrayLike, outside: World) -> Floats:
    """Return ``(phi - location) / sd`` of each example against the models trained without it; range about [-1e5, 1e5].

    The one-sided tail of the paper's offline attack is `tail_probability` of it, which orders examples alike. The
    released code scores with the two-sided density, which does not know the direction of a leak.

    Parameters
    ----------
    phi : array_like of float, shape (n,) or (J, n)
        Of the attacked model, in nats; clipped to [-50, 50].
    outside : World
        Of models trained without the example.

    Returns
    -------
    ndarray of float, shape (n,)
        Mean over the queries; NaN where fewer than two models know the example.
    """
    return _over_queries((_clipped(phi) - outside.location) / outside.sd)


def tail_probability(z: ArrayLike) -> Floats:
    """Return the standard normal distribution function at `z`; range [0, 1].

    >>> round(float(tail_probability(2.0)), 5)
    0.97725
    """
    return np.asarray(stats.norm.cdf(np.asarray(z, dtype=np.float64)), dtype=np.float64)


def lira(
    target_phi: ArrayLike,
    shadow_phi: ArrayLike,
    keep: ArrayLike,
    members: ArrayLike,
    *,
    online: bool = True,
    location: Location = "median",
    clients: ArrayLike | None = None,
    seed: int = 0,
) -> Attack:
    """Attack a model: was an example in its training set?

    Parameters
    ----------
    target_phi : array_like of float, shape (n,) or (J, n)
        Phi of the attacked model in nats.
    shadow_phi : array_like of float, shape (S, n) or (S, J, n)
        Phi of the shadow models in nats; the attacked model is not among them.
    keep : array_like of bool, shape (S, n)
        Which shadow was trained on which example.
    members : array_like of bool, shape (n,)
        Whether the attacked model was trained on the example.
    online : bool
        Score with the ratio of both worlds; otherwise with `offline_z` against shadows trained without the example.
    location : {"median", "mean"}
        Centre of an example's phi.
    clients : array_like of str, shape (n,), optional
        Clients to resample instead of records.
    seed : int
        The evaluate seed.

    Returns
    -------
    Attack
        ``undefined`` when the attacked model or a shadow has NaN phi, ``not_applicable`` when none has phi. Ideal AUC
        0.5.
    """
    target, kept = np.asarray(target_phi, dtype=np.float64), np.asarray(keep, dtype=bool)
    everyone = np.ones_like(kept) if online else ~kept
    missing = unusable(target, shadows=(shadow_phi, everyone))
    if missing is not None:
        return unscored(target.shape[-1], missing)
    outside = fit_world(shadow_phi, ~kept, location=location)
    scores = (
        log_ratio(target, fit_world(shadow_phi, kept, location=location), outside)
        if online
        else offline_z(target, outside)
    )
    return judge(scores, members, clients=clients, seed=seed)


def unusable(target_phi: Floats, **models: tuple[ArrayLike, ArrayLike | None]) -> Value | None:
    """Return why a model cannot be attacked with these others, None when it can. Infinite phi is clipped, NaN is not.

    Parameters
    ----------
    target_phi : ndarray of float
        Of the attacked model.
    **models : pair of array_like
        Phi and membership (as `fit_world`) of each kind of other models, under the name that the reason gives them.

    Returns
    -------
    Value or None
        ``not_applicable`` when no model at all has phi (a task with one class); ``undefined`` for a diverged model.
    """
    others = [np.asarray(phi, dtype=np.float64) for phi, _ in models.values()]
    if target_phi.size and all(bool(np.isnan(phi).all()) for phi in (target_phi, *others)):
        return not_applicable("the task has no phi")
    if bad := int(np.isnan(target_phi).sum()):
        return undefined(f"non-finite outputs: {bad} NaN phi")
    for kind, (phi, members) in models.items():
        if problem := diverged(phi, members):
            return undefined(f"{kind}: {problem}")
    return None


def diverged(phi: ArrayLike, members: ArrayLike | None = None) -> str:
    """Return which model has NaN phi on an example that counts for it (arguments as `fit_world`); empty when none."""
    scores = np.asarray(phi, dtype=np.float64)
    bad = np.isnan(scores) & _mask(members, scores.shape)
    found = np.flatnonzero(bad.reshape(len(scores), -1).any(axis=1))
    return f"NaN phi of model {found[0]} of {len(scores)}" if found.size else ""


def _clipped(phi: ArrayLike) -> Floats:
    return np.clip(np.asarray(phi, dtype=np.float64), -PHI_LIMIT, PHI_LIMIT)


def _mask(members: ArrayLike | None, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Spread the membership of (S, n) over the queries of (S, J, n)."""
    if members is None:
        return np.ones(shape, dtype=bool)
    mask = np.asarray(members, dtype=bool)
    return np.broadcast_to(mask[:, None, :] if len(shape) > mask.ndim else mask, shape)


def _centre(inside: Floats, location: Location) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # examples of no model are NaN, as they should be
        return np.nanmedian(inside, axis=0) if location == "median" else np.nanmean(inside, axis=0)


def _log_density(phi: Floats, world: World) -> Any:
    return stats.norm.logpdf(phi, world.location, world.sd)


def _over_queries(scores: Any) -> Floats:
    return np.asarray(scores if scores.ndim == 1 else scores.mean(axis=0), dtype=np.float64)
