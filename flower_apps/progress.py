"""What a person sees while runs are on: a line per stage with rounds, loss, sites and time left, fed by events."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from flower_apps.durations import clock
from flower_apps.stages_done import pace_of

Event = Mapping[str, Any]

PLAIN_EVERY = 10.0
"""Seconds between two lines about the rounds of a stage where the output is no terminal."""
BAR_WIDTH = 20
_NEWLINE = re.compile(r"[\n\r\v\f\x85\u2028\u2029]")
_ASIDE = "\0"
"""Name of no run: what the command itself does."""
WIDE, NARROW = 100, 80
"""Columns of a terminal below which bars are half as wide, and below which there are none."""


def table_console() -> Console:
    """Return a console on stdout for tables, 100 columns wide where there is no terminal to ask."""
    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 100)


@dataclass
class StageState:
    """What the events have told about one stage; times in Unix seconds."""

    run: str
    label: str
    rounds: int
    done: int
    started: float
    round_started: float
    first: int = field(init=False)
    replied: set[str] = field(default_factory=set)
    expected: int = 0
    loss: float | None = None
    metric: float | None = None
    metric_name: str = "metric"
    told: float = 0.0

    def __post_init__(self) -> None:
        self.first = self.done

    @property
    def name(self) -> str:
        """Return the label, after the run's name where there is one."""
        return f"{self.run} · {self.label}" if self.run else self.label

    @property
    def share(self) -> float:
        """Return the finished share, counting the sites of the round that is on; from 0 to 1."""
        inside = min(len(self.replied) / self.expected, 1.0) if self.expected else 0.0
        return min((self.done + inside) / self.rounds, 1.0) if self.rounds else 0.0

    def left(self, now: float) -> float | None:
        """Return the seconds left by the pace of the rounds so far; None before the first has finished."""
        here = self.done - self.first
        if here < 1 or self.done >= self.rounds:
            return None
        pace = (self.round_started - self.started) / here
        return max(pace * (self.rounds - self.done) - (now - self.round_started), 0.0)


class Overall:
    """How far a whole command is, by a plan of its stages.

    Parameters
    ----------
    stages : sequence of (str, float)
        Label and predicted seconds of every stage that is to be computed.
    side_by_side : int
        Runs at once.
    """

    def __init__(self, stages: Sequence[tuple[str, float]], side_by_side: int) -> None:
        self._left: dict[str, list[float]] = {}
        for label, seconds in stages:
            self._left.setdefault(label, []).append(seconds)
        self._count, self._side_by_side = len(stages), side_by_side
        self._on: dict[str, float] = {}
        self._done, self._predicted, self._took = 0, 0.0, 0.0

    def start(self, label: str, now: float) -> None:
        """Note that a stage has started."""
        self._on[label] = now

    def finish(self, label: str, now: float) -> None:
        """Note that a stage has finished; one that nobody expected changes nothing."""
        started = self._on.pop(label, now)
        if expected := self._left.get(label):
            self._predicted += expected.pop(0)
            self._took += now - started
            self._done += 1

    def left(self, now: float) -> float:
        """Return the seconds left: what is predicted, corrected by how the finished stages kept to it."""
        pace = pace_of(self._predicted, self._took)
        begun = [
            (self._left[label][0] * pace, now - since) for label, since in self._on.items() if self._left.get(label)
        ]
        spent = sum(min(predicted, elapsed) for predicted, elapsed in begun)
        return (pace * sum(map(sum, self._left.values())) - spent) / self._side_by_side

    def told(self, now: float) -> str:
        """Return "12 of 134 stages, about 8:20 left"; empty where nothing was expected, and once all is done."""
        if not any(self._left.values()):
            return ""
        return f"{self._done} of {self._count} stages, about {clock(self.left(now))} left"


