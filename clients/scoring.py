"""Scores of every record of a site under a model, and divergences between two models. Nothing else leaves the site."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from clients.site import Site, View
from clients.tasks.base import DIVERGENCES, SCORES
from unlearning.state import State

BATCH = 256
"""Records scored at once; fixed, so that the bits do not depend on a setting."""

KEPT_BYTES = 64 * 2**20
"""Outputs of gold that a process keeps: every arm of a case is compared with the same two models."""

Tables = dict[str, pd.DataFrame]


def score_records(
    site: Site, state: State, other: State | None = None, request: str = "", request_seed: int = 0
) -> Tables:
    """Score every record of a site (or reference set) under one model, and compare it with another.

    The models are in eval mode, in fp32 without autocast, in a fixed order; statistics are float64 (METRICS 0).

    Parameters
    ----------
    state : State
        The model.
    other : State or None
        The model to compare with, such as gold: ``kl`` is KL(state || other).
    request, request_seed : str, int
        Which records are selected.

    Returns
    -------
    dict of str to DataFrame
        ``scorecard``: one row a record, train before holdout: record, site, patient (pseudonym), split, stratum,
        selected, retained (bool; both false for records of earlier requests), step (int16: of the request's steps the
        one that forgot the record, from 1; 0: none), metric, loss, phi, entropy, hinge
        (float64; NaN where the model's outputs are not finite). With `other` also ``comparison``, in the same order:
        record, split, selected, retained, kl, kl_t4, js, js_supreme, actdist, agree (float64).
    """
    told = [told_of(site, view, request, request_seed) for view in site.views]
    outputs = [outputs_of(site, view, state) for view in site.views]
    tables = {"scorecard": _scorecard(site, site.views, told, outputs)}
    if other is not None:
        others = [_kept_outputs(site, view, other) for view in site.views]
        found = [site.worker.task.divergences(a, b) for a, b in zip(outputs, others, strict=True)]
        tables["comparison"] = _joined(told, found)[["record", "split", "selected", "retained", *DIVERGENCES]]
    return tables


def outputs_of(
    site: Site,
    view: View,
    state: State,
    slot: int = 0,
    indices: np.ndarray | None = None,
    read: Callable[[nn.Module, Tensor], Tensor] | None = None,
) -> Tensor:
    """Return a model's outputs on records of a site, on the CPU, one row a record; (0, 1) without any.

    Parameters
    ----------
    view : View
        Whose arrays to read.
    state : State
        The model.
    slot : int
        Which of the worker's scoring models to load it into.
    indices : ndarray, optional
        Which records, as positions in the view's arrays; default: all of the view.
    read : callable, optional
        What to take of the model for a batch of inputs; default: the task's outputs.
    """
    read = read or site.worker.task.outputs
    worker, chosen = site.worker, view.indices if indices is None else indices
    model = worker.scorer(state, slot)
    with evaluating(model), worker.scoring():
        parts = [
            read(model, worker.batch(view.inputs, view.targets, chosen[start : start + BATCH])[0])
            for start in range(0, len(chosen), BATCH)
        ]
    return torch.cat(parts) if parts else torch.zeros(0, 1)


def score_some(
    site: Site,
    state: State,
    request: str,
    request_seed: int,
    meant: Callable[[pd.DataFrame], pd.Series[bool]],
) -> pd.DataFrame:
    """Score only some records of a site (or reference set), which `meant` picks by what is told of each.

    Returns
    -------
    DataFrame
        Those rows of the ``scorecard`` of `score_records`; the other records are not read.
    """
    views, told = [], []
    for view in site.views:
        table = told_of(site, view, request, request_seed)
        chosen = meant(table).to_numpy(dtype=bool)
        views.append(replace(view, indices=view.indices[chosen], table=view.table[chosen].reset_index(drop=True)))
        told.append(table[chosen].reset_index(drop=True))
    return _scorecard(site, views, told, [outputs_of(site, view, state) for view in views])


class KeptOutputs:
    """The newest outputs of models that are looked at again and again, up to a number of bytes."""

    def __init__(self, limit: int) -> None:
        self._limit, self._kept = limit, OrderedDict[tuple[str, ...], Tensor]()

    def get(self, key: tuple[str, ...], make: Callable[[], Tensor]) -> Tensor:
        """Return what is kept under `key`, or make and keep it."""
        found = self._kept.pop(key, None)
        self._kept[key] = found = make() if found is None else found
        while sum(t.nbytes for t in self._kept.values()) > self._limit:
            self._kept.popitem(last=False)
        return found


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every part of `model` in eval mode, and back in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def told_of(site: Site, view: View, request: str, seed: int) -> pd.DataFrame:
    """Return what a table of scores says of each record of a view, whatever the model."""
    selection = site.select(request, seed, view.split)
    return pd.DataFrame(
        {
            "record": view.table["record"],
            "site": site.name,
            "patient": view.table["patient"].map(site.pseudonyms),
            "split": view.split,
            "stratum": view.table["stratum"],
            "selected": selection.forget,
            "retained": selection.retain,
            "step": selection.step,
        }
    )


_TOLD = ("site", "patient", "split", "stratum", "selected", "retained", "step")
_KEPT = KeptOutputs(KEPT_BYTES)


def _scorecard(
    site: Site, views: Sequence[View], told: Sequence[pd.DataFrame], outputs: Sequence[Tensor]
) -> pd.DataFrame:
    task = site.worker.task
    scores = [
        task.scores(found, task.to_targets(np.asarray(view.targets).take(view.indices, axis=0)))
        for found, view in zip(outputs, views, strict=True)
    ]
    return _joined(told, scores)[["record", *_TOLD, *SCORES]]


def _kept_outputs(site: Site, view: View, state: State) -> Tensor:
    key = (site.fingerprint, view.split, state.sha256(), str(site.worker.settings))
    return _KEPT.get(key, lambda: outputs_of(site, view, state, 1))


def _joined(told: Sequence[pd.DataFrame], values: Sequence[Mapping[str, Tensor]]) -> pd.DataFrame:
    frames = [
        table.assign(**{name: found.double().numpy() for name, found in parts.items()})
        for table, parts in zip(told, values, strict=True)
    ]
    return pd.concat(frames, ignore_index=True)
