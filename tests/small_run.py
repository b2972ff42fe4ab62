"""A whole run in a few seconds: three sites of tiny digits, two methods, everything that a run folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from end_to_end.in_process import run_group
from filelock import FileLock

from flower_apps.runs import group_id
from flower_apps.settings import GroupSettings

SETTINGS = {
    "name": "small",
    "dataset": "digits",
    "cap": 20,
    "split": "dirichlet",
    "sites": 3,
    "alpha": 1.0,
    "rounds": 3,
    "local-epochs": 1,
    "batch-size": 16,
    "lr": 0.05,
    "requests": "client:site-1",
    "methods": "ga,fedquit",
    "preset": "safe",
    "unlearn-epochs": 1,
    "recovery-rounds": 1,
    "recovery-epochs": 1,
    "device": "cpu",
    "evaluate-seeds": "0,1",
}


class SmallRun(NamedTuple):
    """LETHE_HOME and the run folder below its ``runs``."""

    home: Path
    path: Path


def settings_of(home: Path, out: Path, **changes: object) -> GroupSettings:
    """Return the settings with where they lie."""
    changed = {key.replace("_", "-"): value for key, value in changes.items()}
    return GroupSettings.parse({**SETTINGS, "home": str(home), "out": str(out), **changed})


def execute(settings: GroupSettings) -> Path:
    """Run a group as the ServerApp does, in this process, and return the run folder."""
    from flower_apps.runs import RunFolder

    out = Path(settings.out)
    RunFolder(out).begin({}, {group_id(settings): settings.to_run_config()})
    run_group(settings, Path(settings.home), out)
    events = RunFolder(out).events_path(group_id(settings))
    events.parent.mkdir(exist_ok=True)
    with events.open("a") as file:
        file.write((out / "events.jsonl").read_text())
    (out / "events.jsonl").unlink()
    return out


def shared_small_run(home: Path) -> SmallRun:
    """Return the run below `home`, which the first process that asks makes and the others wait for."""
    made = SmallRun(home, home / "runs" / "20260101-000000-small")
    home.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(home.with_suffix(".lock")):
        if not (done := home / "done").exists():
            execute(settings_of(made.home, made.path))
            done.touch()
    return made
