"""Tables of a study for a page in the docs: every method beside the retrained model, in Markdown, from results.csv."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from evaluation.results import read_results
from evaluation.tables import LEAD, UNFIT

SHOWN = (
    "forget_accuracy",
    "delta_forget_accuracy",
    "forget_train_accuracy",
    "delta_forget_train_accuracy",
    "retain_accuracy",
    "delta_retain_accuracy",
    "test_accuracy",
    "delta_test_accuracy",
    "population_mia_auc",
    "delta_population_mia_auc",
    "retrain_gap_l2",
    "retrain_gap_kl_forget",
    "seconds_unlearn",
    "seconds_total",
    "speedup",
    "speedup_total",
    "client_examples",
    "bytes_up",
    "bytes_down",
    "disk_read",
)
"""Metrics that the kept table has; ``results.csv`` of the run has them all."""
COLUMNS = {
    "forget": ("forget_accuracy", "delta_forget_accuracy"),
    "retain": ("retain_accuracy", "delta_retain_accuracy"),
    "test": ("test_accuracy", "delta_test_accuracy"),
    "MIA AUC": ("population_mia_auc", "delta_population_mia_auc"),
}
GAPS = {"L2": "retrain_gap_l2", "KL": "retrain_gap_kl_forget"}


def kept(results: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that a page keeps: of `SHOWN`, without remarks, and one of a method that does not apply."""
    shown = results[results["metric"].isin(SHOWN)]
    unfit = shown["status"] == UNFIT
    whole = shown[unfit].groupby(["cell", "method", "checkpoint"])["metric"].transform("size") == len(
        set(shown["metric"])
    )
    gone = shown[unfit][whole & (shown[unfit]["metric"] != SHOWN[0])].index
    return shown.drop(gone).assign(reason=lambda rows: rows["reason"].where(rows["status"] != "ok", ""))


def tables(results: pd.DataFrame) -> str:
    """Return one Markdown table for each split and request, its checkpoints one below the other."""
    keys = ["experiment", "dataset", "partition", "alpha", "request"]
    parts = []
    for key, group in results.groupby(keys, sort=False, dropna=False):
        _, dataset, partition, alpha, request = (str(part) for part in key)
        split = partition if alpha == "nan" else f"{partition} {alpha}"
        parts.append(f"### {dataset}, {split}: `{request}`\n\n{_table(group)}\n")
    return "\n".join(parts)


def _table(group: pd.DataFrame) -> str:
    heads = ["", *COLUMNS, *GAPS, "examples", "seconds", "speedup", "status"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for checkpoint in ("trained", "unlearned", "recovered"):
        of_checkpoint = group[group["checkpoint"] == checkpoint]
        if checkpoint != "trained":
            lines.append(f"| *{checkpoint}* |" + " |" * (len(heads) - 1))
        lines += [f"| {' | '.join(row)} |" for row in _rows(of_checkpoint, checkpoint)]
    return "\n".join(lines)


def _rows(group: pd.DataFrame, checkpoint: str) -> Iterator[list[str]]:
    methods = sorted(set(group["method"]), key=lambda name: (LEAD.get(name, 3), name))
    for method in methods:
        rows = group[group["method"] == method].set_index("metric")
        status = _status(rows)
        if status == "n/a":
            if checkpoint == "unlearned":
                yield [
                    method,
                    *[""] * (len(COLUMNS) + len(GAPS) + 3),
                    min(rows["reason"], key=len).removesuffix("; not scored"),
                ]
            continue
        total = checkpoint == "recovered"
        speedup = "" if method == "retrain" and total else "speedup_total" if total else "speedup"
        yield [
            f"**{method}**" if method == "retrain" else method,
            *(_beside(rows, *pair, bare=method == "retrain") for pair in COLUMNS.values()),
            *(_number(rows, metric, "{:.3g}") for metric in GAPS.values()),
            _number(rows, "client_examples", "{:,.0f}"),
            _number(rows, "seconds_total" if total else "seconds_unlearn", "{:.1f}"),
            _number(rows, speedup, "{:.1f}x"),
            status,
        ]


def _status(rows: pd.DataFrame) -> str:
    found = set(rows["status"]) - {"undefined", "underpowered"}
    if found == {UNFIT}:
        return "n/a"
    return next(iter(sorted(found - {"ok", UNFIT})), "ok")


def _beside(rows: pd.DataFrame, metric: str, delta: str, *, bare: bool) -> str:
    value = _number(rows, metric, "{:.2f}")
    return value if bare or not value else f"{value} ({_number(rows, delta, '{:+.2f}')})"


def _number(rows: pd.DataFrame, metric: str, form: str) -> str:
    value = rows["value"].get(metric)
    return "" if value is None or pd.isna(value) else form.format(value)


def main(arguments: Sequence[str]) -> int:
    """Write the kept table of a run, and print its Markdown: ``python -m evaluation.study RUN KEPT.csv``."""
    run, target = (Path(argument) for argument in arguments)
    results = kept(read_results(run))
    results.to_csv(target, index=False, lineterminator="\n", float_format="%.8g")
    print(tables(results), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
