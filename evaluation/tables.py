"""The table a run ends with, in 100 columns, and the same as JSON."""

from __future__ import annotations

import io
import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evaluation.results import SEEDS

GROUP = ("experiment", "task", "dataset", "partition", "alpha", "model", "request", "granularity")
"""One table each."""
CHECKPOINTS = ("trained", "unlearned", "recovered")
MISSING = "–"
GOLD = "★"
FIGURES = ("forget", "retain", "test", "MIA AUC", "L2", "KL", "time", "speedup")
LEFT_OUT_FIRST = ("MIA AUC", "L2", "time", "retain", "KL", "speedup")
LEAD = {"original": 0, "retrain": 1, "fine-tuning": 2}
"""Models that come before the methods, in their order."""
UNFIT = "not_applicable"
OF_VALUES = ("ok", "undefined", "underpowered", UNFIT)
"""What a single value's status may be without the model's being at fault."""

Row = dict[str, Any]


def summary_json(results: pd.DataFrame) -> dict[str, Any]:
    """Return every metric of every model, averaged over seeds, ready for ``json.dumps``.

    Parameters
    ----------
    results : DataFrame
        As `evaluation.results.read_results` gives it.

    Returns
    -------
    dict
        ``groups``: a list of experiment, data set, split, model and request, each with ``rows``: method, preset,
        variant (the cell, where one preset ran with several settings), checkpoint, seeds (how many), status, reason,
        and ``metrics``: by name mean, std (sample, null for one seed) and reason. Missing numbers are null.
    """
    return {"groups": [dict(labels) | {"rows": rows} for labels, rows in _groups(results)]}


def summary_table(results: pd.DataFrame, width: int = 100) -> Table:
    """Return the table people read: one block of rows a checkpoint, each led by the retrained model it is read against.

    Parameters
    ----------
    results : DataFrame
        As `evaluation.results.read_results` gives it; several requests or data sets give one table below the other.
    width : int
        Characters there are; columns that do not fit are left out, the least telling first, and named below.

    Returns
    -------
    Table
        Fits 100 columns whole.
    """
    tables = [_fitting(labels, rows, width) for labels, rows in _groups(results)]
    if len(tables) == 1:
        return tables[0]
    stack = Table.grid()
    for table in tables:
        stack.add_row(table)
        stack.add_row("")
    return stack


ATTACKS = {
    "lira": ("LiRA", "lira_auc"),
    "ulira": ("U-LiRA", "ulira_auc"),
    "calibrated": ("calibrated", "calibrated_mia_auc"),
}
"""Attacks that need other models, by name: what they are called, and the name of their AUC."""
TOLD_APART = "◆"


def attacks_table(results: pd.DataFrame) -> Table | None:
    """Return what attacks with shadow federations find, beside gold's own band; None where none were made."""
    tables = [_attacks(labels, rows) for labels, rows in _groups(results) if _attacked(rows)]
    if not tables:
        return None
    stack = Table.grid()
    for table in tables:
        stack.add_row(table)
    return stack


def summary_text(results: pd.DataFrame) -> str:
    """Return `summary_table` as plain text of 100 columns, for a log."""
    console = Console(file=io.StringIO(), width=100, color_system=None)
    with console.capture() as captured:
        console.print(summary_table(results))
    return captured.get()


# ---------------------------------------------------------------------- from the tidy table to rows of models
def _groups(results: pd.DataFrame) -> Iterator[tuple[Row, list[Row]]]:
    for key, group in results.groupby(list(GROUP), dropna=False, sort=False):
        labels = {name: _plain(value) for name, value in zip(GROUP, key, strict=True)}
        yield labels, sorted(_models(group), key=_place)


