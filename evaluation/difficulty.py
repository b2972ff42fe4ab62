"""Difficulty of a request after training: can its metrics separate methods at all, or is there nothing to forget?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pandas as pd
from scipy import stats

from evaluation.tables import GROUP, OF_VALUES

Verdict = Literal["separates", "barely", "cannot", "unknown"]

TITLES = {"forget": "forget", "forget_train": "forget (trained records)", "population_mia_auc": "MIA AUC"}
CONTROLS = {"unlearned": ("original", "trained"), "recovered": ("fine-tuning", "recovered")}
"""What a method that does nothing would be at each checkpoint: the original, and recovery alone."""
CLEAR = 2.0
"""Gap over half the width of its interval from which two halves of the gap can be told apart."""
ENOUGH_SEEDS = 3
"""Training seeds from which their spread is estimated."""


@dataclass(frozen=True)
class Separability:
    """How far doing nothing is from gold, by one metric at one checkpoint of one request.

    Attributes
    ----------
    metric : str
        Name of the difference in the results, such as ``delta_forget_accuracy``.
    title : str
        What it is called on a page.
    checkpoint : str
        ``unlearned``: the original against gold, the F0 gap; ``recovered``: recovery alone against gold.
    gap : float
        Control minus gold, signed, mean over seeds, in the metric's unit; NaN where there is none.
    ci_low, ci_high : float
        95 % interval: of the records, and with three training seeds or more of the seeds as well.
    n : int
        Records it rests on.
    seeds : int
        Training seeds it rests on.
    resolution : float
        ``|gap|`` over half the width of the interval: how many steps between doing nothing and gold can be told apart.
    verdict : {"separates", "barely", "cannot", "unknown"}
        ``cannot``: the interval has 0 in it, so a method that does nothing scores as gold does, and only damage shows.
        ``barely``: the gap is real, but half of it could not be told from all of it.
    reason : str
        In words.
    """

    metric: str
    title: str
    checkpoint: str
    gap: float
    ci_low: float
    ci_high: float
    n: int
    seeds: int
    resolution: float
    verdict: Verdict
    reason: str


def separability(results: pd.DataFrame) -> pd.DataFrame:
    """Judge every request of a results table by what it lets its metrics tell.

    Parameters
    ----------
    results : DataFrame
        As `evaluation.results.read_results` gives it.

    Returns
    -------
    DataFrame
        One row a request (the columns of `evaluation.tables.GROUP`), metric and checkpoint: the attributes of
        `Separability`. Metrics are the task's on forget records, held-out and trained, and the population attack.
    """
    found: list[dict[str, Any]] = []
    for key, rows in results.groupby(list(GROUP), dropna=False, sort=False):
        labels = dict(zip(GROUP, key, strict=True))
        found += [labels | asdict(one) for one in _of_request(rows)]
    return pd.DataFrame(found, columns=[*GROUP, *Separability.__dataclass_fields__])


def unseparable(judged: pd.DataFrame, checkpoint: str) -> dict[str, list[str]]:
    """Return the requests that cannot separate methods, by title of the metric.

    Parameters
    ----------
    judged : DataFrame
        What `separability` returns.
    checkpoint : str
        ``unlearned`` or ``recovered``.

    Returns
    -------
    dict of str to list of str
        ``DATASET SPLIT REQUEST``, in the order of the table.
    """
    blind = judged[(judged["verdict"] == "cannot") & (judged["checkpoint"] == checkpoint)]
    found: dict[str, list[str]] = {}
    for row in blind.to_dict("records"):
        split = row["partition"] if pd.isna(row["alpha"]) else f"{row['partition']} {row['alpha']:g}"
        found.setdefault(str(row["title"]), []).append(f"{row['dataset']} {split} {row['request']}")
    return found


def judge(rows: pd.DataFrame, *, metric: str, title: str = "", checkpoint: str = "unlearned") -> Separability:
    """Judge one metric of one request.

    Parameters
    ----------
    rows : DataFrame
        Rows of the control only (the original, or recovery alone), of one difference to gold: columns train_seed,
        value, n, ci_low, ci_high, status, reason. Several a training seed are averaged first.
    metric, title, checkpoint : str
        As in `Separability`.

    Returns
    -------
    Separability
        ``unknown`` where there is no sound value or no interval.
    """
    sound = rows[rows["status"].isin(OF_VALUES) & rows["value"].notna()]
    about = (metric, title or metric, checkpoint)
    nan = math.nan
    if sound.empty:
        why = "; ".join(dict.fromkeys(reason for reason in rows["reason"] if reason)) or "no value"
        return Separability(*about, nan, nan, nan, 0, 0, nan, "unknown", why)
    means = sound.groupby("train_seed", dropna=False)[["value", "ci_low", "ci_high", "n"]].mean()
    gap, n, seeds = float(means["value"].mean()), int(means["n"].max()), len(means)
    below = float((means["value"] - means["ci_low"]).mean())  # the same records under every seed: not divided by it
    above = float((means["ci_high"] - means["value"]).mean())
    if math.isnan(below) or math.isnan(above):
        return Separability(*about, gap, nan, nan, n, seeds, nan, "unknown", "no interval")
    among = 0.0
    if seeds >= ENOUGH_SEEDS:
        among = float(stats.t.ppf(0.975, seeds - 1) * means["value"].std(ddof=1) / math.sqrt(seeds))
    low, high = gap - math.hypot(below, among), gap + math.hypot(above, among)
    half = (high - low) / 2
    resolution = abs(gap) / half if half else (math.inf if gap else 0.0)
    verdict: Verdict = "cannot" if low <= 0 <= high else "separates" if resolution >= CLEAR else "barely"
    return Separability(*about, gap, low, high, n, seeds, resolution, verdict, _said(verdict, gap, low, high, n, seeds))


def _of_request(rows: pd.DataFrame) -> Iterator[Separability]:
    for column, title in _columns(rows).items():
        of_metric = rows[rows["metric"] == column]
        for checkpoint, (method, where) in CONTROLS.items():
            control = of_metric[(of_metric["method"] == method) & (of_metric["checkpoint"] == where)]
            if len(control):
                yield judge(control, metric=column, title=title, checkpoint=checkpoint)


def _columns(rows: pd.DataFrame) -> dict[str, str]:
    """Return the differences to judge by, with their titles; the task's metric is read off the names."""
    lead = "delta_forget_train_"
    names = set(rows["metric"])
    tasks = sorted({name.removeprefix(lead) for name in names if name.startswith(lead)} - {"loss"})
    wanted = {
        f"delta_{what}_{task}": f"{TITLES[what]} {task}".replace(") " + task, f", {task})")
        for task in tasks
        for what in ("forget", "forget_train")
    }
    wanted["delta_population_mia_auc"] = TITLES["population_mia_auc"]
    return {name: title for name, title in wanted.items() if name in names}


def _said(verdict: Verdict, gap: float, low: float, high: float, n: int, seeds: int) -> str:
    where = (
        f"{gap:+.3f} from gold (95 % {low:+.3f} to {high:+.3f}, {n} records, {seeds} training seed{'s' * (seeds > 1)})"
    )
    tail = {
        "cannot": "a method that does nothing scores as gold does; only damage shows",
        "barely": "half of that could not be told from all of it",
        "separates": "what lies between can be told apart",
        "unknown": "",
    }
    return f"{where}: {tail[verdict]}"
