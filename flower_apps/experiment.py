"""One experiment of the manifest: its own keys, and what it takes over from those it extends."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from flower_apps.settings import GroupSettings, unknown_key
from partitions.errors import BadInput, unknown_name

COMMAND_KEYS = {
    "name": "it is the experiment's own name",
    "home": "use --home or LETHE_HOME",
    "out": "use --out",
    "jobs": "use --jobs",
    "lane": "`lethe run` sets it itself",
    "fresh": "use --fresh",
}
"""Keys that belong to the command, with where to say it."""
OWN_KEYS = {
    "description": "one line that says what the experiment is for",
    "extends": "experiments whose keys are taken over, one name or a list; later ones win, and the own keys over all",
    "tags": "names to choose experiments by: lethe run --tag NAME",
    "report": "whether a run ends with a report (lethe report)",
    "budget": "hours, GB of disk and of memory that a run may take at most",
}
"""Keys of the experiment itself, not of what it computes, with their meaning."""
SETTINGS = tuple(key for key in list(GroupSettings.keys()) if key not in COMMAND_KEYS)
"""Keys of what an experiment computes."""
METHOD_KEYS = ("overrides", "methods")
"""Settings that hold those of methods."""
BUDGET_KEYS = {
    "hours": "hours that a run may take",
    "disk-gb": "gigabytes (1e9 bytes) that a run may add to LETHE_HOME",
    "memory-gb": "gigabytes (1e9 bytes) of memory that a run may use at once",
}
"""Keys of a budget, with their meaning."""
OWN_EXAMPLES = {
    "description": "description: what it is for",
    "extends": "extends: quickstart",
    "tags": "tags: [study]",
    "report": "report: true",
    "budget": "budget: {hours: 12}",
}
"""How the experiment's own keys are written."""
MOST_CHARACTERS = 80
"""Of an experiment's name."""


@dataclass(frozen=True)
class Budget:
    """What a run of an experiment may take at most; None where it has no limit.

    Attributes
    ----------
    hours : float or None
        Wall time.
    disk_gb, memory_gb : float or None
        Units of 1e9 bytes.
    """

    hours: float | None = None
    disk_gb: float | None = None
    memory_gb: float | None = None

    def to_json(self) -> dict[str, float]:
        """Return the limits there are, by the manifest's keys."""
        limits = {one.name.replace("_", "-"): getattr(self, one.name) for one in fields(self)}
        return {key: limit for key, limit in limits.items() if limit is not None}


@dataclass(frozen=True)
class Experiment:
    """One experiment as written, with what it extends already merged in.

    Attributes
    ----------
    name, description : str
        As in the manifest; a description is not taken over.
    values : mapping
        Hyphenated keys to what YAML gave: a scalar, a list, a mapping of method settings, a list of exclusions.
    report : bool
        Whether a run of it ends with a report.
    tags : tuple of str
        Names to choose it by.
    budget : Budget
        What a run may take.
    stated : mapping of str to str
        For each key the entry of the manifest in which its value is written: itself, or one that it extends.
    """

    name: str
    description: str
    values: Mapping[str, Any]
    report: bool = False
    tags: tuple[str, ...] = ()
    budget: Budget = Budget()
    stated: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_part(self) -> bool:
        """Whether it is there to be extended only: its name starts with an underscore."""
        return self.name.startswith("_")


def place(error: BadInput, experiments: Sequence[Experiment], flags: Mapping[str, str] | None = None) -> BadInput:
    """Return an error with what states the value at fault in front of its key, in place of the experiment's name.

    That is the entry in which the value is written, which may be one that the experiment extends, or a flag.

    Parameters
    ----------
    error : BadInput
        One whose key does not begin with an experiment's name and a dot is returned as it is.
    experiments : sequence of Experiment
        That it may be about.
    flags : mapping of str to str
        Keys that the command line states, with how: ``{"ga.lr": "--set ga.lr"}``.
    """
    about = [experiment for experiment in experiments if error.key.startswith(f"{experiment.name}.")]
    if not about:
        return error
    experiment = max(about, key=lambda one: len(one.name))
    key = error.key.removeprefix(f"{experiment.name}.")
    first = re.split("[.: ]", key, maxsplit=1)[0]
    first, flags = {"method": "methods"}.get(first, first), flags or {}
    owners = [first] if first in (*SETTINGS, *OWN_KEYS) else METHOD_KEYS
    entry = next((experiment.stated[one] for one in owners if one in experiment.stated), experiment.name)
    placed = f"{entry}.{key}"
    if flagged := next((one for one in (key, first) if one in flags), ""):
        placed = flags[flagged] + (key.removeprefix(flagged) if key.startswith(flagged) else "")
    elif f"{first}.{error.value}" in flags:  # a setting that the method has not
        placed = f"--set: {key}"
    return BadInput(placed, error.value, error.allowed, error.remedy)