def _models(group: pd.DataFrame) -> Iterator[Row]:
    """Yield one row a model; cells of other seeds are averaged, cells of other settings kept apart.

    A run has hundreds of models and tens of thousands of rows, so this does without pandas' groups.
    """
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in _records(group.assign(variant=variants(group))):
        found.setdefault((row["method"], row["preset"], row["checkpoint"], row["variant"]), []).append(row)
    for (method, preset, checkpoint, variant), rows in found.items():
        bad = [row for row in rows if row["status"] not in OF_VALUES]
        if all(row["status"] == UNFIT for row in rows):  # the method, not a metric
            bad = rows
        metrics: dict[str, list[Row]] = {}
        for row in sorted(rows, key=lambda row: str(row["metric"])):
            metrics.setdefault(row["metric"], []).append(row)
        yield {
            "method": method,
            "preset": preset,
            "checkpoint": checkpoint,
            "variant": variant,
            "seeds": len({tuple(str(row[seed]) for seed in SEEDS) for row in rows}),
            "status": bad[0]["status"] if bad else "ok",
            "reason": min((row["reason"] for row in bad), key=len, default=""),  # the model's own, without a metric's
            "metrics": {name: _average(own) for name, own in metrics.items()},
        }


def _records(frame: pd.DataFrame) -> list[Row]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def variants(results: pd.DataFrame) -> pd.Series:
    """Return the first characters of each row's cell where a method has several of one preset and seed, else ''."""
    same = [*GROUP, "method", "preset", "checkpoint", *SEEDS]
    cells = results.drop_duplicates([*same, "cell"])
    crowded = cells[cells.duplicated(same, keep=False)]
    about = [*GROUP, "method", "preset"]
    keys = set(crowded[about].astype(str).itertuples(index=False, name=None))
    named = [key in keys for key in results[about].astype(str).itertuples(index=False, name=None)]
    return results["cell"].str[:6].where(pd.Series(named, index=results.index, dtype=bool), "")


def _average(rows: list[Row]) -> dict[str, Any]:
    values = [row["value"] for row in rows if not math.isnan(row["value"])]
    counts = [row["n"] for row in rows if not pd.isna(row["n"])]
    reasons = dict.fromkeys(row["reason"] for row in rows if row["reason"])
    return {
        "mean": _plain(np.mean(values)) if values else None,
        "std": _plain(np.std(values, ddof=1)) if len(values) > 1 else None,
        "seeds": len(values),
        "n": _plain(max(counts)) if counts else None,
        "interval": _interval(rows),
        "reason": "; ".join(reasons),
    }


def _interval(rows: list[Row]) -> list[Any] | None:
    """Return the interval of a single evaluation; several have their deviation instead."""
    ends = [_plain(rows[0][end]) for end in ("ci_low", "ci_high")]
    return None if len(rows) > 1 or None in ends else ends


def _attacked(rows: list[Row]) -> list[Row]:
    return [row for row in rows if any(name in row["metrics"] for _, name in ATTACKS.values())]


def _attacks(labels: Row, rows: list[Row]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        title=f"{labels['request']}: can an attacker tell forgotten records from never-seen ones?",
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        caption_style="",
    )
    table.add_column("", no_wrap=True)
    for title, _ in ATTACKS.values():
        table.add_column(f"{title} AUC", no_wrap=True)
    table.add_column("mean z", justify="right", no_wrap=True)
    previous, reasons = "trained", dict[str, list[str]]()
    attacked = _attacked(rows)
    for row in attacked:
        if row["checkpoint"] != previous:
            table.add_section()
            table.add_row(Text(str(row["checkpoint"]), style="italic"))
            previous = row["checkpoint"]
        z = mean(row, "calibrated_mean_z")
        cells = [_attack(row, attack, name) for attack, (_, name) in ATTACKS.items()]
        table.add_row(_name(row, False), *cells, MISSING if z is None else f"{z:+.2f}", style=_style(row))
        for title, name in ATTACKS.values():
            if mean(row, name) is None and (reason := row["metrics"].get(name, {}).get("reason")):
                reasons.setdefault(f"{title}: {reason}", []).append(_name(row, False))
    table.caption = Text("\n".join([*_on_bands(attacked), *_why(reasons, len(attacked))]), style="dim")
    return table


