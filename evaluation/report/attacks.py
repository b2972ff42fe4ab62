"""What each membership attack found, with the band in which retrained models lie, and whether a model is outside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from evaluation.report.drawing import interval, number
from evaluation.report.grid import Cell, Column, Grid, Line, Number, anchor
from evaluation.report.sections import AFTER, GOLD, ORIGINAL, Section
from evaluation.tables import Row


@dataclass(frozen=True)
class Attack:
    """An attack under the names it has in results and curves.

    Attributes
    ----------
    name : str
        Of its curves, and lead of its metrics: ``lira`` of ``lira_tpr_at_1pct_fpr``.
    area : str
        The metric that is its AUC.
    title : str
        What people call it.
    """

    name: str
    area: str
    title: str


POPULATION = "population_mia"
"""The attack without other models: it has no band, and is shown beside those that have."""
ATTACKS = (
    Attack("ulira", "ulira_auc", "U-LiRA"),
    Attack("lira", "lira_auc", "LiRA"),
    Attack("calibrated", "calibrated_mia_auc", "retrain-calibrated"),
    Attack(POPULATION, "population_mia_auc", "population loss"),
)
CURVES = {attack.name: attack.title for attack in ATTACKS} | {"population": "population loss"}
"""Titles by the names that attacks have in curves."""
KNOWS = (
    "beside the model, U-LiRA knows shadow federations that unlearned, LiRA such that only trained, retrain-calibrated "
    "retrained models, population loss nothing"
)
OUTSIDE, INSIDE = "distinguishable from gold", "inside gold's band"
COLUMNS = [
    *("model", "method", "status", "attack", "name", "auc", "auc_std", "ci_low", "ci_high", "tpr_at_1pct_fpr"),
    *("band_low", "band_high", "verdict", "underpowered", "tpr_underpowered"),
]


def attacked(section: Section, checkpoint: str) -> pd.DataFrame:
    """Return what every attack found on every model of a checkpoint.

    Returns
    -------
    DataFrame
        One row an attack and model, in the order of `ATTACKS`: model, method, status, attack, name, auc with its
        deviation over seeds and its interval, tpr_at_1pct_fpr, the band of gold's AUC, the verdict in words, and
        whether the AUC and the true-positive rate are underpowered.
        No row for an attack that was not made.
    """
    rows = section.at(checkpoint)
    made = {name for row in rows for name in row["metrics"]}
    found = []
    for attack in ATTACKS:
        if attack.area in made:
            found += [_attacked(section, row, attack) for row in rows if attack.area in row["metrics"]]
    return pd.DataFrame(found, columns=COLUMNS)


def attack_grid(section: Section, checkpoint: str) -> Grid | None:
    """Return the table of one checkpoint's attacks; None where no attack with a band was made."""
    data = attacked(section, checkpoint)
    if (data["name"] == POPULATION).all():
        return None
    rows = {section.name(row): row for row in section.at(checkpoint)}
    columns = [
        Column("attack", KNOWS, words=True),
        Column("AUC", "chance to tell a forgotten record from one never seen; 95 % interval, or deviation over seeds"),
        Column(
            "TPR at 1 % FPR",
            "share of forgotten records found when 1 % of the others are taken for such; *: too few to say",
        ),
        Column("gold's band", "where the AUC of one more retrained model would lie, 95 %"),
        Column("verdict", "whether the model's AUC is outside that band", words=True),
    ]
    lines = [
        Line(name, anchor(rows[name]), _cells(one)) for name, one in zip(data["model"], data.itertuples(), strict=True)
    ]
    return Grid(
        slug=f"{section.slug}-{checkpoint}-attacks",
        caption=f"{section.title}, {AFTER[checkpoint]}: membership attacks",
        columns=columns,
        lines=lines,
        notes=_notes(section),
    )


def _attacked(section: Section, row: Row, attack: Attack) -> dict[str, object]:
    stem, area = attack.name, attack.area
    low, high = interval(row, area)
    of_row = section.results_of(row)
    statuses = of_row.loc[of_row["metric"] == area, "status"]
    rates = of_row.loc[of_row["metric"] == f"{stem}_tpr_at_1pct_fpr", "status"]
    return {
        "model": section.name(row),
        "method": row["method"],
        "status": row["status"],
        "attack": attack.title,
        "name": attack.name,
        "auc": number(row, area),
        "auc_std": math.nan if (std := row["metrics"][area]["std"]) is None else float(std),
        "ci_low": low,
        "ci_high": high,
        "tpr_at_1pct_fpr": number(row, f"{stem}_tpr_at_1pct_fpr"),
        "band_low": number(row, f"{stem}_auc_band_low"),
        "band_high": number(row, f"{stem}_auc_band_high"),
        "verdict": _verdict(row, stem),
        "underpowered": bool((statuses == "underpowered").any()),
        "tpr_underpowered": bool((rates == "underpowered").any()),
    }


def _verdict(row: Row, stem: str) -> str:
    """Say in words whether a model can be told from a retrained one; of several seeds, under how many."""
    if row["method"] == GOLD:
        return "gold"
    found = row["metrics"].get(f"{stem}_distinguishable")
    if found is None:
        return "undecided: no band for this attack" if stem == POPULATION else "undecided: not judged"
    share = number(row, f"{stem}_distinguishable")
    if math.isnan(share):
        return f"undecided: {found['reason'] or 'no value'}"
    if 0 < share < 1:
        return f"{OUTSIDE} under {round(share * found['seeds'])} of {found['seeds']} seeds"
    return OUTSIDE if share else INSIDE


def _cells(one: Any) -> list[Cell]:
    shown = "" if math.isnan(one.auc) else f"{one.auc:.2f}"
    shown += "" if math.isnan(one.ci_low) else f" [{one.ci_low:.2f}, {one.ci_high:.2f}]"
    shown += "" if math.isnan(one.auc_std) else f" ± {one.auc_std:.2f}"
    band = "" if math.isnan(one.band_low) else f"[{one.band_low:.2f}, {one.band_high:.2f}]"
    tpr = one.tpr_at_1pct_fpr
    fault = "" if one.status == "ok" else f" ({one.status})"
    few = "*" if one.tpr_underpowered else ""
    return [
        Cell(Number(one.attack)),
        Cell(Number(shown, None if math.isnan(one.auc) else one.auc)),
        Cell(Number("") if math.isnan(tpr) else Number(f"{tpr:.2f}{few}", tpr)),
        Cell(Number(band)),
        Cell(Number(one.verdict + fault)),
    ]


def _notes(section: Section) -> list[str]:
    lines = [
        "An AUC inside the band is what retraining itself gives under another seed; below the band more was forgotten "
        "than retraining forgets, which gives a record away as well.",
        "The band is a 95 % one: of twenty comparisons one lands outside by chance.",
        "An attack on a trained model bounds what leaks from below: a better attacker may find more.",
    ]
    if any(row["method"] == ORIGINAL for row in section.rows):
        lines.append(f"{ORIGINAL} is the model before any forgetting: an attack that does not find it finds nothing.")
    return lines
