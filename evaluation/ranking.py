"""Methods ranked by distance to gold over data sets, from results tables; ties are shown as ties."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from evaluation.catalogue import declared
from evaluation.difficulty import separability, unseparable
from evaluation.files import is_file
from evaluation.results import FILE, SEEDS, read_results
from evaluation.runs import find_run
from evaluation.spread import spread
from evaluation.statistics import (
    Omnibus,
    block_ranks,
    complete,
    critical_difference,
    friedman,
    group_letters,
    nemenyi_p,
    power_warning,
    tie_groups,
)
from evaluation.tables import GROUP, OF_VALUES, variants
from partitions.errors import BadInput, unknown_name

Block = Literal["dataset", "split", "request"]
BLOCKS: dict[Block, tuple[str, ...]] = {
    "dataset": ("task", "dataset"),
    "split": ("task", "dataset", "partition", "alpha"),
    "request": ("task", "dataset", "partition", "alpha", "request"),
}
"""What tells one block from another. The settings within a block are averaged."""
METRIC, CHECKPOINT, LEVEL = "delta_test_accuracy", "recovered", 0.05
ANCHORS = ("original", "retrain")
"""They define the target, so they do not compete; their rank is what they would have had."""
CONTROL = "fine-tuning"
DELTA = "delta_"
SAME_ROW = ("cell", "request", "method", "preset", "checkpoint", *SEEDS, "metric")
MOST_LISTED = 4
DIGITS = 12
"""Decimals that count: equal scores averaged in another order are ties."""


@dataclass(frozen=True)
class Ranking:
    """The methods of one kind of request, ranked.

    Attributes
    ----------
    granularity, metric, checkpoint, block : str
        What was ranked, where, and over what.
    better : str
        ``near gold``, ``low`` or ``high``: what rank 1 is.
    blocks : tuple of str
        The blocks that count.
    methods : tuple of str
        Competitors that count, best mean rank first; a preset is named where a method has several.
    scores : ndarray
        Blocks x methods, the value that is ranked (for ``near gold`` the mean over seeds of the absolute difference).
    signed : ndarray
        Shape (methods,): mean over blocks of the value as it stands in the results, with its sign.
    test : Omnibus
        Friedman's test; its `mean_ranks` are in the order of `methods`.
    level : float
        Of significance.
    difference : float
        Nemenyi's critical difference in ranks; NaN where there is no test.
    groups : tuple of tuple of int
        Of methods that are not told apart (`evaluation.statistics.tie_groups`). One group of all where the test
        finds nothing.
    pairs : ndarray or None
        (methods, methods) p values of Nemenyi's test; None where the omnibus test finds nothing, or with two methods.
    anchors : dict of str to float
        Mean rank that the original and gold would have had among the methods.
    left_out : dict of str to str
        Methods that do not count, and why.
    dropped : dict of str to str
        Blocks that do not count, and why.
    unstable : tuple of str
        Methods whose deviation over seeds passes 10 percentage points somewhere, with the advice.
    warnings : tuple of str
        What else to keep in mind, the power of the test first.
    """

    granularity: str
    metric: str
    checkpoint: str
    block: Block
    better: str
    blocks: tuple[str, ...]
    methods: tuple[str, ...]
    scores: np.ndarray
    signed: np.ndarray
    test: Omnibus
    level: float
    difference: float
    groups: tuple[tuple[int, ...], ...]
    pairs: np.ndarray | None
    anchors: dict[str, float]
    left_out: dict[str, str]
    dropped: dict[str, str]
    unstable: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def letters(self) -> tuple[str, ...]:
        """Group letters of each method: two that share one are not told apart."""
        return group_letters(self.groups, len(self.methods))

    def to_json(self) -> dict[str, Any]:
        """Return the ranking for ``json.dumps``: missing and infinite numbers as null (an infinite F as text)."""
        test = self.test
        rows = [
            {
                "method": name,
                "mean_rank": float(test.mean_ranks[index]),
                "groups": self.letters[index],
                "score": _number(self.scores[:, index].mean()) if len(self.blocks) else None,
                "signed": _number(self.signed[index]),
                "by_block": {b: _number(v) for b, v in zip(self.blocks, self.scores[:, index], strict=True)},
            }
            for index, name in enumerate(self.methods)
        ]
        omnibus = {
            "chi2": _number(test.chi2),
            "p_chi2": _number(test.p_chi2),
            "f": "inf" if test.f == math.inf else _number(test.f),
            "p_f": _number(test.p_f),
            "p": _number(test.p),
            "source": test.source,
            "reason": test.reason,
        }
        labels = ("granularity", "metric", "checkpoint", "block", "better", "left_out", "dropped", "anchors", "level")
        lists = ("blocks", "unstable", "warnings")
        return {
            **{name: getattr(self, name) for name in labels},
            **{name: list(getattr(self, name)) for name in lists},
            "methods": rows,
            "test": omnibus,
            "critical_difference": _number(self.difference),
            "tie_groups": [[self.methods[one] for one in group] for group in self.groups],
            "pair_p": None
            if self.pairs is None
            else {
                name: dict(zip(self.methods, map(float, row), strict=True))
                for name, row in zip(self.methods, self.pairs, strict=True)
            },
        }


def read_runs(runs: Sequence[Path | str], home: Path | str | None = None) -> pd.DataFrame:
    """Read the results of several runs as one table; what the same cell has in two runs is taken once.

    Parameters
    ----------
    runs : sequence of Path or str
        Run folders, results tables, names below the home's ``runs``, or ``latest``.
    home : Path, str or None
        As in `evaluation.runs.find_run`.

    Raises
    ------
    BadInput
        When one is none of these.
    """
    frames = []
    for run in runs:
        path = Path(run).expanduser()
        found = path if is_file(path) or is_file(path / FILE) else find_run(run, home)
        frames.append(read_results(found))
    return _merged(pd.concat(frames, ignore_index=True)).drop_duplicates(list(SAME_ROW), keep="last", ignore_index=True)


def rank_methods(
    results: pd.DataFrame,
    metric: str = METRIC,
    *,
    checkpoint: str = CHECKPOINT,
    block: str = "dataset",
    level: float = LEVEL,
    seed: int = 0,
) -> list[Ranking]:
    """Rank the methods, each kind of request for itself.

    Seeds are averaged first, then the splits and requests within a block. A method has no score in a block where it
    lacks one of the block's settings, did not apply, or diverged under any seed.

    Parameters
    ----------
    results : DataFrame
        As `read_runs` gives it.
    metric : str
        Its name in the results; of ``test_accuracy`` and ``delta_test_accuracy`` the difference is ranked either way.
    checkpoint : str
        ``unlearned`` or ``recovered``.
    block : {"dataset", "split", "request"}
        What a block is. Splits and requests of one data set are not independent: the p value is then too small.
    level : float
        Of significance, in (0, 1).
    seed : int
        Of the permutations for few blocks.

    Returns
    -------
    list of Ranking
        By granularity, in the order client, class, patient, sample, others.

    Raises
    ------
    BadInput
        For a metric, checkpoint or block that is not there, or a metric that has no better and worse.
    """
    blocks = {str(name): name for name in get_args(Block)}
    if block not in blocks:
        raise unknown_name("block", block, blocks)
    if not 0 < level < 1:
        raise BadInput("level", level, "a number between 0 and 1")
    name, better = _direction(metric, set(results["metric"]))
    known = set(results["checkpoint"]) - {"trained"}
    if checkpoint not in known:
        raise unknown_name("checkpoint", checkpoint, known)
    of_metric = results[results["metric"] == name]
    order = ["client", "class", "patient", "sample"]
    kinds = sorted(set(of_metric["granularity"]), key=lambda kind: (kind not in order, (*order, kind).index(kind)))
    return [
        _ranking(
            of_metric[of_metric["granularity"] == kind],
            results[results["granularity"] == kind],
            granularity=kind,
            metric=name,
            better=better,
            checkpoint=checkpoint,
            block=blocks[block],
            level=level,
            seed=seed,
        )
        for kind in kinds
    ]


# ---------------------------------------------------------------------- what is ranked
def _merged(results: pd.DataFrame) -> pd.DataFrame:
    """Give experiments that share a retrained model one name for its setting: they ran the same thing."""
    gold = results[results["method"] == "retrain"].drop_duplicates([*GROUP, "cell"])
    first = gold.groupby("cell")["experiment"].min()
    keys, names = _names(gold, GROUP), gold["cell"].map(first)
    alias = dict(zip(keys, names, strict=True))
    own = zip(_names(results, GROUP), results["experiment"], strict=True)
    return results.assign(experiment=[str(alias.get(name, experiment)) for name, experiment in own])


def _direction(metric: str, known: set[str]) -> tuple[str, str]:
    """Return the column to rank by, and what is better: ``near gold``, ``low`` or ``high``."""
    if DELTA + metric in known:
        metric = DELTA + metric
    if metric not in known:
        raise unknown_name("metric", metric, known)
    if metric.startswith(DELTA):
        return metric, "near gold"
    found = declared(metric)
    if found is None or found[0].better not in ("low", "high"):
        why = "has neither a difference to gold in these results nor a better and a worse"
        raise BadInput("metric", metric, "a metric that can be ranked", f"it {why}")
    return metric, found[0].better


def _rounded(scores: np.ndarray) -> np.ndarray:
    """Return scores to `DIGITS`, so that noise of the last bit parts no ties; what is too large for that as it is."""
    with np.errstate(over="ignore"):
        rounded = scores.round(DIGITS)
    return np.where(np.isfinite(rounded), rounded, scores)


def _ranking(
    rows: pd.DataFrame,
    everything: pd.DataFrame,
    *,
    granularity: str,
    metric: str,
    better: str,
    checkpoint: str,
    block: Block,
    level: float,
    seed: int,
) -> Ranking:
    asked = rows[
        (rows["checkpoint"] == checkpoint) | ((rows["checkpoint"] == "trained") & (rows["method"] == "original"))
    ]
    cells = _cells(asked, metric, better)
    competing = cells[~cells["method"].isin(ANCHORS)]
    table, signed = _matrix(competing, block, "score"), _matrix(competing, block, "signed")
    left = complete(_rounded(table.to_numpy(dtype=float)))
    scores = left.scores
    lower = better != "high"
    order = _by_mean_rank(scores, lower)
    names = [str(table.columns[left.methods[one]]) for one in order]
    kept_blocks = tuple(str(table.index[one]) for one in left.blocks)
    scores = scores[:, order] if scores.size else np.empty((0, 0))
    test = friedman(scores, lower_is_better=lower, seed=seed)
    n, k = scores.shape
    tested = n >= 2 and k >= 2
    differ = tested and test.p < level
    difference = critical_difference(k, n, level) if tested else math.nan
    apart = difference if k > 2 else 0.0  # two methods that differ are no group
    return Ranking(
        granularity=granularity,
        metric=metric,
        checkpoint=checkpoint,
        block=block,
        better=better,
        blocks=kept_blocks,
        methods=tuple(names),
        scores=scores,
        signed=signed.loc[list(kept_blocks), names].mean(axis=0).to_numpy() if k else np.empty(0),
        test=test,
        level=level,
        difference=difference,
        groups=tie_groups(test.mean_ranks, apart if differ else math.inf) if k and n else (),
        pairs=nemenyi_p(test.mean_ranks, n) if differ and k > 2 else None,
        anchors=_anchor_ranks(cells, block, scores, kept_blocks, lower) if k and n else {},
        left_out=_left_out(table, competing, set(names)),
        dropped=_dropped(table, set(names), kept_blocks),
        unstable=tuple(
            f"{name}: {why}" for name, why in zip(competing["label"], competing["advice"], strict=True) if why
        ),
        warnings=_warnings(everything, competing, checkpoint, block, n, k, level),
    )


def _by_mean_rank(scores: np.ndarray, lower: bool) -> list[int]:
    if not scores.size:
        return []
    ranks = block_ranks(scores, lower_is_better=lower).mean(axis=0)
    return [int(one) for one in np.argsort(ranks, kind="stable")]


def _cells(rows: pd.DataFrame, metric: str, better: str) -> pd.DataFrame:
    """Return one row a setting and method: label, score, signed, status, seeds, advice.

    The score is NaN with a reason where any seed has no sound value.
    """
    rows = rows.assign(variant=variants(rows))
    presets = rows[~rows["method"].isin(ANCHORS)].groupby("method")["preset"].nunique()
    crowded = set(presets[presets > 1].index)
    found = []
    for key, group in rows.groupby([*GROUP, "method", "preset", "variant"], dropna=False, sort=False):
        labels = dict(zip([*GROUP, "method", "preset", "variant"], key, strict=True))
        name = [labels["method"], labels["preset"] if labels["method"] in crowded else "", labels["variant"]]
        whole = group["status"].isin(OF_VALUES) & group["value"].notna()
        over = spread(group, metric)
        values = group["value"].abs() if better == "near gold" else group["value"]
        bad = group[~whole]
        found.append(
            labels
            | {
                "label": " ".join(str(part) for part in name if part),
                "score": float(values.mean()) if bad.empty else math.nan,
                "signed": over.mean if bad.empty else math.nan,
                "why": "" if bad.empty else _why(bad, len(group)),
                "seeds": len(group),
                "advice": over.advice,
            }
        )
    columns = [*GROUP, "method", "preset", "variant", "label", "score", "signed", "why", "seeds", "advice"]
    return pd.DataFrame(found, columns=columns)


def _why(bad: pd.DataFrame, seeds: int) -> str:
    status = str(bad["status"].iloc[0])
    word = {"not_applicable": "does not apply", "ok": "no value"}.get(status, status)
    return word if len(bad) == seeds else f"{word} under {len(bad)} of {seeds} seeds"


def _matrix(cells: pd.DataFrame, block: Block, column: str) -> pd.DataFrame:
    """Return blocks x labels; NaN where a method lacks a sound value in any of the block's settings."""
    named = cells.assign(block=_block_names(cells, block), setting=_names(cells, GROUP))
    labels, blocks = sorted(set(named["label"])), list(dict.fromkeys(named["block"]))
    table = pd.DataFrame(math.nan, index=blocks, columns=labels, dtype=np.float64)
    for name, of_block in named.groupby("block", sort=False):
        settings = of_block["setting"].nunique()
        for label, rows in of_block.groupby("label", sort=False):
            if rows[column].count() == settings:
                table.loc[name, label] = rows[column].mean()
    return table