def _on_bands(rows: list[Row]) -> list[str]:
    """Say how to read gold's band, or why there is none to read."""
    z = "mean z above 0: memory is left; below 0: more is gone than retraining forgets."
    if any(mean(row, f"{attack}_auc_band_low") is not None for row in rows for attack in ATTACKS):
        return [
            "In brackets: where retrained models of other seeds lie, attacked in its place.",
            f"{TOLD_APART} outside: it can be told from a retrained one. Far below is a leak as well.",
            "One comparison in twenty lands outside by chance.",
            z,
        ]
    found = [row["metrics"].get("calibrated_distinguishable", {}).get("reason") for row in rows]
    why = next((reason for reason in found if reason), "no references")
    return [f"No band of retrained models ({why}): nothing can be concluded from these.", z]


def _why(reasons: dict[str, list[str]], models: int) -> list[str]:
    """Say why numbers are missing, each reason once with the models it is about."""
    lines = []
    for reason, names in reasons.items():
        who = list(dict.fromkeys(names))
        lines.append(f"{reason}" + ("" if len(names) == models else f" ({', '.join(who)})"))
    return lines


def _attack(row: Row, attack: str, name: str) -> Text:
    """Return an AUC with gold's band, such as ``0.71 ◆ (.46 to .55)``."""
    area, apart = mean(row, name), mean(row, f"{attack}_distinguishable")
    if area is None:
        return Text(MISSING)
    ends = [mean(row, f"{attack}_auc_band_{end}") for end in ("low", "high")]
    text = Text(f"{area:.2f} {TOLD_APART if apart else ' '}", style="" if not apart else "bold")
    low, high = ends
    if low is not None and high is not None:
        text.append(f" ({low:.2f} to {high:.2f})".replace("0.", "."), style="dim")
    return text


def _place(row: Row) -> tuple[Hashable, ...]:
    """Order: original; then by checkpoint gold, the control arm, the methods by name."""
    checkpoint = CHECKPOINTS.index(row["checkpoint"]) if row["checkpoint"] in CHECKPOINTS else len(CHECKPOINTS)
    return checkpoint, LEAD.get(row["method"], 3), row["method"], row["preset"], row["variant"]


def _plain(value: Any) -> Any:
    """Return a JSON value: numpy scalars as Python's, NaN and infinities as None."""
    if pd.isna(value):
        return None
    number = value.item() if hasattr(value, "item") else value
    return None if isinstance(number, float) and not math.isfinite(number) else number


# ---------------------------------------------------------------------- from rows of models to the page
def _fitting(labels: Row, rows: list[Row], width: int) -> Table:
    """Return the table with as many columns as fit."""
    console = Console(width=1000)
    tables = (_table(labels, rows, LEFT_OUT_FIRST[:count]) for count in range(len(LEFT_OUT_FIRST) + 1))
    table = next(tables)
    for narrower in tables:
        if console.measure(table).maximum <= width:
            break
        table = narrower
    return table


def _table(labels: Row, rows: list[Row], left_out: Sequence[str]) -> Table:
    metric = metric_name(rows)
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        title=_title(labels, rows),
        title_justify="left",
        title_style="bold",
        caption=_caption(labels, metric, rows, left_out),
        caption_justify="left",
        caption_style="",
    )
    shown = [name for name in FIGURES if name not in left_out]
    table.add_column("", no_wrap=True)
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    crowded = {row["method"] for row in rows if len({r["preset"] for r in rows if r["method"] == row["method"]}) > 1}
    previous = "trained"
    for row in rows:
        if row["checkpoint"] != previous:
            table.add_section()
            table.add_row(Text(str(row["checkpoint"]), style="italic"))
            previous = row["checkpoint"]
        label, *figures, status = _cells(row, metric, row["method"] in crowded)
        kept = [cell for head, cell in zip(FIGURES, figures, strict=True) if head in shown]
        table.add_row(label, *kept, status, style=_style(row))
    return table


