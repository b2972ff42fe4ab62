"""Seeds aggregated: mean and deviation of every metric over train, unlearn and evaluate seeds, raw values kept."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from evaluation.catalogue import declared
from evaluation.results import SEEDS
from evaluation.tables import GROUP, variants

SUBJECT = (*GROUP, "method", "preset", "checkpoint", "metric")
"""What a mean is about. Cells of several settings of one preset have one row each, by `variant`."""
THRESHOLD = 0.10
"""Deviation of a fraction above which more seeds are asked for: 10 percentage points (SUPREME)."""
FRACTIONS = frozenset({"accuracy", "balanced_accuracy", "dice", "hit_rate", "token_accuracy"})
"""Task metrics in [0, 1]; the other fractions say so themselves."""
LEVELS = {"train_seed": "train", "unlearn_seed": "unlearn", "evaluate_seed": "evaluate"}


@dataclass(frozen=True)
class Spread:
    """Values of one metric of one method over its seeds.

    Attributes
    ----------
    values : tuple of float
        One a combination of seeds, in their order; missing ones left out.
    mean, std : float
        Over all values, as SUPREME reports them; std is the sample deviation (``ddof=1``), NaN for one value.
    missing : int
        Combinations of seeds without a value.
    seeds : dict of str to int
        ``train``: training seeds; ``unlearn``: J, the most unlearning seeds of a training seed; ``evaluate``: K, the
        most evaluation seeds of an unlearning seed.
    between : dict of str to float
        Sample deviation at each level: of the means of training seeds; within a training seed, of the means of its
        unlearning seeds; within an unlearning seed, of its evaluations. The last two are pooled; NaN where no seed
        has a second one below it.
    unstable : bool
        Whether `std` passes the threshold; never for a metric that is no fraction.
    advice : str
        What to do about it; empty for a stable one.
    """

    values: tuple[float, ...]
    mean: float
    std: float
    missing: int
    seeds: dict[str, int]
    between: dict[str, float]
    unstable: bool
    advice: str


def spread(rows: pd.DataFrame, metric: str, threshold: float = THRESHOLD) -> Spread:
    """Aggregate the rows of one metric of one method over their seeds.

    Parameters
    ----------
    rows : DataFrame
        Columns `train_seed`, `unlearn_seed`, `evaluate_seed` and `value`; one row a combination of seeds.
    metric : str
        Its name, which says whether it is a fraction.
    threshold : float
        Deviation above which it is unstable, as a fraction: 0.1 is 10 percentage points.

    Raises
    ------
    ValueError
        When a combination of seeds appears twice: those are not seeds of one thing.
    """
    if rows.duplicated(list(SEEDS)).any():
        raise ValueError(f"{metric}: a combination of seeds appears twice")
    ordered = rows.sort_values(list(SEEDS), kind="stable")
    kept = ordered[ordered["value"].notna()]
    mean, std = float(kept["value"].mean()), float(kept["value"].std(ddof=1))
    unstable = is_fraction(metric) and std > threshold
    between = _between(kept)
    return Spread(
        values=tuple(kept["value"].tolist()),
        mean=mean,
        std=std,
        missing=len(rows) - len(kept),
        seeds=_counts(kept),
        between=between,
        unstable=unstable,
        advice=_advice(std, threshold, between) if unstable else "",
    )


def spreads(results: pd.DataFrame, threshold: float = THRESHOLD) -> pd.DataFrame:
    """Aggregate a results table over its seeds.

    Parameters
    ----------
    results : DataFrame
        As `evaluation.results.read_results` gives it.
    threshold : float
        As in `spread`.

    Returns
    -------
    DataFrame
        `SUBJECT` and `variant` (which of several settings; else empty), then `mean`, `std`, `values` (a tuple),
        `missing`, `train`, `unlearn`, `evaluate` (numbers of seeds), `std_train`, `std_unlearn`, `std_evaluate`,
        `unstable` and `advice`.
    """
    labelled = results.assign(variant=variants(results))
    keys = [*SUBJECT, "variant"]
    found = []
    for key, rows in labelled.groupby(keys, dropna=False, sort=False):
        labels = dict(zip(keys, key, strict=True))
        one = spread(rows, str(labels["metric"]), threshold)
        found.append(
            labels
            | {"mean": one.mean, "std": one.std, "values": one.values, "missing": one.missing}
            | one.seeds
            | {f"std_{level}": value for level, value in one.between.items()}
            | {"unstable": one.unstable, "advice": one.advice}
        )
    numbers = ["mean", "std", "values", "missing", *LEVELS.values(), *(f"std_{level}" for level in LEVELS.values())]
    return pd.DataFrame(found, columns=[*keys, *numbers, "unstable", "advice"])


def is_fraction(metric: str) -> bool:
    """Tell whether a metric, or the difference of two, is in percentage points.

    >>> is_fraction("delta_forget_accuracy"), is_fraction("forget_loss")
    (True, False)
    """
    found = declared(metric)
    return found is not None and (found[0].unit == "fraction" or found[1] in FRACTIONS)


def _counts(rows: pd.DataFrame) -> dict[str, int]:
    counts: dict[str, int] = {}
    above: list[str] = []
    for seed, level in LEVELS.items():
        below = rows.drop_duplicates([*above, seed])
        counts[level] = int(below.groupby(above, dropna=False).size().max()) if above and len(below) else len(below)
        above.append(seed)
    return counts


def _between(rows: pd.DataFrame) -> dict[str, float]:
    """Return the deviation at each level of the nesting, pooled over what is above it."""
    found: dict[str, float] = {}
    above: list[str] = []
    for seed, level in LEVELS.items():
        means = rows.groupby([*above, seed], dropna=False)["value"].mean()
        nested = means.groupby(level=above, dropna=False) if above and len(means) else [("", means)]
        parts = [part for _, part in nested]
        free = sum(max(0, len(part) - 1) for part in parts)
        squares = sum(float(((part - part.mean()) ** 2).sum()) for part in parts)
        found[level] = math.sqrt(squares / free) if free > 0 else math.nan
        above.append(seed)
    return found


def _advice(std: float, threshold: float, between: dict[str, float]) -> str:
    known = {level: value for level, value in between.items() if not math.isnan(value)}
    level = max(known, key=lambda name: known[name])
    return (
        f"deviation {100 * std:.1f} percentage points, above {100 * threshold:g}: add {level} seeds, "
        "which it comes from most"
    )