def _block_names(cells: pd.DataFrame, block: Block) -> pd.Series:
    """Name each row's block; the task is named only where there are several."""
    columns = BLOCKS[block] if cells["task"].nunique() > 1 else BLOCKS[block][1:]
    return _names(cells, columns)


def _names(cells: pd.DataFrame, columns: Sequence[str]) -> pd.Series:
    named = [
        " ".join(f"{part:g}" if isinstance(part, float) else str(part) for part in row if not pd.isna(part))
        for row in cells[list(columns)].itertuples(index=False, name=None)
    ]
    return pd.Series(named, index=cells.index, dtype=str)


def _anchor_ranks(
    cells: pd.DataFrame, block: Block, scores: np.ndarray, blocks: tuple[str, ...], lower: bool
) -> dict[str, float]:
    """Return the mean rank each anchor would have if it alone joined the methods."""
    ranks = {}
    for name in ANCHORS:
        own = cells[cells["method"] == name]
        if own.empty:
            continue
        # one value a block: the variants of an anchor are its retrainings under other settings
        means = own.assign(block=_block_names(cells, block)[own.index]).groupby("block")["score"].mean().reindex(blocks)
        if means.notna().all():
            joined = np.column_stack([scores, means.to_numpy()])
            ranks[name] = float(block_ranks(joined, lower_is_better=lower)[:, -1].mean())
    return ranks


