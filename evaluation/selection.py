"""Choosing among the trials of a hyper-parameter search, from scores on training records and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

Rule = Literal["retain-forget", "oracle"]
SEEN = ["record", "split", "selected", "retained", "metric"]
"""All that a rule may look at, of training records only."""


@dataclass(frozen=True)
class Judgement:
    """What a rule makes of one trial.

    Attributes
    ----------
    score : float
        Higher is better, whatever the task's metric; NaN where the trial cannot be judged.
    retain_train, forget_train : float
        Mean of the task's metric on retained and on forgotten training records.
    reason : str
        Why it cannot be judged; empty otherwise.
    """

    score: float
    retain_train: float
    forget_train: float
    reason: str = ""


def training_rows(scorecard: pd.DataFrame) -> pd.DataFrame:
    """Return the only part of a scorecard that a rule may look at: training records, and the columns of `SEEN`."""
    return scorecard.loc[scorecard["split"] == "train", SEEN].reset_index(drop=True)


def judge(
    rows: pd.DataFrame, *, rule: Rule = "retain-forget", higher_is_better: bool = True, gold: pd.DataFrame | None = None
) -> Judgement:
    """Judge one trial.

    Parameters
    ----------
    rows : DataFrame
        As `training_rows` returns it.
    rule : {"retain-forget", "oracle"}
        ``retain-forget`` is GEMMU's: the metric on retained minus the metric on forgotten training records, with the
        sign turned where lower is better. ``oracle`` is minus the sum of the distances of both to gold's, which no
        coordinator has who does not retrain.
    higher_is_better : bool
        Direction of the task's metric.
    gold : DataFrame or None
        The retrained model's `training_rows`; only for ``oracle``.

    Raises
    ------
    ValueError
        When there is a record among them that was not trained on.
    """
    retain, forget, reason = _means(rows)
    if not reason and rule == "oracle":
        if gold is None:
            raise ValueError("the oracle needs gold")
        gold_retain, gold_forget, reason = _means(gold)
        reason = reason and f"gold: {reason}"
        score = -abs(retain - gold_retain) - abs(forget - gold_forget)
    else:
        score = retain - forget if higher_is_better else forget - retain
    return Judgement(math.nan if reason else score, retain, forget, reason)


def best(scores: Sequence[float]) -> int | None:
    """Return the place of the highest score, the first of equal ones; None where all are NaN.

    >>> best([float("nan"), 0.5, 0.7, 0.7])
    2
    """
    known = [place for place, score in enumerate(scores) if not math.isnan(score)]
    return max(known, key=lambda place: (scores[place], -place)) if known else None


def _means(rows: pd.DataFrame) -> tuple[float, float, str]:
    """Return the metric on retained and on forgotten records, and why there is none."""
    if not (rows["split"] == "train").all():
        raise ValueError("a rule may look at training records only")
    values = rows["metric"].to_numpy(dtype=np.float64)
    if bad := int(np.isnan(values).sum()):
        return math.nan, math.nan, f"non-finite outputs on {bad} of {len(values)} training records"
    means = []
    for side, name in (("retained", "retained"), ("selected", "forgotten")):
        own = values[rows[side].to_numpy(dtype=bool)]
        own = own[np.isfinite(own)]  # the PSNR of a perfect image is infinite
        if not own.size:
            return math.nan, math.nan, f"no finite value on {name} training records"
        means.append(float(own.mean()))
    return means[0], means[1], ""
