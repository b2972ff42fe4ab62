"""The figure of held-out records site by site: a mean over a federation can hide a hospital that was damaged."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from evaluation.report.drawing import FEW_SITES, GREY, Plot, natural, with_unit
from evaluation.report.palette import INK, Look
from evaluation.report.sections import AFTER, GOLD, ORIGINAL, Section

ACROSS = 3
"""Panels a row."""
SIDES = ("forget", "retain")
FORGOTTEN = " (forget)"


def held_out(section: Section, checkpoint: str, looks: Mapping[str, Look]) -> Plot | None:
    """Draw every model's metric on the held-out records of each site, gold's beside it."""
    data = _by_site(section, checkpoint)
    models = data[data["method"] != GOLD]
    if models.empty:
        return None
    names = list(dict.fromkeys(models["model"]))
    bars = data.drop_duplicates(["side", "site"])[["side", "site", "n"]]

    def draw(figure: Figure) -> None:
        lines = math.ceil(len(names) / ACROSS)
        panels = list(figure.subplots(lines, ACROSS, sharex=True, sharey=True, squeeze=False).flat)
        for axes, name in zip(panels, names, strict=False):
            one = models[models["model"] == name]
            _panel(axes, bars.merge(one, on=["side", "site"], how="left", suffixes=("", "_own")), looks)
            status = one["status"].iloc[0]
            axes.set_title(name if status == "ok" else f"{name} ({status})", loc="left", fontsize=8.5)
        for axes in panels[len(names) :]:
            axes.remove()
        labels = [
            f"{site}{' (forget)' * (side == 'forget')}, {n:,.0f}" for side, site, n in bars.itertuples(index=False)
        ]
        panels[0].set_yticks(range(len(bars)), labels)
        panels[0].set_ylim(len(bars) - 0.4, -0.6)
        for place, axes in enumerate(panels[: len(names)]):
            axes.tick_params(axis="y", length=0, labelsize=8 if len(bars) <= FEW_SITES else 6)
            if place + ACROSS >= len(names):
                axes.set_xlabel(with_unit(section.metric), fontsize=8)
                axes.tick_params(labelbottom=True)
        handles = [
            Line2D([], [], color=INK, linestyle="none", marker="|", markersize=11, markeredgewidth=2, label=GOLD),
            Patch(facecolor=GREY, edgecolor=INK, linewidth=0.5, label="retain records"),
            Patch(facecolor=_pale(GREY), edgecolor=INK, linewidth=0.5, hatch="////", label="forget records"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)

    height = 0.35 + (0.2 if len(bars) <= FEW_SITES else 0.13) * len(bars)
    return Plot(
        f"{section.slug}-{checkpoint}-sites",
        f"Held-out records site by site, {AFTER[checkpoint]}",
        "Bars are the model, the upright strokes gold at the same site; beside a site's name stands how many held-out "
        "records it has. A mean over all sites can hide one that was damaged; a site with few records tells little.",
        _words(models),
        data,
        draw,
        1.0 + height * math.ceil(len(names) / ACROSS),
    )


def _by_site(section: Section, checkpoint: str) -> pd.DataFrame:
    """Return one row a model, side and site, averaged over seeds: records, value, gold's and the difference."""
    found = []
    for row in section.at(checkpoint):
        points = section.points(row, "site").dropna(subset=["y"])
        means = points.groupby(["series", "label"])[["x", "y"]].mean()
        for (side, site), (n, value) in zip(means.index, means.to_numpy(), strict=True):
            about = {"model": section.name(row), "method": row["method"], "status": row["status"]}
            found.append(about | {"side": side, "site": site, "n": n, "value": value})
    data = pd.DataFrame(found, columns=["model", "method", "status", "side", "site", "n", "value"])
    gold = data[data["method"] == GOLD].set_index(["side", "site"])["value"]
    beside = [gold.get(key, math.nan) for key in zip(data["side"], data["site"], strict=True)]
    data = data.assign(gold=pd.Series(beside, index=data.index, dtype=float))
    data = data.assign(difference=data["value"] - data["gold"])
    order = {name: place for place, name in enumerate(dict.fromkeys(data["model"]))}
    keys = [
        (order[model], SIDES.index(side) if side in SIDES else len(SIDES), natural(site))
        for model, side, site in data[["model", "side", "site"]].itertuples(index=False)
    ]
    return data.iloc[sorted(range(len(data)), key=keys.__getitem__)].reset_index(drop=True)


def _panel(axes: Axes, data: pd.DataFrame, looks: Mapping[str, Look]) -> None:
    """Draw one model; a site without a bar was not scored."""
    method = str(data["method"].dropna().iloc[0])
    colour = GREY if method == ORIGINAL else looks[method].colour
    places = pd.Series(range(len(data)), index=data.index)
    shown = data["value"].notna()
    for side, face, hatch in (("forget", _pale(colour), "////"), ("retain", to_rgb(colour), None)):
        own = shown & (data["side"] == side)
        axes.barh(
            places[own], data.loc[own, "value"], color=face, edgecolor=INK, linewidth=0.5, height=0.72, hatch=hatch
        )
    gold = shown & data["gold"].notna()
    axes.vlines(data.loc[gold, "gold"], places[gold] - 0.48, places[gold] + 0.48, color=INK, linewidth=2)


def _pale(colour: str) -> tuple[float, float, float]:
    """Return a tint on which a hatch in ink is seen."""
    red, green, blue = (0.45 * channel + 0.55 for channel in to_rgb(colour))
    return red, green, blue


def _words(models: pd.DataFrame) -> str:
    words = [
        f"Bar charts of {models['model'].nunique()} models at {models['site'].nunique()} sites, gold beside each bar."
    ]
    far = models.dropna(subset=["difference"])
    for side, one in far.groupby("side", sort=False):
        worst = one.iloc[int(one["difference"].abs().argmax())]
        words.append(
            f"Furthest from gold on {side} records: {worst['model']} at {worst['site']}, {worst['difference']:+.2f}."
        )
    return " ".join(words)
