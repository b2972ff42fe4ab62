"""`lethe status`: what a run is doing or has come to, from its folder alone; nothing of it is asked or disturbed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from evaluation.runs import read_record
from flower_apps.durations import clock, in_words
from flower_apps.labels import labels_of
from flower_apps.places import run_name
from flower_apps.progress import Progress, StageState
from flower_apps.run_state import INTERRUPTED, RUNNING, RunState, known_runs, last_sign, state_of
from flower_apps.runs import PLAN, stages_of
from flower_apps.stages_done import Planned, StagesDone, mark_done, pace, planned_stages
from flower_apps.watch import EventTail
from partitions.errors import BadInput

EVERY = 1.0
"""Seconds between two looks at a run."""
COLOURS = {"completed": "green", RUNNING: "cyan", "failed": "red", "interrupted": "yellow", "stopped": "yellow"}


class GroupWatch:
    """One group of a run, followed through its event file.

    Parameters
    ----------
    name, id : str
        How it is called, and its id.
    settings : mapping
        Its flat settings.
    path : Path
        Its event file.
    progress : Progress
        Keeps the stages that are live.
    stages : Path
        The cache.
    """

    def __init__(
        self, name: str, id: str, settings: Mapping[str, Any], path: Path, progress: Progress, stages: Path
    ) -> None:
        self.name, self.id, self.settings, self.path = name, id, settings, path
        self._progress, self._stages = progress, stages
        self._restart(0.0)

    def _restart(self, since: float) -> None:
        self._since, self._begun, self.failure = since, False, ""
        self._at_failure: list[StageState] = []
        self.last: float | None = None
        self.done = StagesDone(self._stages)
        self._tail = EventTail(self.path, from_start=True)
        self._progress.forget(self.name)

    def look(self, since: float) -> None:
        """Take in the events that are new, but none of an earlier command: those from before `since` (Unix seconds)."""
        if since != self._since:
            self._restart(since)
        for event in self._tail.new():
            at = float(event.get("time", 0.0))
            if at < since:
                continue
            self._begun, self.last = True, at
            self.done.take(event)
            if event["kind"] == "failed":
                self.failure = " ".join(str(event.get("reason", "")).split())
                self._at_failure = list(self._progress.stages(self.name))
            elif event["kind"] == "run-started":
                self.failure = ""
            self._progress.take(self.name, event)

    def summary(self, record: Mapping[str, Any], state: RunState, stages: Mapping[str, int]) -> dict[str, Any]:
        """Return what there is to say of it, for people and programs.

        Parameters
        ----------
        record : mapping
            Of the run.
        state : RunState
            Of the run.
        stages : mapping of str to int
            ``done`` and ``planned`` by the run's plan; empty without one.
        """
        outcome = record.get("outcomes", {}).get(self.id, {})
        live = self._progress.stages(self.name)
        word = outcome.get("status") or self._word(record, state)
        now = time.time() if state.word == RUNNING else self.last or time.time()
        cut_off = state.word == INTERRUPTED and bool(record.get("command"))
        failure = "" if cut_off else self.failure  # while it lived, the command would have kept it as the outcome
        if cut_off and not live:  # what ends after the command says that it failed
            live = self._at_failure
        return {
            "group": self.id,
            "label": self.name,
            "experiment": str(self.settings.get("name", "")),
            "state": word,
            "stages_done": stages.get("done", len(self.done)),
            "stages_planned": stages.get("planned"),
            "stage": [_stage(one, now) for one in live],
            "reason": outcome.get("reason") or failure,
            "log": outcome.get("log") or (str(self.path.with_suffix(".log")) if failure else ""),
        }

    def _word(self, record: Mapping[str, Any], state: RunState) -> str:
        if not record.get("command"):  # of before groups said how they ended
            return "failed" if self.failure else ""
        if state.word != RUNNING:
            return state.word if self._begun else "not begun"
        return RUNNING if self._begun and self._progress.stages(self.name) else "waiting"


class RunWatch:
    """A run folder, looked at again and again.

    Parameters
    ----------
    folder, home : Path
        The run folder and LETHE_HOME.
    """

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder, self._home, self._stages = folder, home, home / "stages"
        self._progress = Progress(Console(), quiet=True)
        self._groups: dict[str, GroupWatch] = {}
        self.look()

    def look(self) -> None:
        """Read what is new."""
        self._record = read_record(self.folder)
        self.state = state_of(self.folder, self._record)
        groups = self._record["groups"]
        asked = (self._record.get("command") or {}).get("groups") or list(groups)
        labels = labels_of({id: groups[id] for id in asked if id in groups})
        for id in asked:
            if id not in self._groups and id in groups:
                path = self.folder / "events" / f"{id}.jsonl"
                self._groups[id] = GroupWatch(labels[id], id, groups[id], path, self._progress, self._stages)
        for id, group in self._groups.items():
            group.look(float(self._record.get("started") or 0.0))
            if id in self._record.get("outcomes", {}):
                self._progress.forget(group.name)

    def summary(self) -> dict[str, Any]:
        """Return all there is to say, as JSON values; times in Unix seconds, ``seconds_left`` None where unknown."""
        record, command = self._record, self._record.get("command") or {}
        planned = planned_stages(self.folder / PLAN, since=record.get("started") or record["created"])
        outcomes = record.get("outcomes", {})
        completed = {group for group, outcome in outcomes.items() if outcome.get("status") == "completed"}
        done = mark_done(planned, {group.id: group.done for group in self._groups.values()}, completed)
        groups = [group.summary(record, self.state, _count(planned, done, group.id)) for group in self._groups.values()]
        failed = [group for group in groups if group["reason"] and group["state"] in ("failed", "interrupted")]
        failures = list(record.get("failures", []))
        side_by_side = max(1, min(command.get("jobs") or 1, len(groups) or 1))
        missing = [stage for stage, is_done in zip(planned, done, strict=True) if not is_done]
        stages_named, damage = _stages_named(self.folder)
        return {
            "run": str(self.folder),
            "name": self.folder.name,
            "state": self.state.word,
            "note": "; ".join(filter(None, [self.state.note, damage])),
            "started": record.get("started") or record["created"],
            "ended": record.get("ended"),
            "last_sign": last_sign(self.folder, record),
            "doing": record.get("doing", "") if self.state.word == RUNNING else "",
            "exit_code": record.get("exit_code"),
            "host": command.get("host", record["environment"].get("host", "")),
            "pid": command.get("pid"),
            "experiments": command.get("experiments") or sorted({str(g["experiment"]) for g in groups}),
            "cells": len(record["cells"]),
            "stages_done": sum(done) if planned else sum(group["stages_done"] for group in groups),
            "stages_planned": len(planned) or None,
            "stages_named": stages_named,
            "seconds_left": self._left(planned, missing) / side_by_side if planned else None,
            "groups": groups,
            "failure": failures[-1] if failures else failed[-1]["reason"] if failed else "",
            "log": next((group["log"] for group in reversed(groups) if group["log"]), ""),
        }

    def _left(self, planned: Sequence[Planned], missing: Sequence[Planned]) -> float:
        """Return the seconds that missing stages take one after the other, by the pace of those that are done."""
        at_pace = pace(planned, {group.id: group.done for group in self._groups.values()})
        predicted = {stage.about[1]: stage.seconds * at_pace for stage in missing}
        live = [stage for group in self._groups.values() for stage in self._progress.stages(group.name)]
        spent = sum(min(time.time() - stage.started, predicted.get(stage.label, 0.0)) for stage in live)
        return max(sum(stage.seconds for stage in missing) * at_pace - spent, 0.0)

    def view(self) -> RenderableType:
        """Return it for a terminal: the run, its groups, and a line for every stage that is live."""
        told = self.summary()
        parts: list[RenderableType] = [_head(told), _groups_table(told["groups"])]
        if self.state.word == RUNNING:
            parts.append(self._progress.lines())
        if told["failure"]:
            parts.append(Text(f"✗ {told['failure']}", style="red"))
            if told["log"] and told["log"] not in told["failure"]:
                parts.append(Text(f"  log: {told['log']}", style="dim"))
        if hint := _hint(told, self._home):
            parts.append(Text(hint, style="dim"))
        return Group(*parts)


def show(folder: Path, home: Path, console: Console, *, once: bool) -> None:
    """Print what a run is doing; on a terminal until the run ends, or Ctrl-C leaves (the run goes on)."""
    watch = RunWatch(folder, home)
    if once or not console.is_terminal or watch.state.word != RUNNING:
        console.print(watch.view())
        return
    with Live(watch.view(), console=console, refresh_per_second=4, transient=False) as live:
        try:
            while watch.state.word == RUNNING:
                time.sleep(EVERY)
                watch.look()
                live.update(watch.view())
        except KeyboardInterrupt:
            return


def overview(home: Path, most: int, say: Callable[[str], None] = lambda text: None) -> list[dict[str, Any]]:
    """Return the runs of a home, the last started first: name, state, when, cells, groups and what was asked.

    `say` gets what is damaged; that is skipped.
    """
    rows = []
    for folder, record in known_runs(home, say)[:most]:
        state, command = state_of(folder, record), record.get("command") or {}
        outcomes = record.get("outcomes", {}).values()
        names = command.get("experiments") or sorted({str(one.get("name", "")) for one in record["groups"].values()})
        rows.append(
            {
                "run": str(folder),
                "name": folder.name,
                "state": state.word,
                "note": state.note,
                "started": record.get("started") or record["created"],
                "ended": record.get("ended"),
                "cells": len(record["cells"]),
                "groups": len(command.get("groups") or record["groups"]),
                "groups_completed": sum(one["status"] == "completed" for one in outcomes),
                "experiments": names,
            }
        )
    return rows


def overview_table(rows: list[dict[str, Any]], home: Path) -> Table:
    """Return the runs as a table, each as a command of that home takes it."""
    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("started", no_wrap=True)
    for name in ("groups", "cells"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        started = f"{in_words(time.time() - row['started'])} ago"
        groups = f"{row['groups_completed']}/{row['groups']}" if row["state"] != "unrecorded" else str(row["groups"])
        name = escape(run_name(Path(row["run"]), home))
        table.add_row(name, _coloured(row["state"]), started, groups, str(row["cells"]))
    return table


def newest_run(
    home: Path, *, resumable: bool = False, running: bool = False, say: Callable[[str], None] = lambda text: None
) -> Path:
    """Return the folder of the run that was started last, of those asked for; raises `BadInput` when there is none.

    `say` gets what is damaged; that is skipped.
    """
    for folder, record in known_runs(home, say):
        state = state_of(folder, record)
        if (not resumable or state.resumable) and (not running or state.word == RUNNING):
            return folder
    what = " that `lethe resume` can go on with" if resumable else " that is running" if running else ""
    remedy = "see `lethe status --all`"
    if resumable and (
        on := [folder for folder, record in known_runs(home) if state_of(folder, record).word == RUNNING]
    ):
        remedy = f"{run_name(on[0], home)} is running: `lethe status` shows it, `lethe stop` ends it"
    raise BadInput("run", "latest", f"a run{what} below {home / 'runs'}: there is none", remedy)


def run_of_interest(home: Path, say: Callable[[str], None] = lambda text: None) -> Path:
    """Return the run that is running and was started last, or else the one that was started last."""
    try:
        return newest_run(home, running=True)
    except BadInput:
        return newest_run(home, say=say)


def _head(told: Mapping[str, Any]) -> RenderableType:
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(style="bold", no_wrap=True)
    lines.add_column(overflow="fold")
    begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(told["started"]))
    ended = told["ended"] or (time.time() if told["state"] == RUNNING else told["last_sign"])
    state = Text.assemble(_coloured(told["state"]), f" {clock(ended - told['started'])}, started {begun}")
    if told["state"] == RUNNING and told["pid"]:
        state.append(f", process {told['pid']} on {told['host']}")
    elif told["exit_code"] is not None:
        state.append(f", exit code {told['exit_code']}")
    if told["doing"]:
        state.append(f", {told['doing']}")
    lines.add_row("run", escape(told["run"]))
    lines.add_row("state", state)
    if told["note"]:
        lines.add_row("", Text(told["note"], style="yellow"))
    done = str(told["stages_done"])
    if told["stages_planned"]:
        done += f" of {told['stages_planned']}"
    if told["seconds_left"] and told["state"] == RUNNING:
        done += f", about {clock(told['seconds_left'])} left"
    lines.add_row("stages", f"{done}; {told['cells']} cells finished")
    return lines


def _groups_table(groups: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("group", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("stages", justify="right", no_wrap=True)
    table.add_column("now at", overflow="fold")
    for group in groups:
        planned = f"/{group['stages_planned']}" if group["stages_planned"] else ""
        at = "; ".join(_at(stage) for stage in group["stage"])
        table.add_row(escape(group["label"]), _coloured(group["state"]), f"{group['stages_done']}{planned}", escape(at))
    return table


def _stage(stage: Any, now: float) -> dict[str, Any]:
    return {
        "label": stage.label,
        "round": min(stage.done + 1, stage.rounds),
        "rounds": stage.rounds,
        "replied": len(stage.replied),
        "sites": stage.expected,
        "loss": stage.loss,
        "elapsed": max(now - stage.started, 0.0),
        "left": stage.left(now),
    }


def _at(stage: Mapping[str, Any]) -> str:
    rounds = f" {stage['round']}/{stage['rounds']}" if stage["rounds"] > 1 else ""
    return f"{stage['label']}{rounds}"


def _hint(told: Mapping[str, Any], home: Path) -> str:
    if RunState(told["state"]).resumable:
        return f"go on with `lethe resume {run_name(Path(told['run']), home)}`"
    return ""


def _coloured(word: str) -> Text:
    return Text(word, style=COLOURS.get(word, ""))


def _stages_named(folder: Path) -> tuple[int | None, str]:
    """Return how many stages a run has named, or None and what is damaged."""
    try:
        return len(stages_of(folder)), ""
    except BadInput as error:
        return None, str(error)


def _count(planned: Sequence[Planned], done: Sequence[bool], group: str) -> dict[str, int]:
    own = [is_done for stage, is_done in zip(planned, done, strict=True) if group in stage.groups]
    return {"done": sum(own), "planned": len(own)} if own else {}
