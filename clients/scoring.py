"""Scores of every record of a site under a model, and divergences between two models. Nothing else leaves the site."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from clients.site import Site, View
from clients.tasks.base import DIVERGENCES, SCORES
from clients.worker import Worker
from unlearning.state import State

BATCH = 256
"""Records scored at once; fixed, so that the bits do not depend on a setting."""

Scores = dict[str, Tensor]


def scorecard(site: Site, state: State, request: str = "", request_seed: int = 0) -> pd.DataFrame:
    """Score every record of a site (or reference set) under one model.

    The model is in eval mode, in fp32 without autocast, in a fixed order; statistics are float64 (METRICS 0).

    Returns
    -------
    DataFrame
        One row a record, train before holdout: record, site, patient (pseudonym), split, stratum, selected, retained
        (bool; both false for records of earlier requests), metric, loss, phi, entropy, hinge (float64; NaN where the
        model's outputs are not finite).
    """
    worker = site.worker
    model = worker.scorer(state)

    def score(x: Tensor, y: Tensor) -> Scores:
        return worker.task.scores(model, x, y)

    with evaluating(model), worker.scoring():
        parts = [
            _rows_of(site, view, request, request_seed, _scored(worker, view, SCORES, score)) for view in site.views
        ]
    columns = ["record", "site", "patient", "split", "stratum", "selected", "retained", *SCORES]
    return pd.concat(parts, ignore_index=True)[columns]


def comparison(site: Site, state: State, other: State, request: str = "", request_seed: int = 0) -> pd.DataFrame:
    """Compare two models on every record of a site (or reference set).

    Parameters
    ----------
    state, other : State
        The unlearned model and gold: ``kl`` is KL(state || other).

    Returns
    -------
    DataFrame
        One row a record: record, split, selected, retained, kl, kl_t4, js, js_supreme, actdist, agree (float64).
    """
    worker = site.worker
    a, b = worker.scorer(state, 0), worker.scorer(other, 1)

    def compare(x: Tensor, _: Tensor) -> Scores:
        return worker.task.divergences(a, b, x)

    with evaluating(a), evaluating(b), worker.scoring():
        parts = [
            _rows_of(site, view, request, request_seed, _scored(worker, view, DIVERGENCES, compare))
            for view in site.views
        ]
    columns = ["record", "split", "selected", "retained", *DIVERGENCES]
    return pd.concat(parts, ignore_index=True)[columns]


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


def _scored(
    worker: Worker, view: View, names: Sequence[str], score: Callable[[Tensor, Tensor], Scores]
) -> dict[str, np.ndarray]:
    parts = [
        score(*worker.batch(view.inputs, view.targets, view.indices[start : start + BATCH]))
        for start in range(0, len(view), BATCH)
    ]
    return {name: _joined([part[name] for part in parts]) for name in names}


def _joined(parts: Sequence[Tensor]) -> np.ndarray:
    return torch.cat(list(parts)).double().numpy() if parts else np.zeros(0)


def _rows_of(site: Site, view: View, request: str, seed: int, scores: dict[str, np.ndarray]) -> pd.DataFrame:
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
            **scores,
        }
    )
