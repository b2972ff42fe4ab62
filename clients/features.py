"""Features of some records of a site: what a network makes of an image before its last linear layer.

They tell far more of a record than its scores. A site may refuse: see `clients.site.refused_operations`.
"""

from __future__ import annotations

import time
from typing import Protocol, runtime_checkable

import numpy as np
import pandas as pd
from torch import Tensor, nn

from clients.ops import Call, Op, Reply, asked, model_of, request_of, scored
from clients.scoring import outputs_of
from clients.site import Site, View
from partitions.errors import BadInput
from partitions.records import hash_ranks
from partitions.requests import parse_request
from unlearning.state import State


@runtime_checkable
class TellsFeatures(Protocol):
    """A task that says itself what its features are; of the others they are `penultimate`."""

    def features(self, model: nn.Module, x: Tensor) -> Tensor:
        """Return the features of `x` under `model`, one row a record."""


def features_of(site: Site, state: State, most: int, request: str = "", request_seed: int = 0) -> pd.DataFrame:
    """Return features of a few records of a site, under the rules of scoring: eval mode, fp32, fixed batches.

    Held-out records to forget and to retain; for a sample request, which means no held-out record, the training
    records to forget. Which of them depends on the request and its seed only, never on the model.

    Parameters
    ----------
    site : Site
        The site.
    state : State
        The model.
    most : int
        Records to forget at most, and to retain, from 1; see `drawn`.
    request, request_seed : str, int
        Which records are to be forgotten; an empty request forgets nothing.

    Returns
    -------
    DataFrame
        One row a record, those to forget first: record, site, split, stratum, selected (bool), f0, f1, ... (float32).
        Without any record, the first five columns only.

    Raises
    ------
    BadInput
        When `most` is below 1, and when the network has no features to give, see `penultimate`.
    """
    if most < 1:
        raise BadInput("most", most, "a whole number from 1")
    tables = [
        pd.concat(
            [
                view.table.loc[places, ["record", "site", "split", "stratum"]].reset_index(drop=True),
                pd.DataFrame({"selected": np.full(len(places), forget)}),
                _features(site, view, places, state),
            ],
            axis=1,
        ).assign(site=site.name)
        for view, places, forget in _sides(site, most, request, request_seed)
        if len(places)
    ]
    if not tables:
        return pd.DataFrame({"record": [], "site": [], "split": [], "stratum": [], "selected": []})
    return pd.concat(tables, ignore_index=True)


def drawn(table: pd.DataFrame, candidates: np.ndarray, most: int, seed: int) -> np.ndarray:
    """Choose records, as many of every class as there are, so that two sides have what they can of the same classes.

    The classes take turns; each gives its record with the smallest hash that is left, until there are enough.

    Parameters
    ----------
    table : DataFrame
        Columns record and stratum.
    candidates : ndarray of int, shape (n,)
        Rows to choose from.
    most : int
        How many at most.
    seed : int
        Of the hashes.

    Returns
    -------
    ndarray
        Row numbers, int64, ascending; at most `most`.
    """
    rows = np.asarray(candidates, dtype=np.int64)
    ranks = hash_ranks(seed, "features", table["record"].to_numpy()[rows])
    rows = rows[np.argsort(ranks, kind="stable")]
    turn = pd.Series(np.arange(len(rows))).groupby(table["stratum"].to_numpy()[rows]).cumcount().to_numpy()
    return np.sort(rows[np.argsort(turn, kind="stable")[:most]])


def penultimate(model: nn.Module, x: Tensor) -> Tensor:
    """Return what the last linear layer to run is given for `x`; the model is left as it was.

    Parameters
    ----------
    model : Module
        In the mode it is to run in.
    x : Tensor
        A batch of n inputs.

    Returns
    -------
    Tensor
        fp32, shape (n, d), on the CPU.

    Raises
    ------
    BadInput
        When no linear layer runs, or the last one does not see one row a record.
    """
    given: list[Tensor] = []

    def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        given[:] = [inputs[0].detach()]

    hooks = [part.register_forward_pre_hook(keep) for part in model.modules() if isinstance(part, nn.Linear)]
    try:
        model(x)
    finally:
        for hook in hooks:
            hook.remove()
    if not given or given[0].shape[0] != x.shape[0]:
        wanted = "a network whose last linear layer sees one row a record, or a task with `features` of its own"
        raise BadInput("features", type(model).__name__, wanted, "set features=0")
    return given[0].flatten(1).float().cpu()


def _sides(site: Site, most: int, request: str, seed: int) -> list[tuple[View, np.ndarray, bool]]:
    """Return view, rows and whether they are to be forgotten, of the records to forget and of those to retain."""
    of_trained = bool(request) and parse_request(request).steps[-1].granularity == "sample"
    source = site.train if of_trained else site.holdout
    forget = np.flatnonzero(site.select(request, seed, source.split).forget)
    retain = np.flatnonzero(site.select(request, seed, "holdout").retain)
    return [
        (source, drawn(source.table, forget, most, seed), True),
        (site.holdout, drawn(site.holdout.table, retain, most, seed), False),
    ]


def _features(site: Site, view: View, places: np.ndarray, state: State) -> pd.DataFrame:
    task = site.worker.task
    read = task.features if isinstance(task, TellsFeatures) else penultimate
    rows = outputs_of(site, view, state, indices=view.indices[places], read=read).detach().cpu().float().numpy()
    return pd.DataFrame(rows, columns=[f"f{place}" for place in range(rows.shape[1])])


def features(site: Site, call: Call) -> Reply:
    """Answer ``features`` of a few records: config ``most`` (of either side), request and its seed."""
    started = time.perf_counter()
    most = asked(call.config, "most", int)
    table = features_of(site, model_of(call), most, *request_of(call))
    return scored(site, {"features": table}, started)


OPS = [Op("features", "evaluate", features)]