def _left_out(table: pd.DataFrame, cells: pd.DataFrame, kept: set[str]) -> dict[str, str]:
    found = {}
    for label in table.columns:
        if label in kept:
            continue
        reasons = dict.fromkeys(why for why in cells.loc[cells["label"] == label, "why"] if why)
        missing = int(table[label].isna().sum())
        why = ", ".join(reasons) or "not run in all their settings"
        found[str(label)] = f"no score in {missing} of {len(table)} blocks ({why})"
    return found


def _dropped(table: pd.DataFrame, kept: set[str], blocks: tuple[str, ...]) -> dict[str, str]:
    own = table[[label for label in table.columns if label in kept]]
    return {
        str(name): "no score of " + ", ".join(str(label) for label in own.columns if pd.isna(row[label]))
        for name, row in own.iterrows()
        if str(name) not in blocks and row.isna().any()
    }


def _warnings(
    everything: pd.DataFrame, cells: pd.DataFrame, checkpoint: str, block: Block, n: int, k: int, level: float
) -> tuple[str, ...]:
    found = []
    if n >= 1 and k >= 2:
        found.append(power_warning(k, n, level))
    if block != "dataset" and n > 1:
        found.append("Blocks of one data set are not independent: the p value is too small.")
    elif block == "dataset" and n == 1:
        finer: Block = "split" if _block_names(cells, "split").nunique() > 1 else "request"
        more = _block_names(cells, finer).nunique()
        if more > 1:
            found.append(f"One data set: `--block {finer}` has {more} blocks, which are not independent.")
    if cells["seeds"].nunique() > 1:
        found.append(
            f"Methods ran with {cells['seeds'].min()} to {cells['seeds'].max()} seeds: not all means are equally sure."
        )
    elif (cells["seeds"] == 1).all() and len(cells):
        found.append("One seed: how far another would move a score is not known.")
    blind = unseparable(separability(everything), checkpoint)
    what = "Recovery alone" if checkpoint == "recovered" else "The original"
    found += [
        f"{what} cannot be told from gold by {title}, which so judges no forgetting: {listed(names)}."
        for title, names in blind.items()
    ]
    return tuple(text for text in found if text)


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def listed(names: Sequence[str], by: str = ", ") -> str:
    """Return the first few names, and how many more there are."""
    shown = by.join(names[:MOST_LISTED])
    return shown if len(names) <= MOST_LISTED else f"{shown}{by}and {len(names) - MOST_LISTED} more"
