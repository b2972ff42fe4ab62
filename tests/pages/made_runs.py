"""Run folders with made-up numbers, written by the real writers: what pages are shown without a federation."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evaluation.curves import write_curves
from evaluation.results import COLUMNS, write_results
from strategies.history import HistoryWriter, RoundRecord, SiteRecord
from unlearning.state import State, update_of

HOSTILE = "<script>alert(1)</script>"
GONE = f"site-0: the parameter norm went from 14.6 to 554 {HOSTILE}"
UNFIT = "not applicable to a client request: it prunes & forgets classes only"
METHODS = ("retrain", "fine-tuning", "federaser", "fedquit", "ga", "not", "prune")
PLACES = {"original": 0.62, "retrain": 0.41, "fine-tuning": 0.58, "federaser": 0.43, "fedquit": 0.5, "ga": 0.07}
PLACES |= {"not": 0.36, "prune": math.nan}
SITES = 6


def make_run(
    home: Path,
    name: str,
    *,
    created: float = 1796036033.0,
    shift: float = 0.0,
    seeds: int = 1,
    settings: Mapping[str, Any] | None = None,
    methods: tuple[str, ...] = METHODS,
    requests: tuple[str, ...] = ("client:site-0",),
    experiment: str = "paper",
) -> Path:
    """Write a run below a home: every method before and after recovery, per-site curves, the original's rounds.

    Parameters
    ----------
    home : Path
        LETHE_HOME.
    name : str
        Of the folder.
    created : float
        Seconds since the epoch.
    shift : float
        Added to the scores of every method but the original and gold.
    seeds : int
        Train seeds.
    settings : mapping
        Settings that differ from the usual ones.
    methods, requests, experiment
        What was run.
    """
    run = home / "runs" / name
    used = {"name": experiment, "dataset": "bloodmnist", "rounds": 20, "local-epochs": 2, "lr": 0.01, "home": "/secret"}
    used |= {"strategy": "fedavg", "batch-size": 64, "cap": 0, "momentum": 0.0, "precision": "32-true"} | (
        settings or {}
    )
    rows: list[dict[str, Any]] = []
    cells: list[dict[str, Any]] = []
    history = home / "stages" / name / "trained"
    for request in requests:
        for method in ("original", *methods):
            points = ("trained",) if method == "original" else ("unlearned", "recovered")
            for seed in range(seeds):
                cell = f"{method}-{seed}-{requests.index(request)}"
                for point in points:
                    place = PLACES[method] + (0 if method in ("original", "retrain") else shift)
                    label = {"cell": cell, "request": request, "method": method, "checkpoint": point, "seed": seed}
                    rows += _rows(label, place, experiment, str(used["dataset"]))
                where = {
                    point: str(history if method == "original" else history.with_name(f"{cell}-{point}"))
                    + "/model.safetensors"
                    for point in points
                }
                cells.append(
                    {
                        "cell": cell,
                        "method": method,
                        "preset": "lethe",
                        "request": request,
                        "train_seed": seed,
                        "unlearn_seed": 0,
                        "status": "ok",
                        "settings": used,
                        "checkpoints": where,
                    }
                )
    write_results(run, rows)
    write_curves(run, [point for row in rows if row["metric"] == "forget_accuracy" for point in _sites(row)])
    _write_rounds(history / "history")
    environment = {"commit": "c0ffee", "cpus": 2, "memory_bytes": 2**33, "python": "3.11.7", "host": "my-host"}
    environment |= {"platform": "Linux", "libraries": {"torch": "2.14.1", "flwr": "1.42.0"}}
    record = {"created": created, "environment": environment, "groups": {"g": used}, "cells": cells}
    (run / "run.json").write_text(json.dumps(record))
    return run


def _rows(label: Mapping[str, Any], place: float, experiment: str, dataset: str) -> Iterator[dict[str, Any]]:
    method, point, seed = label["method"], label["checkpoint"], int(label["seed"])
    noise = np.random.default_rng([seed, *map(ord, method + point)])
    near = 0.5 if point == "recovered" and method not in ("original", "retrain") else 1.0
    gold = PLACES["retrain"]
    forget = gold + (place - gold) * near + noise.normal(0, 0.004)
    retain = 0.66 - abs(forget - gold) * 0.6
    test = 0.9 * retain + 0.1 * forget
    gap = 0.0 if method == "retrain" else abs(forget - gold) + 0.02
    values = {"forget_accuracy": forget, "retain_accuracy": retain, "test_accuracy": test}
    values |= {"forget_train_accuracy": forget + 0.05, "retain_train_accuracy": retain + 0.05}
    values |= {
        f"delta_{split}_accuracy": values[f"{split}_accuracy"] - best
        for split, best in (("forget", gold), ("retain", 0.66), ("test", 0.635))
    }
    values |= {"population_mia_auc": 0.5 + gap / 3, "delta_population_mia_auc": gap / 3, "retrain_gap_l2": 9 * gap}
    values |= {"retrain_gap_kl_forget": 0.8 * gap, "retrain_gap_kl_retain": 0.2 * gap, "js_forget": 0.1 * gap}
    cost = {"original": 40.0, "retrain": 36.0, "federaser": 9.0, "fine-tuning": 0.0}.get(method, 0.4)
    total = cost + (9.0 if point == "recovered" else 0.0)
    values |= {"client_examples": 3000 * total, "seconds_unlearn": 3 * cost, "seconds_total": 3 * total}
    values |= {"speedup": 36 / max(cost, 0.1), "speedup_total": 36 / max(total, 0.1)}
    base = dict.fromkeys(COLUMNS, "") | {"task": "classification", "dataset": dataset, "partition": "dirichlet"}
    base |= {name: label[name] for name in ("cell", "request", "method", "checkpoint")}
    base |= {"experiment": experiment, "alpha": 0.1, "model": "cnn", "granularity": label["request"].split(":")[0]}
    base |= {"preset": "lethe", "train_seed": seed, "unlearn_seed": 0, "evaluate_seed": 0, "n": 500, "status": "ok"}
    if method == "ga":
        base |= {"status": "diverged", "reason": GONE}
    if method == "prune":
        base |= {"status": "not_applicable", "reason": UNFIT}
    for metric, value in values.items():
        half = 0.03 if "accuracy" in metric or "auc" in metric else math.nan
        ends = {"ci_low": value - half, "ci_high": value + half}
        yield base | {"metric": metric, "value": value} | ends
    if base["status"] == "ok":
        yield base | {
            "metric": "population_mia_tpr_1",
            "value": math.nan,
            "status": "underpowered",
            "reason": "4 negatives",
            "ci_low": math.nan,
            "ci_high": math.nan,
        }


def _sites(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    about = {name: row[name] for name in ("cell", "request", "method", "preset", "checkpoint")}
    about |= {name: row[name] for name in ("train_seed", "unlearn_seed", "evaluate_seed")}
    for site in range(SITES):
        value = min(1.0, max(0.0, row["value"] + 0.03 * (site - 2)))
        yield about | {"kind": "site", "series": "forget", "label": f"site-{site}", "x": float(site), "y": value}


def _write_rounds(folder: Path) -> None:
    start, end = (State({"w": torch.tensor([value])}, {}, {}) for value in (0.0, 1.0))
    writer = HistoryWriter(folder)
    for round_ in range(1, 6):
        sites = {
            f"site-{n}": SiteRecord(
                weight=1 / SITES,
                num_examples=100 + n,
                loss=(1 + 0.1 * n) / round_,
                metric=0.4 + 0.05 * round_ - 0.01 * n,
            )
            for n in range(SITES)
        }
        record = RoundRecord(round=round_, lr=0.1, seconds=1.0, sites=sites)
        writer.write(record, start, end, {name: update_of(end, start) for name in sites})
