"""What a model makes of the challenged records of a membership attack (METRICS 1.3 to 1.5); nothing else is told."""

from __future__ import annotations

import time

import numpy as np
import pandas as pd

from clients.ops import Call, Op, Reply, asked, model_of, request_of, scored
from clients.scoring import outputs_of
from clients.site import Site


def run(site: Site, call: Call) -> Reply:
    """Answer the table ``challenge``: config request, request-seed, shadows (an even number of them).

    One row a challenged record: record, site, unlearned (bool: the request means it; else it was held out), phi
    (float64, nats) under the model, and ``forgotten-0``, ``forgotten-1``, ... (bool: that shadow trains on it and
    forgets it).
    """
    started = time.perf_counter()
    table, places = design_table(site, *request_of(call), asked(call.config, "shadows", int))
    table.insert(3, "phi", _phi(site, call, places))
    return scored(site, {"challenge": table}, started)


def design_table(site: Site, request: str, seed: int, shadows: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the table without phi, for which no model is needed, and where its records lie in the arrays."""
    design = site.challenge(request, seed, shadows)
    records = pd.Series(site.known("record", places := site.places(design.challenged)), dtype=str)
    columns = {name: column for column, name in enumerate(design.challenged)}
    forgotten = design.forgotten[:, [columns[name] for name in records]]
    table = pd.DataFrame(
        {
            "record": records,
            "site": site.name,
            "unlearned": records.isin(design.unlearned),
            **{f"forgotten-{number}": forgotten[number] for number in range(shadows)},
        }
    )
    return table, places


def _phi(site: Site, call: Call, places: np.ndarray) -> np.ndarray:
    task, view = site.worker.task, site.train
    outputs = outputs_of(site, view, model_of(call), indices=places)
    targets = task.to_targets(np.asarray(view.targets).take(places, axis=0))
    return np.asarray(task.scores(outputs, targets)["phi"].double().numpy())


OPS = [Op("challenge", "evaluate", run)]
