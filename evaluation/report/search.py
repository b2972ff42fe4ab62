"""The searches of a request: what was chosen, every trial, and what one shared setting would have concluded."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evaluation.report.drawing import Plot, legend, number
from evaluation.report.grid import Cell, Column, Grid, Line, Number, signed
from evaluation.report.palette import INK, Look
from evaluation.report.sections import AFTER, GOLD, Section, drawable, slug, visible
from evaluation.shared_settings import Conclusion, conclusions, distances_to_gold, verdict
from evaluation.tables import duration
from evaluation.trials import DEFAULT_TRIAL

TOLD_BY = ["rule", "sampler", "preset"]
"""What names a search where a request has several."""
DRAWN = ["model", "method", "status", "rule", "higher_is_better", "train_seed", "trial", "values", "score", "distance"]
DRAWN += ["chosen"]
MOST_PAIRS = 4
"""Pairs of methods that a line names."""
RULES = {
    "retain-forget": "the highest score on training records: retained minus forgotten, in the direction of the metric",
    "oracle": "the smallest distance to gold on training records, which no real coordinator has (an oracle)",
}


def search_grids(section: Section, checkpoint: str) -> list[Grid]:
    """Return the tables of the searches whose rule looked at a checkpoint; none without any."""
    grids: list[Grid] = []
    for name, trials in _searches(section, checkpoint):
        grids += [_chosen(section, name, trials), *_shared(section, name, trials), _trials(section, name, trials)]
    return grids


def search_plot(section: Section, checkpoint: str, looks: Mapping[str, Look]) -> Plot | None:
    """Draw the score of every trial, and how far from gold each is on held-out records, which no rule looks at."""
    found = list(_searches(section, checkpoint))
    if not found:
        return None
    trials = pd.concat([rows for _, rows in found], ignore_index=True)
    numbers = {"score": drawable(trials["score"]), "distance": drawable(distances_to_gold(trials))}
    data = trials.assign(**numbers, model=trials["method"])
    data = data[
        [
            "model",
            "method",
            "status",
            "rule",
            "higher_is_better",
            "train_seed",
            "trial",
            "values",
            "score",
            "distance",
            "chosen",
        ]
    ]
    shown = data.dropna(subset=["score"])
    if shown.empty:
        return None
    metric, gold = section.metric, _gold_score(section, checkpoint, shown)

    def draw(figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1)
        for _, one in shown.iterrows():
            look, preset = looks[one["method"]], one["trial"] == DEFAULT_TRIAL
            style = {"marker": look.marker, "s": 48, "linewidth": 1.4 if preset else 0.6, "zorder": 3}
            style |= {"facecolor": "none" if preset else look.colour, "edgecolor": look.colour if preset else INK}
            for axes, x, y in ((upper, "trial", "score"), (lower, "score", "distance")):
                axes.scatter(float(one[x]), one[y], **style)
                if one["chosen"]:
                    axes.scatter(float(one[x]), one[y], s=190, facecolor="none", edgecolor=INK, linewidth=1.2, zorder=4)
        upper.set(xlabel="trial (0: the preset, not a candidate)", ylabel=f"score on training records\n({metric})")
        upper.xaxis.get_major_locator().set_params(integer=True)
        lower.set(
            xlabel=f"score on training records ({metric})", ylabel=f"distance to gold,\nheld-out records ({metric})"
        )
        for axes in (upper, lower):
            axes.margins(0.08, 0.14)
        dashed: dict[str, Any] = {"color": INK, "linestyle": "--", "linewidth": 1.0, "zorder": 1}
        if not math.isnan(gold):
            upper.axhline(gold, **dashed)
            lower.axvline(gold, **dashed)
        ring = Line2D([], [], linestyle="none", marker="o", markersize=12, markerfacecolor="none", markeredgecolor=INK)
        ring.set_label("chosen")
        hollow = Line2D([], [], linestyle="none", marker="o", markersize=7, markerfacecolor="none", markeredgecolor=INK)
        hollow.set_label("hollow: the preset")
        line = [] if math.isnan(gold) else [Line2D([], [], label=f"score of {GOLD}", **dashed)]
        legend(figure, shown.drop_duplicates("model").assign(status="ok"), looks, [ring, hollow, *line])

    failed = len(data) - len(shown)
    missing = f" {failed} of {len(data)} failed and are not drawn." if failed else ""
    return Plot(
        f"{section.slug}-{checkpoint}-search",
        f"Search of settings, {AFTER[checkpoint]}",
        "Each mark is a trial. The rule sees the score only; whether it leads to gold shows below. A score beyond "
        f"that of {GOLD} is too much forgetting, or memory of the retained records.{missing}",
        f"Scatter plots of {len(shown)} trials of {shown['method'].nunique()} methods. "
        + "; ".join(
            f"{one['method']} chose trial {one['trial']} with {one['score']:.2f}, {one['distance']:.2f} from gold"
            for _, one in shown[shown["chosen"]].iterrows()
        )
        + ("." if math.isnan(gold) else f". {GOLD} would score {gold:.2f}."),
        data,
        draw,
        7.2,
    )


def _gold_score(section: Section, checkpoint: str, trials: pd.DataFrame) -> float:
    """Return what the retrained model would score by GEMMU's rule; NaN where no search went by that."""
    gold = section.gold(checkpoint)
    if gold is None or not (trials["rule"] == "retain-forget").all():
        return math.nan
    retain, forget = (number(gold, f"{side}_train_{section.metric}") for side in ("retain", "forget"))
    return retain - forget if trials["higher_is_better"].all() else forget - retain


