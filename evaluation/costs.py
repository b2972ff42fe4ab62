"""What every checkpoint of a run cost, how that was measured, and whether this run had to pay for it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.metrics.cost import CONDITIONS

AMOUNTS = {
    "seconds": "seconds_total",
    "client_seconds": "client_seconds",
    "client_examples": "client_examples",
    "gradient_steps": "gradient_steps",
    "bytes_down": "bytes_down",
    "bytes_up": "bytes_up",
    "disk_read": "disk_read",
}
"""The amounts and the metrics of the panel that have them: up to the checkpoint, recovery included."""
SPEEDUP = {"unlearned": "speedup", "recovered": "speedup_total"}
ABOUT = ("cell", "method", "preset", "request", "train_seed", "unlearn_seed", "checkpoint")
COLUMNS = (*ABOUT, "status", *AMOUNTS, "speedup", *CONDITIONS, "computed")


def costs(cells: pd.DataFrame, results: pd.DataFrame, created: float) -> pd.DataFrame:
    """Return one row a cell and checkpoint.

    Parameters
    ----------
    cells, results : DataFrame
        As `evaluation.runs.Run` has them.
    created : float
        When the run was first started, seconds since the epoch.

    Returns
    -------
    DataFrame
        `COLUMNS`. ``seconds`` is wall time of the server, ``client_seconds`` the sites' together, ``client_examples``
        records processed (one counts once an epoch), ``bytes_down`` and ``bytes_up`` array payload, ``disk_read``
        bytes of a stored history; all up to the checkpoint, recovery included, and NaN where they were not measured.
        ``speedup`` is seconds of retraining over those of the unlearning step (``unlearned``) or of step and recovery
        (``recovered``). ``status`` is ``ok`` or
        ``diverged``. ``host``, ``workers``, ``threads`` and ``jobs`` are those that the checkpoint's last stage
        was computed with, which need not be this run's: ``computed`` tells whether this run, or another after it was
        started, computed it (False: it was in the cache); missing where the cache no longer has it.
    """
    first = results.sort_values("evaluate_seed", kind="stable").drop_duplicates(["cell", "checkpoint", "metric"])
    values = {
        (str(cell), str(checkpoint), str(metric)): float(value)
        for cell, checkpoint, metric, value in first[["cell", "checkpoint", "metric", "value"]].itertuples(index=False)
    }
    rows = []
    for row in cells.to_dict("records"):
        cell, checkpoint = str(row["cell"]), str(row["checkpoint"])
        amounts = {name: values.get((cell, checkpoint, metric), math.nan) for name, metric in AMOUNTS.items()}
        speedup = values.get((cell, checkpoint, SPEEDUP.get(checkpoint, "")), math.nan)
        stage = _stage(Path(str(row["model"])))
        conditions = {name: stage.get("conditions", {}).get(name) for name in CONDITIONS}
        computed = stage["created"] >= created if "created" in stage else None
        about = {name: row[name] for name in ABOUT} | {"status": stage.get("status", "")}
        rows.append({**about, **amounts, "speedup": speedup, **conditions, "computed": computed})
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    whole = dict.fromkeys(("workers", "threads", "jobs"), "Int64")
    return frame.astype({**whole, "computed": "boolean"})


def _stage(model: Path) -> Mapping[str, Any]:
    """Return the record of the stage that a model's file lies in; empty when it is gone or cannot be read."""
    try:
        found = json.loads(model.with_name("stage.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
