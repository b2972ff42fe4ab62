"""What every figure of a report is made of: its file formats, its marks, legend and axes."""

from __future__ import annotations

import io
import math
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evaluation.report.palette import INK, SHAPES, Look
from evaluation.report.sections import CONTROL, GOLD, LARGEST, ORIGINAL, Section
from evaluation.results import SEEDS
from evaluation.tables import Row, mean, short

WIDTH = 6.2
"""Inches; a figure is read at the width of a column or of a phone."""
GREY = "#8a8a8a"
FEW_SITES = 8
"""Sites up to which each has its own colour."""
STYLE: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "lethe"}
STYLE["text.parse_math"] = False
"""Names are shown as they are, dollar signs and all."""
Kind = Literal["png", "svg"]
DPI = 150
DRAWING = threading.Lock()
UNITS = {"accuracy": "share of records"}
LINES = ("-", "--", "-.", ":", (0, (5, 1)))
"""Dashes of the curves of methods that share a colour, by their shape."""


@dataclass(frozen=True)
class Plot:
    """A figure.

    Attributes
    ----------
    name : str
        File name without ending.
    title, caption, alt : str
        What it is, how to read it, and what it shows for those who do not see it.
    data : DataFrame
        Every number in it.
    draw : callable
        Draws it on an empty figure.
    height : float
        Inches; all are `WIDTH` wide.
    """

    name: str
    title: str
    caption: str
    alt: str
    data: pd.DataFrame
    draw: Callable[[Figure], None]
    height: float

    def write(self, folder: Path) -> None:
        """Write the figure as PNG, SVG and CSV."""
        for kind, content in self.files.items():
            (folder / f"{self.name}.{kind}").write_bytes(content)

    @cached_property
    def files(self) -> dict[str, bytes]:
        """The figure as PNG and SVG, drawn when first asked for, and its numbers as CSV (UTF-8)."""
        return {"png": self.drawn("png"), "svg": self.drawn("svg"), "csv": self.csv}

    @property
    def csv(self) -> bytes:
        """Its numbers as CSV."""
        return self.data.to_csv(index=False, lineterminator="\n").encode()

    def drawn(self, kind: Kind) -> bytes:
        """Draw the figure; the same bytes every time. One at a time: Matplotlib's settings are the process's own."""
        with DRAWING, matplotlib.rc_context(STYLE), warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")  # a box stands for it
            figure = Figure(figsize=(WIDTH, self.height), layout="constrained")
            FigureCanvasAgg(figure)
            self.draw(figure)
            file = io.BytesIO()
            figure.savefig(file, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else {})
        return file.getvalue()


# ---------------------------------------------------------------------- numbers and words
def frame_of(section: Section, checkpoint: str, columns: Mapping[str, str]) -> pd.DataFrame:
    """Return one row a model: its name, method and status, and the asked metrics under their own names."""
    rows = [
        {"model": section.name(row), "method": row["method"], "status": row["status"]}
        | {name: number(row, metric) for name, metric in columns.items()}
        for row in section.at(checkpoint)
    ]
    return pd.DataFrame(rows, columns=["model", "method", "status", *columns])


def number(row: Row, metric: str) -> float:
    """Return a model's value, averaged over seeds; NaN where there is none that an axis can hold."""
    value = mean(row, metric)
    return math.nan if value is None or not abs(value) <= LARGEST else value


def interval(row: Row, metric: str) -> tuple[float, float]:
    """Return the 95 % interval of a model's value; NaN where there is none, as for means over seeds."""
    ends = row["metrics"].get(metric, {}).get("interval")
    if ends is None or not max(abs(float(end)) for end in ends) <= LARGEST:
        return (math.nan, math.nan)
    return (float(ends[0]), float(ends[1]))


def named(data: pd.DataFrame) -> list[str]:
    """Return every model's name, with its status where that is not ok."""
    return [
        name if status == "ok" else f"{name} ({status})"
        for name, status in zip(data["model"], data["status"], strict=True)
    ]


def top(data: pd.DataFrame, column: str, *, largest: bool) -> str:
    """Name the three models with the largest or the smallest values of a column."""
    ordered = data.sort_values(column, ascending=not largest, kind="stable").head(3)
    return ", ".join(f"{name} ({short(value)})" for name, value in zip(ordered["model"], ordered[column], strict=True))


def with_unit(metric: str) -> str:
    """Return the label of an axis."""
    return f"{metric} ({UNITS.get(metric, 'in its own unit')})"


