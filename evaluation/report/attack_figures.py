"""The figures of the membership attacks: the whole trade-off on logarithmic axes, and the areas with gold's bands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from evaluation.report.attacks import ATTACKS, CURVES, OUTSIDE, attacked
from evaluation.report.drawing import GREY, Plot, line_legend, line_of, seeds_of
from evaluation.report.palette import INK, Look
from evaluation.report.sections import AFTER, GOLD, Section

BAND = "#d9d9d9"
REFERENCES = "roc-reference"
MOST_LINES = 24
"""References up to which each has a line of its own in the grey."""
MARGIN = 2.0
"""Part of a decade axis left of the first operating point, as a factor."""


def roc(section: Section, checkpoint: str, looks: Mapping[str, Look]) -> Plot | None:
    """Draw the ROC of every attack and model on logarithmic axes, over those of single retrained models."""
    data = _operating_points(section, checkpoint)
    models = data[data["reference"] == ""]
    attacks = [attack.title for attack in ATTACKS if (models["attack"] == attack.title).any()]
    if not attacks:
        return None

    def draw(figure: Figure) -> None:
        panels = _panels(figure, len(attacks))
        for axes, attack in zip(panels, attacks, strict=False):
            _roc_panel(axes, data[data["attack"] == attack], looks)
            axes.set_title(attack, loc="left", fontsize=9)
        for axes in panels[len(attacks) :]:
            axes.remove()
        _label(
            panels, len(attacks), "false positives (share of never-seen records)", "found (share of forgotten records)"
        )
        others: list[Artist] = [Line2D([], [], color=INK, linestyle=":", linewidth=0.9, label="chance")]
        if (data["reference"] != "").any():
            others.append(Patch(facecolor=BAND, edgecolor=GREY, label="retrained models, other seeds"))
        others.append(Patch(facecolor="none", edgecolor=GREY, hatch="////", label="no operating point"))
        line_legend(figure, models, looks, others)

    seeds = int(models.groupby(["model", "attack"])["run"].nunique().max())
    several = f" Each of up to {seeds} combinations of seeds is a line of its own." if seeds > 1 else ""
    return Plot(
        f"{section.slug}-{checkpoint}-roc",
        f"Membership attacks at every threshold, {AFTER[checkpoint]}",
        "The left end is what counts: how many forgotten records an attacker names while hardly ever being wrong. "
        "Lines inside the grey are what retraining gives under another seed. Left of one false positive there is no "
        f"threshold to choose (hatched), and a line that leaves at the bottom finds no record.{several}",
        _roc_words(models, attacks),
        data,
        draw,
        0.9 + 2.5 * math.ceil(len(attacks) / 2) + 0.17 * math.ceil(models["model"].nunique() / 3),
    )


def bands(section: Section, checkpoint: str, looks: Mapping[str, Look]) -> Plot | None:
    """Draw the AUC of every attack and model with its interval, over the band in which retrained models lie."""
    data = attacked(section, checkpoint).dropna(subset=["auc"])
    banded = data.dropna(subset=["band_low"])["attack"].unique()
    if not len(banded):
        return None
    attacks = [attack.title for attack in ATTACKS if (data["attack"] == attack.title).any()]
    names = list(dict.fromkeys(data["model"]))

    def draw(figure: Figure) -> None:
        panels = _panels(figure, len(attacks), sharex=True, sharey=True)
        for place, (axes, attack) in enumerate(zip(panels, attacks, strict=False)):
            _band_panel(axes, data[data["attack"] == attack], names, looks)
            axes.set_title(attack, loc="left", fontsize=9)
            axes.tick_params(axis="y", length=0, labelleft=place % 2 == 0)
        for axes in panels[len(attacks) :]:
            axes.remove()
        _label(panels, len(attacks), "AUC (0.5: sees nothing, 1: always right)", "")
        figure.legend(handles=_band_handles(), loc="outside lower center", ncols=2, frameon=False, fontsize=8)

    return Plot(
        f"{section.slug}-{checkpoint}-attacks",
        f"Membership attacks and gold's band, {AFTER[checkpoint]}",
        "Dots with 95 % intervals; the grey band is where the AUC of one more retrained model would lie, attacked in "
        "the model's place. Only a model outside it can be told from gold, on either side. Hollow dots rest on too few "
        "records, or their model did not end ok.",
        _band_words(data, attacks),
        data.drop(columns="name"),
        draw,
        1.0 + (0.6 + 0.2 * len(names)) * math.ceil(len(attacks) / 2),
    )


# ---------------------------------------------------------------------- numbers
def _operating_points(section: Section, checkpoint: str) -> pd.DataFrame:
    """Return one row a point; `run` is its seeds, `reference` which retrained model, empty for a model's own."""
    columns = ["attack", "model", "method", "status", "run", "reference", "fpr", "tpr"]
    frames = []
    for row in section.at(checkpoint):
        for kind in ("roc", REFERENCES):
            found = section.points(row, kind)
            frames.append(
                pd.DataFrame(
                    {
                        "attack": found["series"].map(CURVES),
                        "model": section.name(row),
                        "method": row["method"],
                        "status": row["status"],
                        "run": seeds_of(found),
                        "reference": found["label"] if kind == REFERENCES else "",
                        "fpr": found["x"],
                        "tpr": found["y"],
                    }
                )
            )
    kept = [frame for frame in frames if len(frame)]
    whole = pd.concat(kept, ignore_index=True) if kept else pd.DataFrame(columns=columns)
    return _golds_references(whole.dropna(subset=["attack", "fpr", "tpr"])[columns])


