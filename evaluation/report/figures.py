"""The figures of a report: what each shows, its numbers, and how it is drawn. Gold is a star or a line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evaluation.report.attack_figures import bands, roc
from evaluation.report.drawing import (
    FEW_SITES,
    GREY,
    Plot,
    frame_of,
    legend,
    log_axis,
    named,
    natural,
    points,
    site_colours,
    top,
    with_unit,
)
from evaluation.report.durability import backdoor, relearning
from evaluation.report.features import embedding
from evaluation.report.grid import signed
from evaluation.report.palette import INK, Look
from evaluation.report.search import search_plot
from evaluation.report.sections import AFTER, CONTROL, GOLD, KL, ORIGINAL, Section
from evaluation.report.site_figures import held_out
from evaluation.tables import short

HEAT = ("forget", "retain", "test")
HEAT_COLOURS = "Blues"
NEAREST, CLOSER = 0.05, 0.12
"""Least half-width of the panel near gold, and the part of the plane up to which it is drawn."""


def plots_of(section: Section, looks: Mapping[str, Look]) -> list[Plot]:
    """Return the figures of a request, checkpoint by checkpoint; one without any number is left out."""
    makers = (plane, heat_map, cost, roc, bands, relearning, backdoor, held_out, embedding, search_plot)
    found = [maker(section, checkpoint, looks) for checkpoint in AFTER for maker in makers]
    return [plot for plot in found if plot is not None]


def plane(section: Section, checkpoint: str, looks: Mapping[str, Look]) -> Plot | None:
    """Draw what every model knows of forgotten and of retained records, gold as a star with its cross-lines.

    Where most models lie close to gold, a second panel shows them larger.
    """
    metric = section.metric
    columns = {"forget": f"forget_{metric}", "retain": f"retain_{metric}"}
    data = frame_of(section, checkpoint, columns).dropna()
    gold = data[data["method"] == GOLD]
    if data.empty:
        return None
    near = _near(data, gold)

    def draw(figure: Figure) -> None:
        for axes in figure.subplots(2 if near else 1, 1, squeeze=False).flat:
            for _, row in gold.iterrows():
                axes.axvline(row["forget"], color=INK, linewidth=0.8, linestyle=":")
                axes.axhline(row["retain"], color=INK, linewidth=0.8, linestyle=":")
            points(axes, data, "forget", "retain", looks)
            axes.set_xlabel(f"forget {with_unit(metric)}")
            axes.set_ylabel(f"retain {with_unit(metric)}")
            axes.margins(0.08)
        if near:
            axes.set(xlim=near[0], ylim=near[1])
            axes.set_title("the same, near gold", loc="left", fontsize=9)
        legend(figure, data, looks)

    return Plot(
        f"{section.slug}-{checkpoint}-plane",
        f"Forget and retain {metric}, {AFTER[checkpoint]}",
        f"Each mark is a model; the star is {GOLD}, and good is near the star, not far to the left. "
        f"Hollow marks did not end ok.{_together(data, 'forget', 'retain')}",
        _plane_words(data, gold),
        data,
        draw,
        8.6 if near else 5.6,
    )


def heat_map(section: Section, checkpoint: str, looks: Mapping[str, Look]) -> Plot | None:
    """Draw every model's distances to gold, metric by metric; gold itself is nought everywhere and no row."""
    del looks  # a heat map's colours are distances
    metric = section.metric
    names = {f"{split} {metric}": f"delta_{split}_{metric}" for split in HEAT}
    names |= {f"trained {split} {metric}": f"delta_{split}_train_{metric}" for split in HEAT[:2]}
    names |= {"MIA AUC": "delta_population_mia_auc", "L2 of weights": "retrain_gap_l2"}
    names |= {"KL forget (nat)": KL, "KL retain (nat)": "retrain_gap_kl_retain", "JS forget (nat)": "js_forget"}
    data = frame_of(section, checkpoint, names)
    data = data[data["method"] != GOLD].dropna(how="all", subset=list(names)).dropna(axis="columns", how="all")
    shown = [name for name in names if name in data]
    if data.empty or not shown:
        return None
    values = data[shown].to_numpy(dtype=float)
    shares = _shares(values, ((data["status"] == "ok") & (data["method"] != ORIGINAL)).to_numpy())

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        image = axes.imshow(shares, cmap=HEAT_COLOURS, aspect="auto", vmin=0, vmax=1)
        axes.set_xticks(range(len(shown)), [name.replace(" ", "\n") for name in shown], fontsize=7)
        axes.xaxis.tick_top()
        axes.set_yticks(range(len(data)), named(data))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        for (row, column), value in np.ndenumerate(values):
            text = "" if math.isnan(value) else signed(value) if shown[column] in _signed(metric) else short(value)
            ink = _ink(image.to_rgba(shares[row, column]))
            axes.text(column, row, text, ha="center", va="center", fontsize=6.5, color=ink)
        axes.set_xlabel(f"difference from gold ({metric}, AUC), or distance to it (L2: norm; KL, JS: nat)", fontsize=8)
        bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.6, aspect=40, pad=0.02)
        bar.set_ticks([0, 0.5, 1], labels=["0: gold", "a quarter", "the largest"])
        bar.set_label(
            "share of the column's largest distance (ok models without the original; square root)", fontsize=8
        )

    return Plot(
        f"{section.slug}-{checkpoint}-heat",
        f"Distance to gold by model and metric, {AFTER[checkpoint]}",
        "Light is near gold. Differences keep their sign: below gold is negative. Colours compare the models of one "
        "column, not one column with another.",
        "Heat map of models by metrics. " + " ".join(_ends(data, name) for name in shown),
        data,
        draw,
        1.9 + 0.27 * len(data),
    )


