"""A made-up run with everything a report can show, through the writers that real runs use."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score, roc_curve

from evaluation.curves import ABOUT, write_curves
from evaluation.results import COLUMNS, write_results

GONE = "site-2: the parameter norm went from 14.6 to 554"
LEFT = {
    "original": 1.3,
    "fine-tuning": 0.5,
    "ga": -0.9,
    "fedquit": 0.15,
    "federaser": 0.05,
    "not": 0.75,
    "retrain": 0.0,
}
"""How much each model still knows of the forgotten records, in standard deviations of phi."""
SHARPNESS = {"ulira": 1.0, "lira": 0.8, "calibrated": 0.9, "population": 0.35}
"""How well each attack sees that, by its name in curves."""
MEMBERS, OTHERS, REFERENCES, EPOCHS = 120, 160, 6, 5
SITES = [f"site-{number}" for number in range(5)]
Row = dict[str, Any]


def write_run(
    run: Path,
    *,
    datasets: Sequence[str] = ("bloodmnist", "pathmnist"),
    seeds: Sequence[int] = (0, 1),
    curves: bool = True,
) -> Path:
    """Write a run folder: one client request on each data set, six models at both checkpoints, gold among them."""
    rows: list[Row] = []
    points: list[Row] = []
    for place, dataset in enumerate(datasets):
        for seed in seeds:
            rng = np.random.default_rng(100 * place + seed)
            for method in LEFT:
                for checkpoint in ("trained",) if method == "original" else ("unlearned", "recovered"):
                    about = _about(dataset, method, checkpoint, seed)
                    rows += [about | row for row in _numbers(rng, method, checkpoint)]
                    points += [{name: about[name] for name in ABOUT} | one for one in _points(rng, method, checkpoint)]
    write_results(run, rows)
    write_curves(run, points if curves else [])
    settings = {"name": "audit", "rounds": 20, "lr": 0.01, "split": "dirichlet"}
    environment = {"commit": "c0ffee", "cpus": 2, "memory_bytes": 2**33, "python": "3.11"}
    record = {"created": 1796036033.0, "environment": environment, "groups": {"g": settings}, "cells": []}
    (run / "run.json").write_text(json.dumps(record))
    return run


def _about(dataset: str, method: str, checkpoint: str, seed: int) -> Row:
    about: Row = dict.fromkeys(COLUMNS, "") | {"cell": f"{dataset[:3]}-{method}-{seed}", "experiment": "audit"}
    about |= {"task": "classification", "dataset": dataset, "partition": "dirichlet", "alpha": 0.1, "model": "cnn"}
    about |= {"request": "client:site-0", "granularity": "client", "method": method, "checkpoint": checkpoint}
    about |= {"train_seed": seed, "unlearn_seed": 0, "evaluate_seed": 0, "status": "ok", "reason": ""}
    return about | ({"status": "diverged", "reason": GONE} if (method, checkpoint) == ("ga", "recovered") else {})


def _left(method: str, checkpoint: str) -> float:
    return LEFT[method] * (0.6 if checkpoint == "recovered" else 1.0)


def _numbers(rng: np.random.Generator, method: str, checkpoint: str) -> Iterator[Row]:
    left, noise = _left(method, checkpoint), 0.0 if method == "retrain" else float(rng.normal(0, 0.015))
    damage = 0.3 if method == "ga" else 0.12 * rng.random() if method == "not" else 0.0
    gold = {"forget": 0.52, "retain": 0.71, "test": 0.68, "forget_train": 0.53, "retain_train": 0.8}
    for split, value in gold.items():
        gap = 0.14 * left * (1.4 if split == "forget_train" else 1.0) if split.startswith("forget") else -damage
        yield _row(f"{split}_accuracy", value + gap + noise, 150, 0.04)
        if method != "retrain":
            yield _row(f"delta_{split}_accuracy", gap + noise, 150, 0.04)
    yield _row("population_mia_auc", 0.5 + 0.1 * left, 280, 0.06)
    yield _row("delta_population_mia_auc", 0.1 * left, 280, 0.06)
    yield _row("retrain_gap_l2", abs(left) * 4 + (0 if method == "retrain" else 1.0), 1)
    yield _row("retrain_gap_kl_forget", abs(left) * 0.2 + damage, 150)
    yield _row("client_examples", 0.0 if method in ("not", "fine-tuning") else 1e5 if method == "retrain" else 9e3, 1)
    yield _row("seconds_unlearn", 3.0, 1)
    yield _row("seconds_total", 9.0, 1)
    yield _row("speedup", 12.0, 1)
    yield _row("speedup_total", 4.0, 1)
    yield from _attack_numbers(rng, method, checkpoint)
    for epoch in range(EPOCHS + 1):
        back = 1 - math.exp(-(0.35 + 0.5 * max(left, 0)) * epoch)
        start = 0.52 + 0.14 * left - damage
        yield _row(f"relearn_forget_accuracy_{epoch}", start + (0.78 - start) * back, 150, 0.04)
        yield _row(f"relearn_forget_train_accuracy_{epoch}", start + (0.95 - start) * back, 300, 0.03)
    rate = 0.11 + max(0.0, 0.6 * left) if method != "ga" else math.nan
    why = "" if method != "ga" else "every triggered record got the same answer"
    yield _row("backdoor_asr", rate, 90, 0.05, "ok" if method != "ga" else "undefined", why)


def _attack_numbers(rng: np.random.Generator, method: str, checkpoint: str) -> Iterator[Row]:
    for attack in SHARPNESS:
        members, others = _scores(rng, attack, method, checkpoint)
        stem = "population_mia" if attack == "population" else attack
        yield _row(f"{stem}_tpr_at_1pct_fpr", float((members > np.quantile(others, 0.99)).mean()), MEMBERS, 0.03)
        if attack == "population":
            continue
        area = float(roc_auc_score(np.r_[np.ones(MEMBERS), np.zeros(OTHERS)], np.r_[members, others]))
        weak = attack == "lira" and method == "not"
        status, why = ("underpowered", "fewer than 10 positives") if weak else ("ok", "")
        name = "calibrated_mia_auc" if attack == "calibrated" else f"{attack}_auc"
        yield _row(name, area, MEMBERS + OTHERS, 0.065, status, why)
        low, high = 0.5 - 0.06, 0.5 + 0.065
        yield _row(f"{attack}_auc_band_low", low, REFERENCES)
        yield _row(f"{attack}_auc_band_high", high, REFERENCES)
        judged = math.nan if weak else float(not low <= area <= high)
        yield _row(f"{attack}_distinguishable", judged, REFERENCES, None, "undefined" if weak else "ok", why)


def _scores(rng: np.random.Generator, attack: str, method: str, checkpoint: str) -> tuple[np.ndarray, np.ndarray]:
    shift = _left(method, checkpoint) * SHARPNESS[attack]
    return rng.normal(shift, 1, MEMBERS), rng.normal(0, 1, OTHERS)


def _points(rng: np.random.Generator, method: str, checkpoint: str) -> Iterator[Row]:
    for attack in SHARPNESS:
        yield from _roc("roc", attack, "", *_scores(rng, attack, method, checkpoint))
        for number in range(REFERENCES if method == "retrain" and attack != "population" else 0):
            yield from _roc("roc-reference", attack, str(number), *_scores(rng, attack, "retrain", checkpoint))
    for number, site in enumerate(SITES):
        side, known = ("forget", 0.52 + 0.14 * _left(method, checkpoint)) if number == 0 else ("retain", 0.7)
        hurt = 0.35 if method == "not" and number == 3 else 0.3 if method == "ga" else 0.0
        yield _point("site", side, 30.0 + 11 * number, known - hurt + 0.02 * number, site)
    for _ in range(25):
        for side, stratum in (("forget", "0"), ("forget", "2"), ("retain", "0"), ("retain", "1"), ("retain", "2")):
            middle = np.array([(0, 9), (9, -5), (-9, -5)][int(stratum)]) * (0.4 if method == "ga" else 1.0)
            apart = (2.5 - 2 * min(LEFT[method], 1)) * (side == "forget")
            x, y = middle + rng.normal(0, 2 + apart, 2)
            yield _point("tsne", side, float(x), float(y), stratum)


def _roc(kind: str, series: str, label: str, members: np.ndarray, others: np.ndarray) -> Iterator[Row]:
    truth = np.r_[np.ones(len(members)), np.zeros(len(others))]
    for x, y in zip(*roc_curve(truth, np.r_[members, others], drop_intermediate=False)[:2], strict=True):
        yield _point(kind, series, float(x), float(y), label)


def _point(kind: str, series: str, x: float, y: float, label: str) -> Row:
    return {"kind": kind, "series": series, "label": label, "x": x, "y": y}


def _row(metric: str, value: float, n: int, half: float | None = None, status: str = "ok", reason: str = "") -> Row:
    """Make a row; a model that diverged keeps its own status, as the panel has it."""
    ends = {"ci_low": math.nan, "ci_high": math.nan}
    if half is not None and not math.isnan(value):
        ends = {"ci_low": value - half, "ci_high": value + half}
    own = {"status": status, "reason": reason} if status != "ok" else {}
    return {"metric": metric, "value": value, "n": n, **ends, **own}
