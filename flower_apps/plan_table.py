"""How a plan is shown: stages by kind, then what they take, at 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flower_apps.durations import in_words
from flower_apps.plan import Plan, Step, in_bytes

KINDS = {
    "train": "train the original",
    "retrain": "retrain (gold, references)",
    "unlearn": "unlearn",
    "recover": "recover",
    "shadow": "train shadows",
    "relearn": "relearn",
    "score": "score",
}
"""Kinds of stages, in words and in the order of a run."""
BIGGEST = 5
"""Stages that are named."""


def plan_view(plan: Plan, *, every_stage: bool = False) -> RenderableType:
    """Return a plan as tables and lines; `every_stage` lists all that are left, and those in the cache."""
    parts: list[RenderableType] = [_by_kind(plan), _amounts(plan)]
    shown = list(plan.steps) if every_stage else _biggest(plan.steps)
    if shown:
        parts.append(_listed(shown, "Every stage" if every_stage else "The longest", _told_apart(plan)))
    parts += [Text(f"would fail: {text}", style="red") for text in plan.fails]
    parts += [Text(f"note: {text}", style="dim") for text in plan.doubts]
    return Group(*parts)


def _by_kind(plan: Plan) -> Table:
    table = Table(title="Stages", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for title in ("needed", "cached", "shared", "left", "predicted"):
        table.add_column(title, justify="right", no_wrap=True)
    for kind, words in [*KINDS.items(), ("", "all")]:
        steps = [step for step in plan.steps if kind in ("", step.stage.kind)]
        if not steps:
            continue
        left = [step for step in steps if not step.stage.cached]
        seconds = sum(step.seconds for step in left)
        table.add_row(
            words,
            str(len(steps)),
            str(len(steps) - len(left)),
            str(sum(len(step.groups) > 1 for step in steps)),
            str(len(left)),
            in_words(seconds) if left else "-",
            style="" if kind else "bold",
        )
    return table


def _amounts(plan: Plan) -> Table:
    needed = plan.needed()
    groups = len(plan.rehearsed)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    runs = f"{needed.runs} Flower run{'s' * (needed.runs != 1)} of {groups} group{'s' * (groups != 1)}"
    side = f"--jobs {plan.jobs} --workers {plan.workers}"
    there = in_bytes(plan.memory_there)
    if plan.cluster:
        side, there = f"{plan.workers} sites at once on the Ray cluster {plan.cluster}", f"{there}, beside the sites"
    rows = [
        ("time", f"about {in_words(needed.wall)} with {side}; {runs}" if needed.runs else "all of it is in the cache"),
        ("from", "; ".join(plan.basis)),
        (
            "disk",
            f"{in_bytes(needed.disk_kept)} more stay, {in_bytes(needed.disk_peak)} at most;"
            f" {in_bytes(plan.disk_free)} are free",
        ),
        ("memory", f"about {in_bytes(needed.memory)} of {there}"),
    ]
    if needed.models:
        rows.append(("attacks", f"{needed.models} of the models left are for the membership attacks (shadows)"))
    for name, text in rows if needed.runs else rows[:1]:
        table.add_row(name, text)
    return table


def _told_apart(plan: Plan) -> dict[str, str]:
    """Return what tells a group from the others of the plan, by its id; nothing for a single one."""
    if len(plan.rehearsed) < 2:
        return {}
    common = next(iter(plan.names.values())) if len(set(plan.names.values())) == 1 else ""
    return {group: label.removeprefix(f"{common} ") for group, label in plan.labels.items()}


def _biggest(steps: Iterable[Step]) -> list[Step]:
    left = [step for step in steps if step.seconds > 0]
    return sorted(left, key=lambda step: -step.seconds)[:BIGGEST]


def _listed(steps: Iterable[Step], title: str, labels: Mapping[str, str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("kind", no_wrap=True, min_width=max(map(len, KINDS)))
    table.add_column("what", overflow="fold")
    for name, widest in (("groups", 6), ("predicted", 9), ("disk", 7)):
        table.add_column(name, justify="right", no_wrap=True, min_width=widest)
    for step in steps:
        table.add_row(
            step.stage.kind,
            f"{step.stage.label} · {labels[step.groups[0]]}" if labels and len(step.groups) == 1 else step.stage.label,
            str(len(step.groups)),
            "cached" if step.stage.cached else in_words(step.seconds),
            in_bytes(step.stage.kept) if step.stage.kept else "-",
        )
    return table
