"""What was measured, as tables for people and as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.table import Table

from benchmarks.lethe_run import LetheRun
from benchmarks.plain import middle
from benchmarks.stock import StockRun
from benchmarks.training import Speed
from benchmarks.work import BF16_LAST, FP32

NOISY = 1.1
"""Rounds of the plain loop that differ by more were not measured on a quiet machine."""
BUSY = 0.5
"""So is a load average above this at the start."""


@dataclass(frozen=True)
class Aim:
    """One figure against what was aimed at.

    Attributes
    ----------
    what : str
        The figure.
    value, limit : float
        Measured, and the most it should be.
    applies : bool
        Whether the machine has what the aim speaks of.
    """

    what: str
    value: float
    limit: float
    applies: bool = True

    @property
    def met(self) -> bool | None:
        """Return whether the aim is met; None where it does not apply."""
        return self.value <= self.limit if self.applies else None


@dataclass
class Report:
    """Everything measured; a part that did not run is empty.

    Attributes
    ----------
    machine, work : dict
        On what, and how much.
    training : list of Speed
        One process, one thread.
    plain : dict of str to list of float
        Seconds of each round of the plain loop, by mode, in the order of time.
    lethe : list of LetheRun
        Federated training.
    stock : StockRun or None
        The stock app.
    memory : list of LetheRun
        Short runs whose memory was watched.
    bf16 : bool
        Whether the CPU has bf16 instructions.
    workers : int
        Sites at work at once.
    """

    machine: dict[str, Any]
    work: dict[str, Any]
    bf16: bool
    workers: int
    training: list[Speed] = field(default_factory=list)
    plain: dict[str, list[float]] = field(default_factory=dict)
    lethe: list[LetheRun] = field(default_factory=list)
    stock: StockRun | None = None
    memory: list[LetheRun] = field(default_factory=list)

    def over_plain(self, mode: str, seconds: float) -> float | None:
        """Return seconds a round over the plain loop's divided by the workers; None without a plain loop."""
        return seconds / (middle(self.plain[mode]) / self.workers) if self.plain.get(mode) else None

    def over_stock(self, seconds: float) -> float | None:
        """Return seconds a round over the stock app's; None when that did not run."""
        return seconds / self.stock.round if self.stock else None

    def aims(self) -> list[Aim]:
        """Return the figures that something was aimed at, as far as they were measured."""
        found = []
        for run in self.lethe:
            ratio, sites = self.over_plain(run.mode, run.times.round), run.sites
            if ratio is not None and run.mode != BF16_LAST.label:
                found.append(Aim(f"{run.mode}: a round over the plain loop's / workers, {sites} sites", ratio, 1.15))
            found.append(Aim(f"{run.mode}: share of a round that records it", run.times.recording_share, 0.05))
            against = self.over_stock(run.times.round)
            if against is not None and run.mode == BF16_LAST.label:
                found.append(Aim(f"{run.mode}: a round over the stock app's", against, 0.5, applies=self.bf16))
        return found

    def warnings(self) -> list[str]:
        """Return what makes the figures doubtful."""
        drifts = {mode: max(rounds) / min(rounds) for mode, rounds in self.plain.items()}
        load = float(self.machine["load_average"])
        busy = [f"the load average was {load:g} at the start: the machine was not quiet"] if load > BUSY else []
        return busy + [
            f"the plain loop ({mode}) took up to {drift:.2f} times its shortest time: the machine was not quiet"
            for mode, drift in drifts.items()
            if drift > NOISY
        ]

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values, ratios beside the seconds."""
        return {
            "machine": self.machine,
            "work": self.work,
            "training": [asdict(speed) | {"lethe_over_plain": speed.lethe / speed.plain} for speed in self.training],
            "plain_round_seconds": self.plain,
            "lethe": [
                asdict(run)
                | {
                    "round_seconds": run.times.round,
                    "recording_share": run.times.recording_share,
                    "over_plain_by_workers": self.over_plain(run.mode, run.times.round),
                    "over_stock": self.over_stock(run.times.round),
                }
                for run in self.lethe
            ],
            "stock": self.stock
            and asdict(self.stock)
            | {
                "round_seconds": self.stock.round,
                "over_plain_by_workers": self.over_plain(FP32.label, self.stock.round),
            },
            "memory": [asdict(run) for run in self.memory],
            "aims": [asdict(aim) | {"met": aim.met} for aim in self.aims()],
            "warnings": self.warnings(),
        }

    def show(self, console: Console) -> None:
        """Print the tables."""
        parts: list[Any] = [_two_columns("Machine", self.machine), _two_columns("Work", self.work)]
        if self.training:
            parts.append(self._training_table())
        if self.plain or self.lethe or self.stock:
            parts.append(self._federated_table())
        if self.memory:
            parts.append(self._memory_table())
        if self.aims():
            parts.append(self._aims_table())
        console.print(Group(*parts, *(f"Note: {warning}" for warning in self.warnings())))

    def _training_table(self) -> Table:
        table = _table("A site's training: one process, one thread", "mode")
        for name in ("plain loop, samples/s", "Lethe, samples/s", "Lethe / plain"):
            table.add_column(name, justify="right")
        for speed in self.training:
            ratio = f"{speed.lethe / speed.plain:.2f}"
            table.add_row(speed.mode, f"{speed.plain:,.0f}", f"{speed.lethe:,.0f}", ratio)
        return table

    def _federated_table(self) -> Table:
        table = _table(f"Federated training, {self.workers} workers; a round is the median", "what")
        names = ("round\ns", "over plain\n/ workers", "over\nstock", "sites / workers\ns", "recording\ns (share)")
        for name in (*names, "stage\ns", "to 1st\nmessage, s"):
            table.add_column(name, justify="right")
        for mode, rounds in self.plain.items():
            table.add_row(f"plain loop, {mode}", f"{middle(rounds):.2f}")
        if self.stock:
            own = self.stock
            ratios = (_ratio(self.over_plain(FP32.label, own.round)), _ratio(1.0))
            figures = ("", "none", f"{own.stage:.1f}", f"{own.to_first_message:.1f}")
            table.add_row("stock Flower app, fp32", f"{own.round:.2f}", *ratios, *figures)
        for run in self.lethe:
            times = run.times
            ratios = (_ratio(self.over_plain(run.mode, times.round)), _ratio(self.over_stock(times.round)))
            training = f"{middle(times.training) / self.workers:.2f}"
            recording = f"{middle(times.recording):.2f} ({times.recording_share:.1%})"
            figures = (training, recording, f"{times.stage:.1f}", f"{times.to_first_message:.1f}")
            table.add_row(f"Lethe, {run.mode}", f"{times.round:.2f}", *ratios, *figures)
        return table

    def _memory_table(self) -> Table:
        table = _table("Peak memory, all processes of a run", "sites")
        for name in ("RSS, GB", "PSS, GB", "processes", "largest process, GB", "to 1st message, s"):
            table.add_column(name, justify="right")
        for run in self.memory:
            peak = run.memory
            assert peak is not None
            gigabytes = [f"{value / 1e9:.2f}" for value in (peak.rss, peak.pss, peak.largest)]
            row = (
                str(run.sites),
                *gigabytes[:2],
                str(peak.processes),
                gigabytes[2],
                f"{run.times.to_first_message:.1f}",
            )
            table.add_row(*row)
        return table

    def _aims_table(self) -> Table:
        table = _table("Aims", "figure")
        for name in ("measured", "at most", "met"):
            table.add_column(name, justify="right")
        words = {True: "[green]yes[/]", False: "[red]no[/]", None: "no bf16 here"}
        for aim in self.aims():
            table.add_row(aim.what, f"{aim.value:.3f}", f"{aim.limit:g}", words[aim.met])
        return table


def _table(title: str, first: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(first)
    return table


def _two_columns(title: str, values: dict[str, Any]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None)
    for key, value in values.items():
        table.add_row(key.replace("_", " "), _words(value))
    return table


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