def cost(section: Section, checkpoint: str, looks: Mapping[str, Look]) -> Plot | None:
    """Draw how far from gold a model ends against the records the sites processed for it."""
    columns = {"examples": "client_examples", "l2": "retrain_gap_l2", "kl_forget": KL}
    data = frame_of(section, checkpoint, columns)
    idle, what = (ORIGINAL, "doing nothing") if checkpoint == "unlearned" else (CONTROL, "recovery alone")
    gold, nothing = (data[data["method"] == name] for name in (GOLD, idle))
    models = data[~data["method"].isin((GOLD, ORIGINAL))].dropna(subset=["examples"])
    models = models.dropna(how="all", subset=["l2", "kl_forget"])
    if models.empty:
        return None

    def draw(figure: Figure) -> None:
        panels = figure.subplots(2, 1, sharex=True)
        labels = {"kl_forget": "KL to gold on forget records (nat)", "l2": "L2 to gold of the weights (norm)"}
        for axes, (column, label) in zip(panels, labels.items(), strict=True):
            found = models.dropna(subset=[column])
            points(axes, found, "examples", column, looks)
            for _, row in gold.iterrows():
                axes.axvline(row["examples"], color=INK, linewidth=0.9, linestyle=":")
            for _, row in nothing.dropna(subset=[column]).iterrows():
                axes.axhline(row[column], color=INK, linewidth=0.9, linestyle="--")
            log_axis(axes, "y", [*found[column], *nothing[column].dropna()])
            log_axis(axes, "x", [*found["examples"], *gold["examples"].dropna()])
            axes.set_ylabel(label)
        panels[-1].set_xlabel("records processed at the sites (a record counts once an epoch; logarithmic)")
        lines: dict[Literal[":", "--"], str]
        lines = {
            ":": f"{GOLD}: records it takes",
            "--": f"{idle}: distance of {what}",
        }
        handles = [Line2D([], [], color=INK, linestyle=style, label=label) for style, label in lines.items()]
        legend(figure, models, looks, handles)

    dearest, nearest = (models.dropna(subset=[c]) for c in ("examples", "kl_forget"))
    words = [f"Two scatter plots of {len(models)} models: distance to gold against records processed."]
    words += [f"{GOLD} processed {records:,.0f} records." for records in gold["examples"].dropna()]
    words += [f"Most records: {top(dearest, 'examples', largest=True)}."]
    words += [f"Nearest by KL: {top(nearest, 'kl_forget', largest=False)}."] if len(nearest) else []
    return Plot(
        f"{section.slug}-{checkpoint}-cost",
        f"What closeness costs, {AFTER[checkpoint]}",
        f"Low is near gold, left is cheap. Right of the dotted line a method costs more than {GOLD}; above the dashed "
        f"line it ends further from gold than {idle}, that is than {what}. Hollow marks did not end ok.",
        " ".join(words),
        models,
        draw,
        7.2,
    )


