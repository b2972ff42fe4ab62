"""The figures of what comes back: relearning the forgotten records, and a trigger planted among them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import pandas as pd
from matplotlib import patheffects
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from evaluation.report.drawing import (
    Plot,
    frame_of,
    interval,
    line_legend,
    line_of,
    named,
    number,
    top,
    with_unit,
)
from evaluation.report.palette import INK, Look
from evaluation.report.sections import AFTER, GOLD, Section
from evaluation.tables import short

TOLD = (1, 3, 5)
"""Epochs whose gaps to gold are told in words."""
SPLITS = {"forget": "held-out", "forget_train": "trained"}
ASR = "backdoor_asr"


def relearning(section: Section, checkpoint: str, looks: Mapping[str, Look]) -> Plot | None:
    """Draw how fast each model learns the forgotten records again, epoch by epoch, beside gold."""
    data = _relearned(section, checkpoint)
    if data.empty:
        return None
    splits = [split for split in SPLITS if (data["split"] == split).any()]

    def draw(figure: Figure) -> None:
        for axes, split in zip(figure.subplots(len(splits), 1, sharex=True, squeeze=False).flat, splits, strict=True):
            for (_, method), one in data[data["split"] == split].groupby(["model", "method"], sort=False):
                axes.plot(one["epoch"], one["value"], **line_of(str(method), looks, marks=True))
            axes.set_ylabel(with_unit(section.metric))
            axes.set_title(f"{SPLITS[split]} records of what was forgotten", loc="left", fontsize=9)
            axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("epochs of training on the forgotten records")
        line_legend(figure, data, looks, marks=True)

    return Plot(
        f"{section.slug}-{checkpoint}-relearning",
        f"Relearning what was forgotten, {AFTER[checkpoint]}",
        "Every model is taught the forgotten records again. One that comes back faster than gold (the thick line) "
        f"still knew something of them; gold learns them too.{_gaps(data)}",
        _relearning_words(data),
        data,
        draw,
        0.9 + 2.5 * len(splits) + 0.17 * math.ceil(data["model"].nunique() / 3),
    )


def backdoor(section: Section, checkpoint: str, looks: Mapping[str, Look]) -> Plot | None:
    """Draw how often a planted trigger still works on each model, beside the rate of gold, which never saw it."""
    data = frame_of(section, checkpoint, {"asr": ASR})
    ends = {section.name(row): interval(row, ASR) for row in section.at(checkpoint)}
    data = data.assign(
        ci_low=[ends[name][0] for name in data["model"]], ci_high=[ends[name][1] for name in data["model"]]
    ).dropna(subset=["asr"])
    gold, models = data[data["method"] == GOLD], data[data["method"] != GOLD].reset_index(drop=True)
    if models.empty:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for place, (_, one) in enumerate(models.iterrows()):
            look, well = looks[one["method"]], one["status"] == "ok"
            axes.barh(
                place,
                one["asr"],
                color=look.colour if well else "white",
                edgecolor=INK if well else look.colour,
                linewidth=0.6 if well else 1.6,
                height=0.7,
            )
            if not math.isnan(one["ci_low"]):
                axes.plot([one["ci_low"], one["ci_high"]], [place, place], color=INK, linewidth=1.1)
                axes.plot([one["ci_low"], one["ci_high"]], [place, place], "|", color=INK, markersize=6)
        for _, one in gold.iterrows():
            axes.axvspan(one["ci_low"], one["ci_high"], color=looks[GOLD].colour, alpha=0.35, linewidth=0, zorder=0)
            halo = [patheffects.Stroke(linewidth=3, foreground="white"), patheffects.Normal()]
            axes.axvline(one["asr"], color=INK, linestyle="--", linewidth=1.2, path_effects=halo)
        axes.set_yticks(range(len(models)), named(models))
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, 1)
        axes.set_xlabel("attack success rate (share of triggered records taken for the target class)")
        handles = [
            Line2D([], [], color=INK, linestyle="--", label=f"{GOLD}: how often without any trigger planted"),
            Patch(facecolor=looks[GOLD].colour, alpha=0.35, label="its 95 % interval"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8)

    beside = f"{GOLD} {gold['asr'].iloc[0]:.2f}, " if len(gold) else ""
    return Plot(
        f"{section.slug}-{checkpoint}-backdoor",
        f"A planted trigger, {AFTER[checkpoint]}",
        "Good is gold's rate, not 0: a model that never saw the trigger still takes some records for the target class. "
        "A model that takes everything for that class has a rate of 1 and one that takes nothing for it 0, whatever it "
        "remembers: read it beside the accuracy. Hollow bars did not end ok.",
        f"Bar chart of attack success rates with 95 % intervals: {beside}highest {top(models, 'asr', largest=True)}; "
        f"lowest {top(models, 'asr', largest=False)}.",
        data,
        draw,
        1.4 + 0.25 * len(models),
    )


def _relearned(section: Section, checkpoint: str) -> pd.DataFrame:
    """Return one row a model, split and epoch: value, gold's, and the gap between them."""
    pattern = re.compile(rf"relearn_({'|'.join(SPLITS)})_{re.escape(section.metric)}_(\d+)")
    found = [
        {
            "model": section.name(row),
            "method": row["method"],
            "status": row["status"],
            "split": match[1],
            "epoch": int(match[2]),
            "value": number(row, name),
        }
        for row in section.at(checkpoint)
        for name in row["metrics"]
        if (match := pattern.fullmatch(name))
    ]
    columns = ["model", "method", "status", "split", "epoch", "value"]
    data = pd.DataFrame(found, columns=columns).dropna(subset=["value"])
    gold = data[data["method"] == GOLD].set_index(["split", "epoch"])["value"]
    beside = [gold.get(key, math.nan) for key in zip(data["split"], data["epoch"], strict=True)]
    data = data.assign(gold=pd.Series(beside, index=data.index, dtype=float))
    order = {name: place for place, name in enumerate(dict.fromkeys(data["model"]))}
    data = data.assign(place=data["model"].map(order)).sort_values(["split", "place", "epoch"], kind="stable")
    return data.assign(gap=data["value"] - data["gold"]).drop(columns="place").reset_index(drop=True)


