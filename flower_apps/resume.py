"""`lethe resume`: goes on with a run from its own record; neither the manifest nor anybody's memory is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evaluation.runs import read_record
from flower_apps.run_state import refuse_if_running
from flower_apps.runs import LIBRARIES, MANIFEST, environment
from flower_apps.settings import GroupSettings
from partitions.errors import BadInput

IDENTIFYING = ("torch", "flwr")
"""Libraries whose version is part of what identifies a result."""


def resume_run(
    folder: Path,
    home: Path,
    *,
    jobs: int | None,
    workers: int | None,
    gpus: int | None,
    evaluator: str | None,
    report: bool | None,
    json_output: bool,
    say: Callable[[str], None],
) -> int:
    """Go on with a run: what is finished is read, what is half done goes on, what is missing is computed.

    Parameters
    ----------
    folder, home : Path
        The run folder and LETHE_HOME.
    jobs, workers, gpus, evaluator, report
        As of `lethe run`; None: as the run had it.
    json_output : bool
        As of `lethe run`.
    say : callable
        Gets what is different from when the run was started.

    Returns
    -------
    int
        Exit code, as of `lethe run`.

    Raises
    ------
    BadInput
        When the folder has no group, or one that this version does not know, or data that are gone or others.
    Busy
        When a command works on the folder.
    """
    from flower_apps.command_run import run_experiments
    from flower_apps.preflight import check_groups

    record = read_record(folder)
    refuse_if_running(folder, record)
    command: Mapping[str, Any] = record.get("command") or {}
    groups = recorded_groups(folder, record)
    if evaluator is not None:
        groups = [GroupSettings.parse({**group.to_run_config(), "evaluator": evaluator}) for group in groups]
    check_groups(groups)
    for line in changes(record):
        say(line)
    return run_experiments(
        groups,
        home=home,
        out=folder,
        workers=workers or command.get("workers"),
        jobs=jobs or command.get("jobs") or 1,
        gpus=int(command.get("gpus") or 0) if gpus is None else gpus,
        json_output=json_output,
        fresh=False,
        manifest=folder / MANIFEST,
        report=bool(command.get("report")) if report is None else report,
        experiments=command.get("experiments") or list(dict.fromkeys(group.name for group in groups)),
        sets=command.get("sets") or [],
        resumed=True,
    )


def recorded_groups(folder: Path, record: Mapping[str, Any]) -> list[GroupSettings]:
    """Return the groups of a run's last command, as they were asked for; of an older run all that it has."""
    names = (record.get("command") or {}).get("groups") or list(record["groups"])
    if not names:
        raise BadInput("run", str(folder), "a run that recorded what it was to do", "start it with `lethe run`")
    missing = [name for name in names if name not in record["groups"]]
    if missing:
        raise BadInput("run", str(folder), f"a record with the settings of {missing[0]}", "start it with `lethe run`")
    try:
        return [GroupSettings.parse(record["groups"][name]) for name in names]
    except BadInput as error:
        remedy = "it was made by another version: resume it with that one, or start it anew with `lethe run`"
        raise BadInput(error.key, error.value, error.allowed, remedy) from None


def changes(record: Mapping[str, Any]) -> list[str]:
    """Say what differs from the environment that a run was started in, and what that means; a line each."""
    before, now = record["environment"], environment()
    libraries = before.get("libraries") or {}
    differing = [
        f"{name} was {libraries[name]} and is {now['libraries'][name]}"
        for name in LIBRARIES
        if libraries.get(name, now["libraries"][name]) != now["libraries"][name]
    ]
    lines = []
    if found := [text for text in differing if text.split()[0] in IDENTIFYING]:
        lines.append(f"{', '.join(found)}: stages made before are not used, all is computed again under other cell ids")
    if found := [text for text in differing if text.split()[0] not in IDENTIFYING]:
        lines.append(f"{', '.join(found)}: the last bits of what is still missing may differ")
    if before.get("commit") and now["commit"] != before["commit"]:
        was, present = _short(str(before["commit"])), _short(str(now["commit"])) or "no checkout"
        lines.append(f"the code was {was} and is {present}: what is still missing is computed by it")
    if before.get("host") and before["host"] != now["host"]:
        lines.append(f"it was started on {before['host']}: times measured there and here are not compared")
    return lines


def _short(commit: str) -> str:
    return commit[:12] + ("-dirty" if commit.endswith("-dirty") else "")