def training(name: str, title: str, rounds: pd.DataFrame, metric: str) -> Plot:
    """Draw the rounds of a training: loss and metric of every site, and their mean by records.

    Parameters
    ----------
    name, title : str
        File name, and what was trained.
    rounds : DataFrame
        One row a round and site: the columns of `strategies.history.History.frame`.
    metric : str
        Name of the task's metric.
    """
    data = rounds[["round", "site", "num_examples", "loss", "metric"]].copy()
    sites = sorted(data["site"].unique(), key=natural)
    average = _average(data)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(2, 1, sharex=True)
        colours, many = site_colours(sites), len(sites) > FEW_SITES
        labels = {"loss": "training loss (nat)", "metric": f"training {with_unit(metric)}"}
        for axes, (column, label) in zip(panels, labels.items(), strict=True):
            for site in sites:
                own = data[data["site"] == site]
                axes.plot(own["round"], own[column], color=colours[site], linewidth=0.8 if many else 1.2, alpha=0.7)
            axes.plot(average["round"], average[column], color=INK, linewidth=2.2)
            axes.set_ylabel(label)
        panels[-1].set_xlabel("round")
        panels[-1].xaxis.get_major_locator().set_params(integer=True)
        handles = [Line2D([], [], color=INK, linewidth=2.2, label="mean, weighted by records")]
        handles += (
            [Line2D([], [], color=GREY, label=f"each of {len(sites)} sites")]
            if many
            else [Line2D([], [], color=colours[site], label=str(site)) for site in sites]
        )
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)

    last = average.iloc[-1]
    final = data[data["round"] == last["round"]].dropna(subset=["metric"])
    ends = (
        f" At the end the sites are between {final['metric'].min():.2f} and {final['metric'].max():.2f}."
        if len(final)
        else ""
    )
    return Plot(
        name,
        title,
        "As the sites reported it, on the records they trained on in that round.",
        f"Line plots over {int(last['round'])} rounds at {len(sites)} sites. Mean loss goes from "
        f"{average['loss'].iloc[0]:.2f} to {last['loss']:.2f}, mean {metric} from {average['metric'].iloc[0]:.2f} to "
        f"{last['metric']:.2f}.{ends}",
        data,
        draw,
        5.8,
    )


def site_bars(name: str, title: str, rounds: pd.DataFrame, metric: str) -> Plot | None:
    """Draw how well the model does at every site in the last round of a training; arguments as of `training`."""
    last = rounds[rounds["round"] == rounds["round"].max()]
    data = last[["round", "site", "num_examples", "metric"]].dropna()
    data = data.sort_values("site", key=lambda sites: sites.map(natural)).reset_index(drop=True)
    if data.empty:
        return None
    average = float(_average(data.assign(loss=math.nan))["metric"].iloc[0])

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        colours = site_colours(list(data["site"]))
        names = [f"{site} ({count:,})" for site, count in zip(data["site"], data["num_examples"], strict=True)]
        axes.barh(names, data["metric"], color=[colours[site] for site in data["site"]], alpha=0.8)
        axes.axvline(average, color=INK, linestyle="--", linewidth=1)
        axes.invert_yaxis()
        axes.set_xlabel(f"training {with_unit(metric)}")
        axes.set_ylabel("site (training records)")
        axes.margins(y=0.02)
        line = Line2D([], [], color=INK, linestyle="--", label="mean, weighted by records")
        figure.legend(handles=[line], loc="outside lower center", frameon=False, fontsize=8)

    low, high = data.loc[data["metric"].idxmin()], data.loc[data["metric"].idxmax()]
    return Plot(
        name,
        title,
        "As the sites reported it in the last round, on the records they trained on: not on held-out ones.",
        f"Bar chart of {len(data)} sites around a mean of {average:.2f}: "
        f"lowest {low['site']} with {low['metric']:.2f}, highest {high['site']} with {high['metric']:.2f}.",
        data,
        draw,
        1.5 + 0.24 * len(data),
    )


