"""Likelihood-ratio attack on an unlearned model: unlearned, or never seen?

METRICS 1.4; Hayes et al. 2025, "Inexact Unlearning Needs More Careful Evaluations to Avoid a False Sense of Privacy".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from evaluation.attacks.lira import Location, fit_world, log_ratio, unusable
from evaluation.attacks.separation import Attack, judge, unscored


def ulira(
    target_phi: ArrayLike,
    unlearned_phi: ArrayLike,
    forgotten: ArrayLike,
    retrained_phi: ArrayLike,
    unlearned: ArrayLike,
    *,
    location: Location = "median",
    shrink: bool = True,
    clients: ArrayLike | None = None,
    seed: int = 0,
) -> Attack:
    """Attack an unlearned model: was a record trained on and unlearned, or never trained on?

    Parameters
    ----------
    target_phi : array_like of float, shape (n,) or (J, n)
        Phi in nats of the unlearned model on the challenged records `Z`.
    unlearned_phi : array_like of float, shape (S, n) or (S, J, n)
        Phi of the shadows after each unlearned its own forget set `F_s` by the same method. Shadows that were only
        trained would make this a test of LiRA.
    forgotten : array_like of bool, shape (S, n)
        Whether the record is in `F_s`: the in-world of that record.
    retrained_phi : array_like of float, shape (R, n) or (R, J, n)
        Phi of models trained on the retained records alone, at the target's checkpoint (recovery alone would separate
        the worlds): the out-world of every record.
    unlearned : array_like of bool, shape (n,)
        Whether the target run unlearned the record; otherwise it is a holdout record the run never trained on.
    location : {"median", "mean"}
        Centre of a record's phi.
    shrink : bool
        See `evaluation.attacks.lira.fit_world`.
    clients : array_like of str, shape (n,), optional
        Client of each record, to be given for client requests: the bootstrap then resamples clients, and with fewer
        than two on a side there is no interval.
    seed : int
        The evaluate seed.

    Returns
    -------
    Attack
        Ideal AUC 0.5. ``separation.reading`` says what the interval allows: ``leaks`` when unlearned records look more
        like the unlearned shadows' than never-seen ones do, ``leaks inverted`` when less, which tells them apart as
        well. ``undefined`` when the target, a shadow on its forget set, or a retrained model has NaN phi;
        ``not_applicable`` when no model has phi.
    """
    target = np.asarray(target_phi, dtype=np.float64)
    missing = unusable(target, unlearned=(unlearned_phi, forgotten), retrained=(retrained_phi, None))
    if missing is not None:
        return unscored(target.shape[-1], missing)
    inside = fit_world(unlearned_phi, forgotten, location=location, shrink=shrink)
    outside = fit_world(retrained_phi, location=location, shrink=shrink)
    return judge(log_ratio(target, inside, outside), unlearned, clients=clients, seed=seed)
