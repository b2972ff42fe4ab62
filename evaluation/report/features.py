"""The figure of penultimate features: where forgotten records lie among the others, model by model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evaluation.report.drawing import GREY, Plot, natural, seeds_of
from evaluation.report.palette import INK, MUTED, Look
from evaluation.report.sections import AFTER, GOLD, ORIGINAL, Section

ACROSS = 3
"""Panels a row."""
COLUMNS = ["model", "side", "stratum", "x", "y"]
MANY = 1500
"""Points of a figure from which they are one picture inside the SVG."""


def embedding(section: Section, checkpoint: str, looks: Mapping[str, Look]) -> Plot | None:
    """Draw the t-SNE of every model's features, one panel a model, forgotten records in full colour."""
    del looks  # colours are classes here, as the models have a panel each
    data = _points(section, checkpoint)
    if data.empty:
        return None
    lead = {ORIGINAL: 0, GOLD: 1}
    names = sorted(data["model"].unique(), key=lambda name: lead.get(name, 2))
    strata = sorted(data["stratum"].unique(), key=natural)
    colours = {stratum: MUTED[place % len(MUTED)] for place, stratum in enumerate(strata)}
    flat = len(data) > MANY

    def draw(figure: Figure) -> None:
        lines = math.ceil(len(names) / ACROSS)
        panels = list(figure.subplots(lines, ACROSS, squeeze=False).flat)
        for axes, name in zip(panels, names, strict=False):
            one = data[data["model"] == name]
            hues = one["stratum"].map(colours)
            stay, gone = one["side"] == "retain", one["side"] == "forget"
            axes.scatter(
                one.loc[stay, "x"], one.loc[stay, "y"], s=9, c=hues[stay], alpha=0.45, linewidth=0, rasterized=flat
            )
            axes.scatter(
                one.loc[gone, "x"],
                one.loc[gone, "y"],
                s=15,
                c=hues[gone],
                edgecolor=INK,
                linewidth=0.6,
                rasterized=flat,
            )
            axes.set_title(name, loc="left", fontsize=8.5, fontweight="bold" if name == GOLD else "normal")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(True)
            axes.spines[:].set_color("#cccccc")
            axes.set_box_aspect(1)
        for axes in panels[len(names) :]:
            axes.remove()
        panels[len(names) - 1].set_xlabel("t-SNE, no unit", fontsize=8)
        dot: dict[str, Any] = {"linestyle": "none", "marker": "o"}
        handles = [
            Line2D([], [], markerfacecolor=GREY, markeredgecolor=INK, label="forget", **dot),
            Line2D([], [], color=GREY, alpha=0.4, markersize=5, label="retain", **dot),
            *(Line2D([], [], color=colours[one], markersize=5, label=f"class {one}", **dot) for one in strata if one),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=8)

    sides = data.groupby("side").size() / len(names)
    return Plot(
        f"{section.slug}-{checkpoint}-features",
        f"Features of forgotten and retained records, {AFTER[checkpoint]}",
        "Each panel is t-SNE of one model's penultimate features, with axes of its own: only who is whose neighbour "
        "can be read. Distances between clusters, their sizes and their places mean little. "
        f"{GOLD} shows where records that were never trained on lie.",
        f"Scatter plots of {len(names)} models: {', '.join(names)}. Each has about {sides.get('forget', 0):.0f} "
        f"forgotten and {sides.get('retain', 0):.0f} retained records of {len(strata)} classes, coloured by class.",
        data,
        draw,
        0.9 + 2.05 * math.ceil(len(names) / ACROSS) + 0.17 * math.ceil(len(strata) / 5),
    )


def _points(section: Section, checkpoint: str) -> pd.DataFrame:
    """Return one row a model and record of its first seeds: side, stratum, x, y."""
    frames = []
    for row in section.at(checkpoint):
        found = section.points(row, "tsne").dropna(subset=["x", "y"])
        if found.empty:
            continue
        seeds = seeds_of(found)
        first = found[seeds == seeds.iloc[0]]
        frames.append(
            first.rename(columns={"series": "side", "label": "stratum"}).assign(model=section.name(row)).loc[:, COLUMNS]
        )
    return (
        pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["model", "side", "stratum", "x", "y"])
    )