# ---------------------------------------------------------------------- numbers


def _shares(values: np.ndarray, usable: np.ndarray) -> np.ndarray:
    """Return the square root of each distance over its column's largest among usable models, at most 1."""
    sizes = np.abs(values)
    judged = sizes[usable] if usable.any() else sizes
    largest = np.nan_to_num(judged).max(axis=0)
    clipped = np.minimum(sizes / np.where(largest > 0, largest, 1), 1)
    return np.asarray(np.sqrt(clipped))


def _near(data: pd.DataFrame, gold: pd.DataFrame) -> list[tuple[float, float]] | None:
    """Return limits of both axes that hold seven of ten ok models around gold; None where that is no closer look."""
    others = data[(data["method"] != GOLD) & (data["status"] == "ok")]
    if len(gold) != 1 or len(others) < 4:
        return None
    limits, shares = [], []
    for axis in ("forget", "retain"):
        middle = float(gold[axis].iloc[0])
        half = max(1.25 * float((others[axis] - middle).abs().quantile(0.7)), NEAREST)
        limits.append((middle - half, middle + half))
        shares.append(2 * half / max(float(data[axis].max() - data[axis].min()), 1e-9))
    return limits if math.prod(shares) < CLOSER else None


def _average(data: pd.DataFrame) -> pd.DataFrame:
    """Return the mean of every round, weighted by records; a site that told nothing has no say."""
    rows = []
    for round_, group in data.groupby("round"):
        row = {"round": round_}
        for column in ("loss", "metric"):
            told = group[group[column].notna() & (group["num_examples"] > 0)]
            row[column] = np.average(told[column], weights=told["num_examples"]) if len(told) else math.nan
        rows.append(row)
    return pd.DataFrame(rows, columns=["round", "loss", "metric"])


def _signed(metric: str) -> set[str]:
    names = {f"{split} {metric}" for split in HEAT} | {f"trained {split} {metric}" for split in HEAT[:2]}
    return names | {"MIA AUC"}


# ---------------------------------------------------------------------- words


def _plane_words(data: pd.DataFrame, gold: pd.DataFrame) -> str:
    words = [f"Scatter plot of {len(data)} models."]
    for _, star in gold.iterrows():
        words.append(f"{GOLD} is at forget {star['forget']:.2f}, retain {star['retain']:.2f}.")
        others = data[data["method"] != GOLD].copy()
        others["gap"] = np.hypot(others["forget"] - star["forget"], others["retain"] - star["retain"])
        if len(others):
            words.append(f"Nearest: {top(others, 'gap', largest=False)}. Furthest: {top(others, 'gap', largest=True)}.")
    return " ".join(words)


def _ends(data: pd.DataFrame, column: str) -> str:
    """Name the models nearest to gold and furthest from it; the original is never told as the nearest."""
    sizes = data.set_index("model")[column].abs()
    made = sizes[(data["method"] != ORIGINAL).to_numpy()].dropna()
    nearest = f"nearest {made.idxmin()}, " if len(made) else ""
    return f"{column}: {nearest}furthest {sizes.idxmax()}."


def _together(data: pd.DataFrame, x: str, y: str) -> str:
    """Name the models whose marks cover each other: nearer than a hundredth of both axes."""
    near = {axis: 0.01 * max(data[axis].max() - data[axis].min(), 1e-9) for axis in (x, y)}
    spots: list[pd.DataFrame] = []
    left = data
    while len(left):
        first = left.iloc[0]
        here = ((left[x] - first[x]).abs() <= near[x]) & ((left[y] - first[y]).abs() <= near[y])
        spots.append(left[here])
        left = left[~here]
    shared = [", ".join(spot["model"]) for spot in spots if len(spot) > 1]
    return f" On one spot: {'; '.join(shared)}." if shared else ""


# ---------------------------------------------------------------------- drawing


def _ink(background: Any) -> str:
    """Return what reads better on a colour, dark ink or white (relative luminance, WCAG 2.2)."""
    channels = np.asarray(background, dtype=float)[:3]
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return INK if linear @ (0.2126, 0.7152, 0.0722) > 0.18 else "white"