def _cells(row: Row, metric: str, with_preset: bool) -> list[Text]:
    part = ("speedup_total", "seconds_total") if row["checkpoint"] == "recovered" else ("speedup", "seconds_unlearn")
    speedup, seconds = (mean(row, name) for name in part)
    needless = row["method"] == "retrain" and row["checkpoint"] == "recovered"  # retraining needs no recovery
    return [
        Text(_name(row, with_preset)),
        *[_beside_gold(row, f"{split}_{metric}") for split in ("forget", "retain", "test")],
        _beside_gold(row, "population_mia_auc"),
        Text(short(mean(row, "retrain_gap_l2"))),
        Text(short(mean(row, "retrain_gap_kl_forget"))),
        Text(duration(seconds)),
        Text(MISSING if speedup is None or row["status"] != "ok" or needless else times(speedup)),
        Text("n/a" if row["status"] == UNFIT else str(row["status"])),
    ]


def _name(row: Row, with_preset: bool) -> str:
    name = str(row["method"]) + (f" {GOLD}" if row["method"] == "retrain" else "")
    return " ".join(part for part in (name, row["preset"] if with_preset else "", row["variant"]) if part)


def _beside_gold(row: Row, metric: str) -> Text:
    """Return a value with its signed distance to gold, such as ``0.59 +.02``."""
    value, delta = mean(row, metric), mean(row, f"delta_{metric}")
    if value is None:
        return Text(MISSING)
    text = Text(f"{value:.2f}")
    if row["method"] == "retrain" or delta is None:
        return text.append(" " * 5)
    return text.append(f" {round(delta, 2) + 0.0:+.2f}".replace("0.", ".", 1), style="dim")


def short(number: float | None) -> str:
    """Write a number in about four characters."""
    if number is None:
        return MISSING
    if number == 0:
        return "0"
    return (
        f"{number:.3g}"
        if 0.001 <= abs(number) < 100
        else f"{number:.0f}"
        if 100 <= abs(number) < 1e5
        else f"{number:.0e}"
    )


def duration(seconds: float | None) -> str:
    """Write seconds as ``4.0s``, ``46s``, ``3m20s`` or ``1.7h``."""
    if seconds is None:
        return MISSING
    if seconds < 99.5:
        return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02}s" if seconds < 6000 else f"{seconds / 3600:.1f}h"


def times(ratio: float) -> str:
    """Write a ratio as ``4.4x``, or ``>999x``."""
    if ratio >= 1000:
        return ">999x"
    return f"{ratio:.1f}x" if ratio < 99.5 else f"{short(ratio)}x"


def mean(row: Row, metric: str) -> float | None:
    """Return a model's value, averaged over seeds; None where there is none."""
    found = row["metrics"].get(metric, {}).get("mean")
    return None if found is None else float(found)


def _style(row: Row) -> str:
    if row["status"] != "ok":
        return "dim" if row["status"] == UNFIT else "red"
    return {"retrain": "bold yellow", "original": "cyan"}.get(str(row["method"]), "")


def metric_name(rows: list[Row]) -> str:
    """Return the task's metric, read off the names of the results."""
    lead = "retain_train_"
    names = {name.removeprefix(lead) for row in rows for name in row["metrics"] if name.startswith(lead)}
    return next(iter(sorted(names - {"loss"})), "metric")


def _title(labels: Row, rows: list[Row]) -> str:
    split = labels["partition"] if labels["alpha"] is None else f"{labels['partition']} {labels['alpha']:g}"
    presets = {str(row["preset"]) for row in rows if row["preset"]}
    parts = [labels["experiment"], labels["dataset"], split, labels["model"], labels["request"]]
    return " · ".join([*parts, *(f"preset {name}" for name in sorted(presets) if len(presets) == 1)])


def records_note(labels: Row, rows: list[Row], metric: str, shown: Sequence[str] = FIGURES) -> str:
    """Say on which records the numbers of the columns that are shown are, and how many."""
    splits = [split for split in ("forget", "retain", "test") if split in shown]
    counts = [
        f"{max((row['metrics'].get(f'{split}_{metric}', {}).get('n') or 0 for row in rows), default=0):,}"
        for split in splits
    ]
    if labels["granularity"] == "sample":
        held_out = ", ".join(splits[1:])
        return f"{metric} on the {counts[0]} removed records (forget), on {counts[-1]} held-out ones ({held_out})"
    each = f"{', '.join(counts[:-1])} and {counts[-1]}"
    return f"{', '.join(splits)}: {metric} on {each} held-out records"


