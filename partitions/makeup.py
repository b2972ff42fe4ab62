"""The make-up of a partition: how many records of which class each site has, as a table and as a heat map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from partitions.partition import Partition
from partitions.records import LoadedData

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOTALS = ("train", "holdout", "patients")
MOST_LABELS, MOST_INCHES = 100, 36.0
"""Sites that a heat map names, and its height; more sites share the height."""


def makeup(data: LoadedData, partition: Partition) -> pd.DataFrame:
    """Count the records of every site.

    Returns
    -------
    DataFrame
        One row a site in the order of the partition ids, and ``reference`` last where there is a reference set. One
        column a class (its name; training and held-out records together), then `train`, `holdout` and `patients`
        (known ones). int64; the index is called ``site``.
    """
    rows = {site: _row(data, partition.train[site], partition.holdout[site]) for site in partition.sites}
    if len(partition.reference):
        none = partition.reference[:0]
        rows["reference"] = _row(data, none, partition.reference)
    table = pd.DataFrame.from_dict(rows, orient="index", columns=[*data.classes, *TOTALS]).astype(np.int64)
    return table.rename_axis("site")


def draw_heatmap(frame: pd.DataFrame, path: Path) -> None:
    """Draw a make-up as a heat map of sites by classes, each cell with its count.

    Parameters
    ----------
    frame : DataFrame
        What `makeup` returns.
    path : Path
        File to write; the ending decides the format. Its folder is made.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    counts = frame.drop(columns=list(TOTALS))
    size = (2.6 + 0.75 * counts.shape[1], 1.7 + min(0.36 * len(counts), MOST_INCHES))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    values = np.log10(1 + counts.to_numpy(dtype=float))
    image = axes.imshow(values, cmap="viridis", aspect="auto", vmin=0, vmax=max(values.max(), 1))
    axes.set_xticks(range(counts.shape[1]), [str(name) for name in counts.columns], rotation=35, ha="right")
    labelled = range(0, len(counts), 1 + len(counts) // MOST_LABELS)
    axes.set_yticks(labelled, [_label(frame, counts.index[row]) for row in labelled])
    axes.set_title("Records of each class at each site", loc="left", fontsize="medium")
    axes.set_xlabel("class")
    axes.set_ylabel("site (training + held-out records)")
    if len(counts) <= MOST_LABELS:
        _write_counts(axes, counts.to_numpy())
    ticks = 10 ** np.arange(0, np.log10(1 + counts.to_numpy().max()) + 1)
    bar = figure.colorbar(image, ax=axes, ticks=np.log10(1 + np.concatenate([[0], ticks])), pad=0.02)
    bar.ax.set_yticklabels(["0", *(f"{tick:,.0f}" for tick in ticks)])
    bar.set_label("records (logarithmic)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _row(data: LoadedData, train: np.ndarray, held: np.ndarray) -> list[int]:
    own = data.table.iloc[np.concatenate([train, held])]
    strata = own["stratum"].to_numpy()
    classes = [int((strata == str(index)).sum()) for index in range(len(data.classes))]
    return [*classes, len(train), len(held), len(set(own["patient"]) - {""})]


def _label(frame: pd.DataFrame, site: object) -> str:
    row = frame.loc[site]  # type: ignore[call-overload]
    return f"{site} ({row['train']:,} + {row['holdout']:,})"


def _write_counts(axes: Axes, counts: np.ndarray) -> None:
    """Write each count into its cell, dark on light cells and light on dark ones."""
    middle = np.log10(1 + counts.max()) * 0.6
    for (row, column), count in np.ndenumerate(counts):
        colour = "black" if np.log10(1 + count) > middle else "white"
        axes.text(column, row, f"{count:,}", ha="center", va="center", fontsize=8, color=colour)