def seeds_of(points: pd.DataFrame) -> pd.Series[str]:
    """Return which seeds each point of a curve is of, as text."""
    train, unlearn, evaluate = (points[name].astype(str) for name in SEEDS)
    return train + " " + unlearn + " " + evaluate


def natural(site: object) -> tuple[str, int]:
    """Return what sorts names with a number at their end by that number."""
    head, _, tail = str(site).rpartition("-")
    return (head, int(tail)) if tail.isdigit() else (str(site), 0)


# ---------------------------------------------------------------------- drawing
def points(axes: Axes, data: pd.DataFrame, x: str, y: str, looks: Mapping[str, Look]) -> None:
    """Draw one mark a model, smaller ones above larger ones."""
    for _, row in data.iterrows():
        look = looks[row["method"]]
        axes.scatter(
            row[x],
            row[y],
            s=look.size,
            marker=look.marker,
            facecolor=look.colour if row["status"] == "ok" else "none",
            edgecolor=INK if row["status"] == "ok" else look.colour,
            linewidth=0.6 if row["status"] == "ok" else 1.6,
            zorder=3 - look.size / 1000,
        )


def legend(figure: Figure, data: pd.DataFrame, looks: Mapping[str, Look], lines: Sequence[Line2D] = ()) -> None:
    """Explain the marks of the models, and further lines."""
    handles = [
        Line2D(
            [],
            [],
            linestyle="none",
            marker=looks[method].marker,
            markersize=11 if method == GOLD else 7,
            markerfacecolor=looks[method].colour if status == "ok" else "none",
            markeredgecolor=INK if status == "ok" else looks[method].colour,
            markeredgewidth=0.6 if status == "ok" else 1.6,
            label=name,
        )
        for name, (method, status) in zip(named(data), data[["method", "status"]].itertuples(index=False), strict=True)
    ]
    figure.legend(handles=[*handles, *lines], loc="outside lower center", ncols=3, frameon=False, fontsize=8)


def line_of(method: str, looks: Mapping[str, Look], *, marks: bool = False) -> dict[str, Any]:
    """Return how a method's curve is drawn, with its marks or not: gold is a thick line without any, edged in ink."""
    look = looks[method]
    dashes = LINES[SHAPES.index(look.marker) % len(LINES)] if look.marker in SHAPES else "-"
    style: dict[str, Any] = {"color": look.colour, "linewidth": 1.5, "linestyle": dashes, "zorder": 3}
    if method in (GOLD, CONTROL):  # both are light, and one lies in the grey of other retrained models
        width = 2.6 if method == GOLD else 1.3
        edge = [patheffects.Stroke(linewidth=width + 1.4, foreground=INK), patheffects.Normal()]
        style |= {"linewidth": width, "path_effects": edge, "zorder": 2.5}
    if method == ORIGINAL:
        style |= {"linestyle": (0, (4, 2)), "linewidth": 1.7}
    return style | ({"marker": look.marker, "markersize": 4.5} if marks and method != GOLD else {})


def line_legend(
    figure: Figure, data: pd.DataFrame, looks: Mapping[str, Look], others: Sequence[Artist] = (), marks: bool = False
) -> None:
    """Explain the curves of the models in `data`, one entry a model, and what else is drawn."""
    models = data.drop_duplicates("model")
    handles: list[Artist] = [
        Line2D([], [], label=name, **line_of(method, looks, marks=marks))
        for name, method in zip(named(models), models["method"], strict=True)
    ]
    figure.legend(handles=[*handles, *others], loc="outside lower center", ncols=3, frameon=False, fontsize=8)


def log_axis(axes: Axes, which: Literal["x", "y"], values: Iterable[float]) -> None:
    """Make an axis logarithmic, with nought at its lower end where there is one."""
    found = np.asarray(list(values), dtype=float)
    positive = found[found > 0]
    if not len(positive):
        return
    scale, axis = (axes.set_xscale, axes.xaxis) if which == "x" else (axes.set_yscale, axes.yaxis)
    if (found > 0).all():
        scale("log")
        return
    scale("symlog", linthresh=positive.min(), linscale=0.7)
    first, last = math.ceil(math.log10(positive.min())), math.ceil(math.log10(positive.max()))
    axis.set_ticks([0, *(10.0**power for power in range(first, last + 1))])


def site_colours(sites: Sequence[str]) -> dict[str, str]:
    """Return the colour of every site: its own where they are few, else grey."""
    if len(sites) > FEW_SITES:
        return dict.fromkeys(sites, GREY)
    return {site: f"C{place}" for place, site in enumerate(sites)}