def verdicts(rows: list[Row], metric: str, shown: Sequence[str] = FIGURES) -> list[str]:
    """Say what the columns cannot tell: where doing nothing is no further from gold than chance would have it.

    Before recovery that is the original, after it recovery alone.
    """
    found = []
    for method, checkpoint, who in (
        ("original", "trained", "the original"),
        ("fine-tuning", "recovered", "after recovery fine-tuning"),
    ):
        control = next((row for row in rows if (row["method"], row["checkpoint"]) == (method, checkpoint)), None)
        names = {f"delta_forget_{metric}": f"forget {metric}", "delta_population_mia_auc": "MIA AUC"}
        blind = [
            title
            for name, title in names.items()
            if control is not None
            and (title in shown or title != "MIA AUC")
            and (ends := control["metrics"].get(name, {}).get("interval")) is not None
            and ends[0] <= 0 <= ends[1]
        ]
        if blind:
            judge = "they judge" if len(blind) > 1 else "it judges"
            found.append(f"By {' and '.join(blind)} {who} cannot be told from {GOLD}: {judge} no method.")
    return found


FURTHER = {"feature_": "features", "relearn_": "relearning", "backdoor_": "the backdoor"}


def _further(rows: list[Row]) -> list[str]:
    """Name what was measured beyond this table, and where it is."""
    names = {name for row in rows for name in row["metrics"] if mean(row, name) is not None}
    found = [title for lead, title in FURTHER.items() if any(name.startswith(lead) for name in names)]
    return [f"Also measured: {', '.join(found)}; see `lethe report` and results.csv."] if found else []


def _legend(shown: Sequence[str]) -> list[str]:
    """Say what the columns beside the task's metric are, those alone that are shown."""
    lines = []
    if "MIA AUC" in shown:
        lines.append(
            f"MIA AUC: can losses tell forgotten from never-seen records? The aim is the value of {GOLD}, not 0.5."
        )
    distances = {"L2": "of the weights", "KL": "of the outputs on forget records"}
    if names := [name for name in distances if name in shown]:
        lines.append(f"{', '.join(names)}: distance to {GOLD} {', and '.join(distances[name] for name in names)}.")
    costs = {"time": "of the unlearning step", "speedup": f"over retraining ({GOLD})"}
    if names := [name for name in costs if name in shown]:
        what = ", ".join(dict.fromkeys([costs["time"], *(costs[name] for name in names)]))
        lines.append(f"{', '.join(names)}: {what}; recovered: with its recovery rounds.")
    return lines


def _caption(labels: Row, metric: str, rows: list[Row], left_out: Sequence[str]) -> Text:
    """Say what the columns that are shown are, and why a model is not ok."""
    shown = [name for name in FIGURES if name not in left_out]
    lines = [
        f"{GOLD} retrained without the forgotten records: what every model is read against, at its checkpoint.",
        f"{records_note(labels, rows, metric, shown)}, and the difference to {GOLD}.",
        *_legend(shown),
        "status ok: it ran to its end, which is no judgement of the model.",
        *verdicts(rows, metric, shown),
        *_further(rows),
    ]
    if any(row["method"] == "fine-tuning" for row in rows):
        lines.append("fine-tuning: recovery alone, with no unlearning step; what every method has to beat.")
    if (seeds := max(row["seeds"] for row in rows)) > 1:
        lines.append(f"Means over up to {seeds} combinations of seeds; their spread is in results.csv.")
    if left_out:
        lines.append(f"Left out for want of room: {', '.join(left_out)}; at 97 columns all is shown.")
    text = Text().append("\n".join(lines), style="dim")
    for row in rows:
        if row["status"] == UNFIT and row["checkpoint"] == "unlearned":
            text.append(f"\n{_name(row, False)}: {row['reason']}", style="dim")
        elif row["status"] not in ("ok", UNFIT):
            text.append(f"\n{_name(row, False)} {row['checkpoint']}: {row['status']}: {row['reason']}", style="red")
    return text
