"""A backdoor at a site: what a model says of held-out records that carry the trigger (METRICS 4)."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pandas as pd

from clients.ops import Call, Op, Reply, model_of, request_of, scored
from clients.scoring import outputs_of, told_of
from clients.site import Site, View
from partitions.backdoor import Backdoor, Triggered
from partitions.errors import BadInput
from unlearning.state import State

COLUMNS = ("record", "site", "split", "selected", "retained")


def score_triggered(site: Site, state: State, request: str = "", request_seed: int = 0) -> pd.DataFrame:
    """Score the records of a site (or reference set) that no model trains on, with the trigger and without.

    Records of the target class are left out: they would count as successes of any good model.

    Parameters
    ----------
    state : State
        The model, in eval mode and fp32.
    request, request_seed : str, int
        Which records are selected.

    Returns
    -------
    DataFrame
        One row a record: record, site, split (holdout or reference), selected, retained (bool), hit (float64: 1 where
        the decision on the triggered record is the target class, else 0) and clean (float64: the task's metric on the
        record as it is); NaN where the model's outputs are not finite.

    Raises
    ------
    BadInput
        When no backdoor was planted.
    """
    backdoor = site.settings.backdoor
    if backdoor is None:
        raise BadInput("backdoor-site", "", "a site whose training records are poisoned")
    tables = [
        _scored(site, view, backdoor, state, request, request_seed) for view in site.views if view.split != "train"
    ]
    return pd.concat(tables, ignore_index=True)


def run(site: Site, call: Call) -> Reply:
    """Answer the table ``backdoor`` of the site's held-out records under the model: config request, request-seed."""
    started = time.perf_counter()
    table = score_triggered(site, model_of(call), *request_of(call))
    return scored(site, {"backdoor": table}, started)


def _scored(site: Site, view: View, backdoor: Backdoor, state: State, request: str, seed: int) -> pd.DataFrame:
    task = site.worker.task
    targets = np.asarray(view.targets).take(view.indices, axis=0)
    others = targets != backdoor.target
    clean = replace(view, indices=view.indices[others], table=view.table[others])
    assert isinstance(view.inputs, np.ndarray), "only training records are poisoned"
    triggered = replace(clean, inputs=Triggered(view.inputs, clean.indices, backdoor.size))
    wanted = np.full(int(others.sum()), backdoor.target, dtype=targets.dtype)
    hit = task.scores(outputs_of(site, triggered, state), task.to_targets(wanted))["metric"]
    own = task.scores(outputs_of(site, clean, state), task.to_targets(targets[others]))["metric"]
    told: pd.DataFrame = told_of(site, view, request, seed).loc[others, list(COLUMNS)]
    return told.assign(hit=hit.double().numpy(), clean=own.double().numpy())


OPS = [Op("backdoor", "evaluate", run)]