class Progress:
    """Shows runs as they go: live on a terminal, plain lines with the time elsewhere; a context manager.

    Finished stages become one line above the live ones. Safe to feed from several threads.

    Parameters
    ----------
    console : Console or None
        Where to; default standard error, so that the output proper can be piped.
    quiet : bool
        Print no line above the live ones; whoever fed it shows `lines` where he likes.
    """

    def __init__(self, console: Console | None = None, *, quiet: bool = False) -> None:
        self._console, self._quiet = console or Console(stderr=True), quiet
        self._stages: dict[tuple[str, str, str], StageState] = {}
        self._waits: dict[str, tuple[str, float]] = {}
        self._metrics: dict[str, str] = {}
        self._overall = Overall([], 1)
        self._spinner = Spinner("dots", style="cyan")
        self._lock = threading.RLock()
        self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=5, transient=True)

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._stages.clear()
            self._waits.clear()
        self._live.stop()

    def listener(self, run: str = "") -> Callable[[Event], None]:
        """Return a function that takes the events of one run; give runs names when there are several."""
        self._wait(run, "starting Flower", time.time())

        return partial(self.take, run)

    def take(self, run: str, event: Event) -> None:
        """Take one event of a run."""
        with self._lock:
            self._take(run, event)

    def forget(self, run: str) -> None:
        """Show nothing of a run any more."""
        with self._lock:
            self._drop(run)

    def expect(self, stages: Sequence[tuple[str, float]], *, side_by_side: int = 1) -> None:
        """Say what is to come: label and predicted seconds of every stage, and how many runs go side by side."""
        self._overall = Overall(stages, side_by_side)

    def say(self, text: str, style: str = "") -> None:
        """Print a line above what is live."""
        self._print(Text(text, style=style), text, time.time())

    def now(self, text: str) -> None:
        """Say what is done now, beside runs; it is shown until something else is, or nothing (an empty text)."""
        with self._lock:
            self._waits.pop(_ASIDE, None)
            if text:
                self._wait(_ASIDE, text, time.time())
        if text and not self._console.is_terminal:
            self.say(text)

    def stages(self, run: str = "") -> list[StageState]:
        """Return the stages of a run that have begun and not ended."""
        with self._lock:
            return [stage for (other, _, _), stage in self._stages.items() if other == run]

    def lines(self, now: float | None = None) -> RenderableType:
        """Return what is live: a line a stage, or what is waited for; `now` in Unix seconds, default the present."""
        return self._render(now)

    def _take(self, run: str, event: Event) -> None:
        now = float(event.get("time", time.time()))
        kind = event["kind"]
        if kind == "run-started":
            self._drop(run)  # what an attempt that was killed had begun
            self._wait(run, "waiting for the sites", now)
        elif kind == "task":
            self._metrics[run] = str(event["metric"])
        elif kind == "note":
            text = _named(run, str(event.get("text", "")))
            self._print(Text(f"  {text}", style="dim"), text, now)
        elif kind == "failed":
            self._drop(run)
            text = _named(run, f"failed: {event.get('reason', 'no reason')}")
            self._print(Text(f"✗ {text}", style="bold red"), text, now)
        elif kind == "group-finished":  # of a Flower run that may go on with another group
            self._drop(run)
        elif kind == "finished":
            self._drop(run)
            self._wait(run, "Flower is ending the run", now)
        elif kind == "stage-cached":
            text = _named(run, f"{event.get('label')}: already there")
            self._print(Text(f"· {text}", style="dim"), text, now)
        elif event.get("label"):  # questions to the sites belong to no stage
            self._take_stage(run, event, now)

    def _take_stage(self, run: str, event: Event, now: float) -> None:
        key = (run, str(event.get("stage")), str(event["label"]))
        kind = event["kind"]
        if kind == "stage-finished":
            self._overall.finish(key[2], now)
            if (stage := self._stages.pop(key, None)) is not None:
                self._finish(stage, str(event.get("status", "ok")), now)
                if not any(other == run for other, _, _ in self._stages):
                    self._wait(run, "next stage", now)
            return
        if key not in self._stages:
            self._waits.pop(run, None)
            done = int(event.get("round") or 0) - (kind != "stage-started")
            self._stages[key] = StageState(run, key[2], int(event.get("rounds") or 0), max(done, 0), now, now)
            self._stages[key].metric_name = self._metrics.get(run, "metric")
            if not self._console.is_terminal and self._stages[key].rounds > 1:
                self._print(Text(), f"{self._stages[key].name}: started{_of_rounds(self._stages[key])}", now)
            self._overall.start(key[2], now)
        stage = self._stages[key]
        if kind == "round-started":
            stage.rounds = max(stage.rounds, int(event.get("rounds") or event["round"]))
            stage.expected = int(event.get("sites") or stage.expected)
            stage.replied.clear()
        elif kind == "reply":
            stage.replied.add(str(event.get("site")))
        elif kind == "round-finished":
            stage.done = int(event["round"])
            stage.loss, stage.metric = event.get("loss"), event.get("metric")
            stage.expected = max(stage.expected, len(stage.replied))
            stage.replied.clear()
            stage.round_started = now
            self._tell_round(stage, now)

    def _tell_round(self, stage: StageState, now: float) -> None:
        if not self._console.is_terminal and now - stage.told >= PLAIN_EVERY and stage.done < stage.rounds:
            stage.told = now
            parts = [f"round {stage.done}/{stage.rounds}", *_figures(stage), clock(now - stage.started)]
            if (left := stage.left(now)) is not None:
                parts.append(f"{clock(left)} left")
            self._print(Text(), f"{stage.name}: {', '.join(parts)}", now)

    def _finish(self, stage: StageState, status: str, now: float) -> None:
        parts = [_of_rounds(stage).removeprefix(", "), *_figures(stage), clock(now - stage.started)]
        text = f"{stage.name}: {', '.join(part for part in parts if part)}"
        if status == "ok":
            overall = f" ({told})" if (told := self._overall.told(now)) else ""
            self._print(Text.assemble(("✓ ", "green"), text), f"{text}, done{overall}", now)
        else:
            self._print(Text.assemble(("! ", "yellow"), text, (f", {status}", "yellow")), f"{text}, {status}", now)

    def _wait(self, run: str, what: str, now: float) -> None:
        with self._lock:
            self._waits[run] = (what, now)

    def _drop(self, run: str) -> None:
        self._waits.pop(run, None)
        for key in [key for key in self._stages if key[0] == run]:
            del self._stages[key]

    def _print(self, rich_text: Text, plain: str, now: float) -> None:
        if self._quiet:
            return
        rich_text.plain, plain = _NEWLINE.sub(" ", rich_text.plain), _NEWLINE.sub(" ", plain)
        if self._console.is_terminal:
            self._console.print(rich_text, soft_wrap=True)
        else:
            stamp = time.strftime("%H:%M:%S", time.localtime(now))
            self._console.print(f"{stamp} {plain}", markup=False, highlight=False, soft_wrap=True)

    def _render(self, now: float | None = None) -> RenderableType:
        now = time.time() if now is None else now
        with self._lock:
            lines = self._stage_lines(now)
            waits = [
                Text(f"  {_named('' if run == _ASIDE else run, what)} {clock(now - since)}", style="dim")
                for run, (what, since) in self._waits.items()
                if now - since >= 0.5
            ]
            overall = [Text(f"  {told}", style="dim")] if (told := self._overall.told(now)) else []
        return Group(*lines, *waits, *overall)

    def _stage_lines(self, now: float) -> list[Table]:
        """Return the live stages as one table; names give way on a narrow terminal."""
        stages = list(self._stages.values())
        if not stages:
            return []
        statuses = [_status(stage, now) for stage in stages]
        columns = self._console.width
        bar = BAR_WIDTH if columns >= WIDE else BAR_WIDTH // 2 if columns >= NARROW else 0
        status = max(map(len, statuses))
        name = min(max(len(stage.name) for stage in stages), max(columns - 1 - bar - status - 6, 8))
        lines = Table.grid(padding=(0, 2, 0, 0))
        for width in filter(None, (1, name, bar, status)):
            lines.add_column(width=width, no_wrap=True, overflow="ellipsis")
        for stage, text in zip(stages, statuses, strict=True):
            share = ProgressBar(1.0, stage.share, width=bar, complete_style="cyan", finished_style="cyan")
            lines.add_row(self._spinner, Text(stage.name), *([share] if bar else []), text)
        return [lines]


def _status(stage: StageState, now: float) -> Text:
    """Return what stands after the bar: the round that is on, loss, sites that have replied, elapsed, time left."""
    parts = [f"{min(stage.done + 1, stage.rounds)}/{stage.rounds}"] if stage.rounds > 1 else []
    if stage.replied or stage.expected:
        parts.append(f"{len(stage.replied)}/{stage.expected or '?'} sites")
    parts += _figures(stage)[:1]
    parts.append(clock(now - stage.started))
    if (left := stage.left(now)) is not None:
        parts.append(f"{clock(left)} left")
    return Text("  ".join(parts))


def _figures(stage: StageState) -> list[str]:
    return [
        f"{name} {value:.3f}"
        for name, value in (("loss", stage.loss), (stage.metric_name, stage.metric))
        if value is not None
    ]


def _of_rounds(stage: StageState) -> str:
    if stage.rounds <= 1:
        return ""
    resumed = f" from {stage.first + 1}" if stage.first else ""
    return f", {stage.rounds} rounds{resumed}"


def _named(run: str, text: str) -> str:
    return f"{run} · {text}" if run else text
