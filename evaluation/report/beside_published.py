"""A run's results beside the numbers that studies published for the same setting."""

from __future__ import annotations

import math

import pandas as pd

from evaluation.published.join import join_published
from evaluation.published.tables import SOURCES, published
from evaluation.report.grid import Cell, Column, Grid, Line, Number, signed
from evaluation.report.sections import GOLD, ORIGINAL, Section

FITTING = {ORIGINAL: "trained", GOLD: "unlearned"}
"""The checkpoint that the studies report; of methods it is the recovered one."""


def published_grid(section: Section) -> Grid | None:
    """Return the published numbers that this request has a counterpart of; None where there is none."""
    if section.labels["dataset"] not in set(published()["dataset"]):
        return None
    joined = join_published(section.results)
    pairs = joined[joined["published"].notna() & (joined["our_metric"] != "")]
    fitting = [
        checkpoint == FITTING.get(method, "recovered")
        for method, checkpoint in zip(pairs["method"], pairs["checkpoint"], strict=True)
    ]
    pairs = pairs[pd.Series(fitting, index=pairs.index, dtype=bool)]
    if pairs.empty:
        return None
    columns = [
        Column("table", "study and number", words=True),
        Column("metric", "as it is called here", words=True),
        Column("published", "mean, with its deviation over seeds where it is given"),
        Column("ours", "mean, with its deviation over seeds"),
        Column("difference", "ours minus published"),
        Column("note", "what is not the same", words=True),
    ]
    order = _once(pairs.assign(place=pairs["table"].map(_place)).sort_values("place", kind="stable"))
    lines = [
        Line(
            " ".join(part for part in (one["method"], one["preset"] if one["preset"] != "lethe" else "") if part),
            "gold" if one["method"] == GOLD else "",
            [
                Cell(Number(one["table"])),
                Cell(Number(one["our_metric"])),
                Cell(_mean(one["published"], one["published_std"], 3)),
                Cell(_mean(one["ours"], one["ours_std"], 3)),
                Cell(_gap(one["difference"])),
                Cell(Number(one["note"])),
            ],
        )
        for one in order.to_dict("records")
    ]
    sources = {table.split()[0] for table in pairs["table"]}
    cited = "; ".join(f"{name}: {SOURCES[name]}" for name in SOURCES if name in sources)
    return Grid(
        slug=f"{section.slug}-published",
        caption=f"{section.title}: beside the published numbers",
        columns=columns,
        lines=lines,
        notes=[
            f"Source: {cited}. The study does not say on which records it reports, so ours are given on both.",
            "Sites, rounds and seeds may differ: this is no reproduction unless the settings are the study's.",
        ],
    )


def _once(pairs: pd.DataFrame) -> pd.DataFrame:
    """Name all tables beside a number that the study prints in several, and give it once."""
    same = ["method", "preset", "our_metric", "published"]
    tables = pairs.groupby(same, sort=False)["table"].agg(lambda names: ", ".join(dict.fromkeys(names)))
    first = pairs.drop_duplicates(same)
    return first.assign(table=[tables[key] for key in first[same].itertuples(index=False, name=None)])


def _mean(value: float, std: float, digits: int) -> Number:
    if math.isnan(value):
        return Number("")
    return Number(f"{value:.{digits}f}" + ("" if math.isnan(std) else f" ± {std:.{digits}f}"), value)


def _gap(difference: float) -> Number:
    return Number("") if math.isnan(difference) else Number(signed(difference), difference)


def _place(table: str) -> tuple[str, int]:
    source, _, number = table.partition(" ")
    return source, int(number)