def check_experiment(name: str, values: Any) -> None:
    """Check the name of one experiment, its keys and the values of its own ones; raises `BadInput` naming it."""
    if not re.fullmatch(r"\w[\w.-]*", name) or len(name) > MOST_CHARACTERS:
        allowed = f"a name of letters, digits, '_', '-' and '.', up to {MOST_CHARACTERS}, a letter, digit or '_' first"
        raise BadInput("experiment", name, allowed)
    if not isinstance(values, dict):
        raise BadInput(name, values, "a mapping of settings, such as 'dataset: lung-ct'")
    for key in values:
        check_key(key, name)
    if not isinstance(values.get("report", False), bool):
        raise BadInput(f"{name}.report", values["report"], "true or false")
    description = values.get("description", "")
    if not isinstance(description, str):
        raise BadInput(f"{name}.description", description, "text")
    _tags(values.get("tags", []), name)
    _parents(values.get("extends", []), name)
    _budget(values.get("budget", {}), name)


def check_key(key: str, where: str) -> None:
    """Refuse a key that is neither a setting nor an experiment's own; `where` is the experiment or flag."""
    if key in COMMAND_KEYS:
        raise BadInput(where, key, "keys that say what is computed", COMMAND_KEYS[key])
    known = [*SETTINGS, *OWN_KEYS]
    if key not in known:
        error = unknown_key(key, known)
        raise BadInput(f"{where}: setting", key, error.allowed, error.remedy)


def resolve(written: Mapping[str, Mapping[str, Any]]) -> list[Experiment]:
    """Merge what each experiment extends: of several the later win over the earlier, its own keys over all.

    A key is taken over whole: mappings and lists are replaced, not merged.

    Parameters
    ----------
    written : mapping
        Every experiment of the manifest, each checked by `check_experiment`.

    Raises
    ------
    BadInput
        When one extends another that is not there, or leads back to itself.
    """
    merged: dict[str, dict[str, Any]] = {}
    stated: dict[str, dict[str, str]] = {}
    for name in written:
        _merge(name, written, merged, stated)
    return [
        Experiment(
            name=name,
            description=written[name].get("description", ""),
            values={key: value for key, value in merged[name].items() if key not in OWN_KEYS},
            report=merged[name].get("report", False),
            tags=_tags(merged[name].get("tags", []), name),
            budget=_budget(merged[name].get("budget", {}), name),
            stated=stated[name],
        )
        for name in written
    ]


def _merge(
    name: str,
    written: Mapping[str, Mapping[str, Any]],
    merged: dict[str, dict[str, Any]],
    stated: dict[str, dict[str, str]],
) -> None:
    """Put all keys of an experiment, and of those that it leads to, into `merged`, each once; who says so, `stated`."""
    path = dict.fromkeys([name])  # from the experiment to the one at hand, without calls within calls
    while path:
        here = next(reversed(path))
        parents = _parents(written[here].get("extends", []), here)
        left = next((parent for parent in parents if parent not in merged), None)
        if left is None:
            values: dict[str, Any] = {}
            by: dict[str, str] = {}
            for parent in parents:
                values |= merged[parent]
                by |= stated[parent]
            merged[here] = values | dict(written[here])
            stated[here] = by | dict.fromkeys(written[here], here)
            del path[here]
        elif left in path:
            raise BadInput(f"{here}.extends", left, "an experiment that does not lead back here")
        elif left not in written:
            raise unknown_name(f"{here}.extends", left, written)
        else:
            path[left] = None


def _parents(value: Any, name: str) -> list[str]:
    parents = [value] if isinstance(value, str) else value
    if not isinstance(parents, list) or not all(isinstance(parent, str) and parent for parent in parents):
        raise BadInput(f"{name}.extends", value, "the name of an experiment, or a list of names")
    if len(set(parents)) < len(parents):
        raise BadInput(f"{name}.extends", value, "each name once")
    return parents


def _tags(value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(tag, str) and tag.strip() for tag in value):
        raise BadInput(f"{name}.tags", value, "a list of names, such as [study, small]")
    return tuple(dict.fromkeys(tag.strip() for tag in value))


def _budget(value: Any, name: str) -> Budget:
    if not isinstance(value, dict):
        raise BadInput(f"{name}.budget", value, "a mapping of limits, such as {hours: 12, disk-gb: 200}")
    return Budget(**dict(_limits(value, name)))


def _limits(value: Mapping[str, Any], name: str) -> Iterator[tuple[str, float]]:
    for key, limit in value.items():
        if key not in BUDGET_KEYS:
            raise unknown_name(f"{name}.budget", key, BUDGET_KEYS)
        number = not isinstance(limit, bool) and isinstance(limit, int | float) and math.isfinite(limit)
        if not number or limit <= 0:
            raise BadInput(f"{name}.budget.{key}", limit, "a number above 0", f"{key} is: {BUDGET_KEYS[key]}")
        yield key.replace("-", "_"), float(limit)