def _gaps(data: pd.DataFrame) -> str:
    """Tell the gaps to gold after a few epochs, of the records that were not trained on where there are such."""
    split = "forget" if (data["split"] == "forget").any() else "forget_train"
    rows = data[(data["split"] == split) & (data["method"] != GOLD) & data["epoch"].isin(TOLD)].dropna(subset=["gap"])
    epochs = sorted(rows["epoch"].unique())
    if not epochs:
        return ""
    told = [
        f"{model} {', '.join(f'{gap:+.2f}' for gap in one.sort_values('epoch')['gap'])}"
        for model, one in rows.groupby("model", sort=False)
    ]
    after = ", ".join(str(epoch) for epoch in epochs)
    return f" Gap to gold on {SPLITS[split]} records after {after} epochs: {'; '.join(told)}."


def _relearning_words(data: pd.DataFrame) -> str:
    last = data[data["epoch"] == data["epoch"].max()]
    words = [f"Line plots of {data['model'].nunique()} models over {int(data['epoch'].max())} epochs of relearning."]
    for split, one in data.groupby("split", sort=False):
        gold = one[one["method"] == GOLD].sort_values("epoch")["value"]
        if len(gold):
            words.append(f"On {SPLITS[str(split)]} records gold goes from {gold.iloc[0]:.2f} to {gold.iloc[-1]:.2f}.")
        ends = last[(last["split"] == split) & (last["method"] != GOLD)].sort_values("value")
        if len(ends):
            first, final = ends.iloc[0], ends.iloc[-1]
            words.append(
                f"The others end between {short(first['value'])} ({first['model']}) and {short(final['value'])} "
                f"({final['model']})."
            )
    return " ".join(words)