def _golds_references(points: pd.DataFrame) -> pd.DataFrame:
    """Drop references attacked in the place of models where gold has them too: then they are the same for all."""
    of_gold = points[(points["reference"] != "") & (points["method"] == GOLD)]["attack"].unique()
    return points[(points["reference"] == "") | (points["method"] == GOLD) | ~points["attack"].isin(of_gold)]


def _steps(points: pd.DataFrame, first: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the corners of an ROC from the first operating point on: the highest rate at each false-positive rate."""
    best = points.groupby("fpr")["tpr"].max().sort_index().cummax()
    x, y = best.index.to_numpy(dtype=float), best.to_numpy(dtype=float)
    start = y[x <= first * (1 + 1e-9)]
    keep = x > first * (1 + 1e-9)
    return np.r_[first, x[keep], 1.0], np.r_[start[-1] if len(start) else 0.0, y[keep], 1.0]


def _first_point(points: pd.DataFrame) -> float:
    """Return one false positive as a rate, the smallest step of any curve."""
    gaps = [np.diff(np.unique(one["fpr"])) for _, one in points.groupby(["model", "run", "reference"])]
    found = np.concatenate(gaps) if gaps else np.empty(0)
    found = found[found > 1e-9]
    return float(found.min()) if len(found) else 0.5


# ---------------------------------------------------------------------- drawing
def _panels(figure: Figure, count: int, **shared: Any) -> Sequence[Axes]:
    """Return at least `count` panels, two a row; one alone has the whole width."""
    columns = min(count, 2)
    return list(figure.subplots(math.ceil(count / columns), columns, squeeze=False, **shared).flat)


def _label(panels: Sequence[Axes], count: int, x: str, y: str) -> None:
    """Label the lowest axes of each column and the first of each row."""
    for place in range(count):
        if place + 2 >= count:
            panels[place].set_xlabel(x, fontsize=8)
            panels[place].tick_params(labelbottom=True)
        if place % 2 == 0:
            panels[place].set_ylabel(y, fontsize=8)


def _roc_panel(axes: Axes, data: pd.DataFrame, looks: Mapping[str, Look]) -> None:
    first = _first_point(data)
    left = first / MARGIN
    positive = data.loc[data["tpr"] > 0, "tpr"]
    low = min(first, float(positive.min()) if len(positive) else first) / MARGIN
    floor = low / MARGIN  # out of sight: a rate of 0 has no place on a logarithmic axis
    keys = ["model", "run", "reference"]
    references = [_steps(one, first) for _, one in data[data["reference"] != ""].groupby(keys)]
    if references:
        grid = np.unique(np.concatenate([x for x, _ in references]))
        heights = np.array([y[np.searchsorted(x, grid, side="right") - 1] for x, y in references])
        ends = (np.maximum(heights.min(axis=0), floor), np.maximum(heights.max(axis=0), floor))
        axes.fill_between(grid, *ends, step="post", color=BAND)
        for x, y in references if len(references) <= MOST_LINES else ():
            axes.step(x, np.maximum(y, floor), where="post", color=GREY, linewidth=0.5, alpha=0.7)
    diagonal = np.array([left, 1.0])
    axes.plot(diagonal, diagonal, color=INK, linestyle=":", linewidth=0.9)
    for (_, method, _), one in data[data["reference"] == ""].groupby(["model", "method", "run"], sort=False):
        x, y = _steps(one, first)
        axes.step(x, np.maximum(y, floor), where="post", **line_of(str(method), looks))
    axes.axvspan(left, first, facecolor="none", edgecolor=GREY, hatch="////", linewidth=0)
    axes.set(xscale="log", yscale="log", xlim=(left, 1.05), ylim=(low, 1.15))


def _band_panel(axes: Axes, data: pd.DataFrame, names: Sequence[str], looks: Mapping[str, Look]) -> None:
    places = {name: place for place, name in enumerate(names)}
    for one in data.dropna(subset=["band_low"]).to_dict("records"):
        middle = places[one["model"]]
        axes.fill_betweenx([middle - 0.5, middle + 0.5], one["band_low"], one["band_high"], color=BAND, linewidth=0)
    axes.axvline(0.5, color=INK, linestyle=":", linewidth=0.9)
    for one in data.to_dict("records"):
        look, place = looks[one["method"]], places[one["model"]]
        hollow = one["underpowered"] or one["status"] != "ok"
        if not math.isnan(one["ci_low"]):
            axes.plot([one["ci_low"], one["ci_high"]], [place, place], color=INK, linewidth=1.1, zorder=2)
        axes.scatter(
            one["auc"],
            place,
            s=min(look.size, 130),
            marker=look.marker,
            facecolor="white" if hollow else look.colour,
            edgecolor=look.colour if hollow and one["method"] != GOLD else INK,
            linewidth=1.6 if hollow else 0.6,
            zorder=3,
        )
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", color="#ececec", linewidth=0.6)
    axes.set_axisbelow(True)


def _band_handles() -> list[Artist]:
    dot: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 6, "markeredgecolor": INK}
    return [
        Patch(facecolor=BAND, label="gold's band: one more retrained model, 95 %"),
        Line2D([], [], color=INK, linestyle=":", label="0.5: an attack that sees nothing"),
        Line2D(
            [], [], color=INK, markerfacecolor=GREY, label="AUC with its 95 % interval", **(dot | {"linestyle": "-"})
        ),
        Line2D([], [], markerfacecolor="white", label="too few records, or not ok", **dot),
    ]


# ---------------------------------------------------------------------- words
def _roc_words(models: pd.DataFrame, attacks: Sequence[str]) -> str:
    words = [f"Log-log ROC curves of {models['model'].nunique()} models in {len(attacks)} panels, one an attack."]
    for attack in attacks:
        of_attack = models[models["attack"] == attack]
        rare = max(0.01, _first_point(of_attack))
        rates = of_attack[of_attack["fpr"] <= rare * (1 + 1e-9)].groupby("model")["tpr"].max().sort_values()
        if len(rates):
            words.append(
                f"{attack}: at {rare:.1%} false positives from {rates.iloc[0]:.0%} ({rates.index[0]}) to "
                f"{rates.iloc[-1]:.0%} ({rates.index[-1]}) of the forgotten records are found."
            )
    return " ".join(words)


def _band_words(data: pd.DataFrame, attacks: Sequence[str]) -> str:
    words = [f"Dot plot of the AUC of {len(attacks)} attacks on {data['model'].nunique()} models."]
    for attack in attacks:
        of_attack = data[data["attack"] == attack]
        band = of_attack[["band_low", "band_high"]].median()
        outside = of_attack[of_attack["verdict"].str.startswith(OUTSIDE)]
        named = ", ".join(f"{one.model} ({one.auc:.2f})" for one in outside.itertuples()) or "none"
        where = "no band" if math.isnan(band["band_low"]) else f"band {band['band_low']:.2f} to {band['band_high']:.2f}"
        words.append(f"{attack}: {where}; distinguishable from gold: {named}.")
    return " ".join(words)