def _searches(section: Section, checkpoint: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the searches of a request that may be compared, with what tells them apart where there are several."""
    trials = section.trials[section.trials["checkpoint"] == checkpoint]
    groups = list(trials.groupby("search", sort=True))
    names = [", ".join(rows[TOLD_BY].iloc[0]) for _, rows in groups]
    for (search, rows), name in zip(groups, names, strict=True):
        full = name if names.count(name) == 1 else f"{name}, {search}"
        yield (full if len(groups) > 1 else ""), rows.reset_index(drop=True)


def _caption(section: Section, name: str, checkpoint: str, what: str) -> str:
    return f"{section.title}, {AFTER[checkpoint]}: {what}" + (f" ({name})" if name else "")


def _slug(section: Section, name: str, checkpoint: str, what: str) -> str:
    return f"{section.slug}-{checkpoint}-{what}" + (f"-{slug(name)}" if name else "")


def _settings(values: str) -> str:
    """Return the values of a trial as a person reads them."""
    parts = (f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in _read(values))
    return visible(", ".join(parts)) or "the preset's own"


def _read(values: str) -> list[tuple[str, object]]:
    return list(json.loads(values).items())


def _number(value: float, form: str = ".2f") -> Number:
    return Number("") if math.isnan(value) else Number("∞" if math.isinf(value) else format(value, form), value)


def _chosen(section: Section, name: str, trials: pd.DataFrame) -> Grid:
    metric, checkpoint = section.metric, str(trials["checkpoint"].iloc[0])
    trials = trials.assign(distance=distances_to_gold(trials))
    several = trials["train_seed"].nunique() > 1
    columns = [
        Column("chosen", "settings of the best trial", words=True),
        Column("trial", "its number, of how many; the first of equal ones"),
        Column("score", RULES[str(trials["rule"].iloc[0])]),
        Column("retain train", f"{metric} on retained training records"),
        Column("forget train", f"{metric} on forgotten training records"),
        Column("from gold", f"mean gap in {metric} on held-out forget and retain records, which no rule looks at"),
        Column("preset from gold", "the same of the preset's settings"),
        Column("failed", "trials without a score"),
    ]
    lines = []
    for (method, _), rows in trials.groupby(["method", "train_seed"], sort=True):
        tried, preset = rows[rows["trial"] != DEFAULT_TRIAL], rows[rows["trial"] == DEFAULT_TRIAL]
        best = tried[tried["chosen"]]
        scores = [best[key].iloc[0] if len(best) else math.nan for key in ("score", "retain_train", "forget_train")]
        gaps = [one["distance"].iloc[0] if len(one) else math.nan for one in (best, preset)]
        place = f"{best['trial'].iloc[0]} of {len(tried)}" if len(best) else f"none of {len(tried)}"
        cells = [
            Cell(Number(_settings(best["values"].iloc[0]) if len(best) else "")),
            Cell(Number(place)),
            *(Cell(_number(float(value))) for value in scores),
            *(Cell(_number(float(value), ".3f")) for value in gaps),
            Cell(Number(str((tried["status"] != "ok").sum()), float((tried["status"] != "ok").sum()))),
        ]
        seed = f", train seed {rows['train_seed'].iloc[0]}" if several else ""
        lines.append(Line(f"{method}{seed}", "" if len(best) else "bad", cells))
    return Grid(
        slug=_slug(section, name, checkpoint, "chosen"),
        caption=_caption(section, name, checkpoint, "settings that the searches chose"),
        columns=columns,
        lines=lines,
        notes=[
            "A retrained model does not score 0 on forgotten training records, so that the rule by score prefers "
            "too much forgetting to too little: read the distance from gold beside it."
        ],
        subject="method",
    )


def _trials(section: Section, name: str, trials: pd.DataFrame) -> Grid:
    metric, checkpoint = section.metric, str(trials["checkpoint"].iloc[0])
    trials = trials.assign(distance=distances_to_gold(trials))
    several = trials["train_seed"].nunique() > 1
    columns = [
        Column("settings", "of the trial", words=True),
        Column("score", "what the rule goes by"),
        Column("retain train", f"{metric} on retained training records"),
        Column("forget train", f"{metric} on forgotten training records"),
        Column("forget", f"{metric} on held-out forget records, in brackets the difference from gold"),
        Column("retain", "the same on held-out retain records"),
        Column("from gold", "mean size of both differences"),
        Column("time", "of the unlearning step and, where it was judged after it, recovery"),
        Column("status", "ok, or why there is no score", words=True),
    ]
    lines = []
    for one in trials.to_dict("records"):
        mark = " (chosen)" if one["chosen"] else ""
        seed = f", train seed {one['train_seed']}" if several else ""
        told = str(one["status"]) if one["status"] == "ok" else f"{one['status']}: {one['reason']}"
        cells = [
            Cell(Number(_settings(one["values"]))),
            Cell(_number(one["score"], ".3f")),
            *(Cell(_number(one[key])) for key in ("retain_train", "forget_train")),
            *(_beside_gold(one[key], one[f"gold_{key}"]) for key in ("forget", "retain")),
            Cell(_number(one["distance"], ".3f")),
            Cell(Number("" if math.isnan(one["seconds"]) else duration(one["seconds"]), one["seconds"])),
            Cell(Number(visible(told))),
        ]
        lines.append(Line(f"{one['method']} {one['trial']}{seed}{mark}", "" if one["status"] == "ok" else "bad", cells))
    return Grid(
        slug=_slug(section, name, checkpoint, "trials"),
        caption=_caption(section, name, checkpoint, "every trial"),
        columns=columns,
        lines=lines,
        notes=["Trial 0 is the preset, which is not a candidate."],
        subject="trial",
    )


def _beside_gold(value: float, gold: float) -> Cell:
    if math.isnan(value):
        return Cell(Number(""))
    delta = value - gold
    return Cell(_number(value), Number("") if math.isnan(delta) else Number(signed(delta), delta))


def _shared(section: Section, name: str, trials: pd.DataFrame) -> Iterator[Grid]:
    """Yield the methods ranked under their own searches, under the presets, and under every value that all tried."""
    found, checkpoint = conclusions(trials), str(trials["checkpoint"].iloc[0])
    if not found:
        return
    methods = list(found[0].distances)
    columns = [Column(method, "rank (distance)") for method in methods]
    columns.append(Column("turned around", "pairs, the nearer first, that their own searches order otherwise", True))
    yield Grid(
        slug=_slug(section, name, checkpoint, "shared"),
        caption=_caption(section, name, checkpoint, "what one shared setting would have concluded"),
        columns=columns,
        lines=[
            Line(visible(one.setting), "gold" if one is found[0] else "", [*_ranks(one, methods), Cell(_turned(one))])
            for one in found
        ],
        notes=[
            verdict(found),
            "Rank 1 is nearest to gold on held-out records; in brackets the distance. Of several trials with a shared "
            "value the rule chooses. One unlearning seed: small differences say nothing.",
        ],
        subject="setting",
    )


def _ranks(one: Conclusion, methods: list[str]) -> Iterator[Cell]:
    for method in methods:
        distance = one.distances[method]
        yield Cell(
            Number(f"{one.ranks[method]:g}", one.ranks[method]),
            Number("failed" if math.isinf(distance) else f"{distance:.3f}", distance),
        )


def _turned(one: Conclusion) -> Number:
    named = [f"{near} before {far}" for near, far in one.reversed[:MOST_PAIRS]]
    more = len(one.reversed) - len(named)
    return Number("; ".join([*named, f"{more} more"] if more else named))
