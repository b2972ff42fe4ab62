"""What a run can tell at all: the difficulty of each request, the spread over seeds, and the ranking over data sets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from evaluation.difficulty import Separability, separability
from evaluation.ranking import Ranking, rank_methods
from evaluation.ranking_table import notes, shown
from evaluation.report.grid import Cell, Column, Grid, Line, Number, anchor
from evaluation.report.sections import AFTER, Section, slug
from evaluation.spread import THRESHOLD, spread

SAID = {"separates": "yes", "barely": "barely", "cannot": "no", "unknown": "unknown"}
CONTROL = {"unlearned": "the original", "recovered": "recovery alone"}
"""Who does nothing at each checkpoint."""
SPREAD = ("forget", "retain", "test")


# ---------------------------------------------------------------------- difficulty
def verdict(section: Section) -> str:
    """Say how hard this request is by what it takes, and whether it can separate methods; empty if unknown."""
    found = _judged(section)
    sentences = [_sentence(found[found["checkpoint"] == point], point) for point in AFTER]
    return " ".join(sentence for sentence in (_foreseen(section), *sentences) if sentence)


def _foreseen(section: Section) -> str:
    """Say what could be known before training: what the departing records were the only, or the main, support of."""
    before = section.before
    if not before:
        return ""
    return f"By its records the request is {before['level']}: {before['reason']}."


def difficulty_grid(section: Section) -> Grid | None:
    """Return how far doing nothing is from gold, metric by metric; None where nothing says."""
    found = _judged(section)
    if found.empty:
        return None
    columns = [
        Column("checkpoint", "when", words=True),
        Column("gap", "of doing nothing to gold: the original before recovery, recovery alone after it"),
        Column("95 % interval", "of the gap, over records and, from three on, training seeds"),
        Column("steps", "gap over half the width of its interval: how many degrees of forgetting can be told apart"),
        Column("separates", "whether methods can be told apart by this metric", words=True),
    ]
    lines = [
        Line(
            str(one["title"]),
            "bad" if one["verdict"] == "cannot" else "",
            [
                Cell(Number(AFTER[str(one["checkpoint"])])),
                Cell(_number(one["gap"], "+.3f")),
                Cell(Number("" if math.isnan(one["ci_low"]) else f"[{one['ci_low']:+.3f}, {one['ci_high']:+.3f}]")),
                Cell(_number(one["resolution"], ".1f")),
                Cell(Number(SAID[str(one["verdict"])])),
            ],
        )
        for one in found.to_dict("records")
    ]
    return Grid(
        slug=f"{section.slug}-difficulty",
        caption=f"{section.title}: what this request lets one tell",
        columns=columns,
        lines=lines,
        notes=["Where it is no, a method that does nothing scores as gold does, and only damage shows."],
        subject="metric",
    )


def _judged(section: Section) -> pd.DataFrame:
    return separability(section.results)[[*Separability.__dataclass_fields__]]


def _sentence(judged: pd.DataFrame, checkpoint: str) -> str:
    if judged.empty or (judged["verdict"] == "unknown").all():
        return ""
    titles = {str(name): _listed(group["title"]) for name, group in judged.groupby("verdict")}
    parts = {
        "separates": "can separate {who} by {what}",
        "barely": "can barely separate {who} by {what}",
        "cannot": f"cannot separate {{who}} by {{what}}, where {CONTROL[checkpoint]} is not told from gold",
    }
    there = [name for name in parts if name in titles]
    said = [
        parts[name].format(who="them" if place else "methods", what=titles[name]) for place, name in enumerate(there)
    ]
    return f"{AFTER[checkpoint].capitalize()}, this request {'; it '.join(said)}."


def _listed(titles: Iterable[str]) -> str:
    names = list(titles)
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


# ---------------------------------------------------------------------- seeds
def spread_grid(section: Section, checkpoint: str) -> Grid | None:
    """Return mean and deviation over seeds of every model, unstable ones flagged; None for one seed."""
    if section.seeds < 2:
        return None
    metric = section.metric
    names = {split: f"{split}_{metric}" for split in SPREAD} | {"MIA AUC": "population_mia_auc"}
    columns = [
        *(Column(head, f"{metric} on {head} records, mean and sample deviation") for head in SPREAD),
        Column("MIA AUC", "mean and sample deviation"),
        Column("seeds", "combinations with a value"),
        Column("stability", f"unstable where a deviation passes {100 * THRESHOLD:g} percentage points", words=True),
    ]
    lines = []
    for row in section.at(checkpoint):
        found = section.results_of(row)
        over = {head: spread(found[found["metric"] == name], name) for head, name in names.items()}
        advice = "; ".join(f"{head}: {one.advice}" for head, one in over.items() if one.unstable)
        cells = [Cell(Number(_plus_minus(one.mean, one.std), _known(one.mean))) for one in over.values()]
        count = max(len(one.values) for one in over.values())
        stable = f"unstable: {advice}" if advice else "stable" if count > 1 else "one seed"
        stable += "" if row["status"] == "ok" else f" ({row['status']})"
        told = [Cell(Number(str(count), count)), Cell(Number(stable))]
        lines.append(Line(section.name(row), anchor(row), [*cells, *told]))
    return Grid(
        slug=f"{section.slug}-{checkpoint}-seeds",
        caption=f"{section.title}, {AFTER[checkpoint]}: spread over seeds",
        columns=columns,
        lines=lines,
        notes=[
            "Raw values are in results.csv. Where two methods differ by less than their deviations, nothing was shown."
        ],
    )


def _plus_minus(mean: float, std: float) -> str:
    if math.isnan(mean):
        return ""
    return f"{mean:.2f}" if math.isnan(std) else f"{mean:.2f} ± {std:.2f}"


# ---------------------------------------------------------------------- ranking
def ranking_grids(sections: Sequence[Section]) -> list[Grid]:
    """Return the ranking of the methods over data sets, for each kind of request; none with a single data set."""
    grids = []
    for metric in dict.fromkeys(section.metric for section in sections):
        results = pd.concat([one.results for one in sections if one.metric == metric], ignore_index=True)
        name = f"delta_test_{metric}"
        there = set(results.loc[results["metric"] == name, "checkpoint"])
        points = [point for point in reversed(AFTER) if point in there]
        if results["dataset"].nunique() > 1 and points:
            grids += [_ranked(one, metric) for one in rank_methods(results, name, checkpoint=points[0]) if one.methods]
    return grids


def _ranked(ranking: Ranking, metric: str) -> Grid:
    kind = ranking.granularity.capitalize()
    columns = [
        Column("mean rank", "over data sets, 1 is nearest to gold"),
        Column("distance", f"mean size of the difference of test {metric} from gold"),
        Column("signed", "the same with its sign"),
        Column("tied", "methods that share a letter are not told apart", words=True),
    ]
    lines = [
        Line(
            name,
            "",
            [
                Cell(_number(float(ranking.test.mean_ranks[place]), ".2f")),
                Cell(_number(float(ranking.scores[:, place].mean()), ".3f")),
                Cell(_number(float(ranking.signed[place]), "+.3f")),
                Cell(Number(ranking.letters[place])),
            ],
        )
        for place, name in enumerate(ranking.methods)
    ]
    return Grid(
        slug=slug(f"ranking {ranking.granularity} {metric}"),
        caption=f"{kind} requests, {AFTER[ranking.checkpoint]}: methods ranked by {shown(ranking)}",
        columns=columns,
        lines=lines,
        notes=notes(ranking),
        subject="method",
    )


def _number(value: float, form: str) -> Number:
    return Number("") if math.isnan(value) else Number(format(value, form) if math.isfinite(value) else "∞", value)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
