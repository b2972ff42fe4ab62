"""A ranking of methods as people read it: a table, and what to know about it."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evaluation.ranking import CONTROL, Ranking, listed


def ranking_table(rankings: Sequence[Ranking]) -> Table:
    """Return the tables people read, one below the other; they fit 100 columns."""
    stack = Table.grid()
    for ranking in rankings:
        title = f"{ranking.granularity} requests · {shown(ranking)} at {ranking.checkpoint}"
        stack.add_row(Text(title, style="bold"))
        stack.add_row(_table(ranking))
        stack.add_row(Text("\n".join(notes(ranking)), style="dim"))
        stack.add_row("")
    return stack


def ranking_text(rankings: Sequence[Ranking]) -> str:
    """Return `ranking_table` as plain text of 100 columns."""
    console = Console(file=io.StringIO(), width=100, color_system=None)
    with console.capture() as captured:
        console.print(ranking_table(rankings))
    return captured.get()


def _table(ranking: Ranking) -> Table:
    near = ranking.better == "near gold"
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("", max_width=30)
    table.add_column("mean rank", justify="right", no_wrap=True)
    table.add_column("tied", no_wrap=True)
    table.add_column("distance" if near else "value", justify="right", no_wrap=True)
    if near:
        table.add_column("signed", justify="right", no_wrap=True)
    for index, name in enumerate(ranking.methods):
        cells = [name, f"{ranking.test.mean_ranks[index]:.2f}", ranking.letters[index]]
        cells.append(f"{ranking.scores[:, index].mean():.3g}")
        table.add_row(*map(Text, [*cells, *([f"{ranking.signed[index]:+.3g}"] if near else [])]))
    return table


def shown(ranking: Ranking) -> str:
    """Name what is ranked, and which way."""
    return f"|{ranking.metric}|" if ranking.better == "near gold" else f"{ranking.metric} ({ranking.better} is better)"


def notes(ranking: Ranking) -> list[str]:
    """Return what to know about a ranking: the test, its power, what is tied and who is not ranked, line by line."""
    lines = [*_verdict(ranking)]
    lines += [f"! {warning[0].upper()}{warning[1:]}" for warning in ranking.warnings]
    if ranking.blocks:
        lines.append(f"{_count(len(ranking.blocks), 'block')} ({ranking.block}): {listed(ranking.blocks)}.")
    lines += [f"not ranked: {name}: {why}" for name, why in ranking.left_out.items()]
    lines += [f"block left out: {name}: {why}" for name, why in ranking.dropped.items()]
    if ranking.unstable:
        lines.append(f"unstable over seeds: {listed(ranking.unstable, '; ')}")
    if ranking.anchors:
        would = ", ".join(f"{name} {rank:.2f}" for name, rank in ranking.anchors.items())
        lines.append(f"They define the target and do not compete; their rank would be: {would}.")
    if CONTROL in {name.split()[0] for name in ranking.methods}:
        lines.append(f"{CONTROL} is recovery alone: what every method has to beat.")
    return lines


def _verdict(ranking: Ranking) -> list[str]:
    test, k = ranking.test, len(ranking.methods)
    if test.source == "none" and not test.reason.startswith("all"):
        return [f"No test: {test.reason}. The order is that of this block and proves nothing."]
    source = {"chi2": "chi-square", "wilcoxon": "Wilcoxon", "none": test.reason}.get(test.source, test.source)
    lines = [f"{'Wilcoxon' if k == 2 else 'Friedman'}: p = {_p(test.p)} ({source})"]
    if k > 2 and test.source != "none":
        f = "inf" if test.f == math.inf else f"{test.f:.3g}"
        lines[0] += f"; chi2 {test.chi2:.3g} (p = {_p(test.p_chi2)}), F {f} (p = {_p(test.p_f)})"
        share = ranking.difference / (k - 1)
        lines.append(f"Nemenyi: critical difference {ranking.difference:.2f} ranks, {share:.0%} of the scale.")
    if len(ranking.groups) == 1:
        found = "The methods differ, but no two of them can be named:" if test.p < ranking.level else "No difference:"
        lines.append(f"{found} at {ranking.level:g} all are tied.")
    else:
        lines.append("Methods that share a letter under `tied` are not told apart.")
    return lines


def _p(p: float) -> str:
    return "n/a" if math.isnan(p) else f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
