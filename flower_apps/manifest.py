"""The manifest: experiments by name in one YAML file, each multiplied out into groups of cells."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flower_apps.settings import GroupSettings, unknown_key
from flower_apps.strict_yaml import read_yaml, read_yaml_file
from partitions.errors import BadInput, unknown_name

LIST_KEYS = {"methods": ",", "requests": ";", "unlearn-seeds": ",", "evaluate-seeds": ","}
"""Keys that hold several values in one group, with what separates them; a list for any other key makes groups."""
COMMAND_KEYS = {
    "name": "it is the experiment's own name",
    "home": "use --home or LETHE_HOME",
    "out": "use --out",
    "workers": "use --workers",
    "jobs": "use --jobs",
    "fresh": "use --fresh",
}
"""Keys that belong to the command, with where to say it."""
_OWN_KEYS = ("description", "extends", "report")
"""Of the experiment itself, not of what it computes."""


DEFAULT = "quickstart"
"""The experiment that is meant when none is named."""


@dataclass(frozen=True)
class Experiment:
    """One experiment as written, with what it extends already merged in.

    Attributes
    ----------
    name, description : str
        As in the manifest.
    values : mapping
        Hyphenated keys to what YAML gave: a scalar, a list, or a mapping of method settings.
    report : bool
        Whether a run of it ends with a report.
    """

    name: str
    description: str
    values: Mapping[str, Any]
    report: bool = False


@dataclass(frozen=True)
class Manifest:
    """The experiments of one file, in its order."""

    path: Path
    experiments: Mapping[str, Experiment]

    def get(self, name: str) -> Experiment:
        """Return the experiment called `name`; raises `BadInput` with the nearest name."""
        if name not in self.experiments:
            error = unknown_name("experiment", name, self.experiments)
            raise BadInput(error.key, name, f"{error.allowed}, of {self.path}", error.remedy)
        return self.experiments[name]

    def default(self) -> str:
        """Return the experiment that is meant when none is named: quickstart, or the only one there is."""
        names = list(self.experiments)
        if DEFAULT in names or len(names) == 1:
            return DEFAULT if DEFAULT in names else names[0]
        raise BadInput("experiment", "", f"one of {', '.join(names)}", f"name one: {self.path} has several")

    def groups(self, names: Sequence[str], sets: Sequence[str] = ()) -> list[GroupSettings]:
        """Return the groups of the named experiments, with every ``key=value`` of `sets` applied, without repeats."""
        overrides = [_read_set(text) for text in sets]
        found = [group for name in names for group in _expand(self.get(name), overrides, self.path.parent)]
        return list(dict.fromkeys(found))


def default_manifest() -> Path:
    """Return ``experiments.yaml`` of the working directory, else the one that ships with Lethe."""
    here = Path.cwd() / "experiments.yaml"
    return here if here.is_file() else Path(__file__).resolve().parent.parent / "experiments.yaml"


def load_manifest(path: Path) -> Manifest:
    """Read a manifest.

    Every experiment is checked, also those that nobody asked for.

    Raises
    ------
    BadInput
        Naming file, experiment, key and value: not YAML, an unknown key, a value its key does not take, an
        experiment that extends one that is not there or itself.
    """
    if not path.is_file():
        raise BadInput("manifest", str(path), "a YAML file of experiments", "name one with --manifest FILE")
    written = read_yaml_file(path)
    if not isinstance(written, dict) or not written:
        raise BadInput("manifest", str(path), "a mapping of experiment names to their settings")
    for name, values in written.items():
        _check_shape(name, values)
    experiments = {name: _resolve(name, written) for name in written}
    for experiment in experiments.values():
        _expand(experiment, [], path.parent)
    return Manifest(path.resolve(), experiments)


def _check_shape(name: str, values: Any) -> None:
    if not isinstance(values, dict):
        raise BadInput(name, values, "a mapping of settings, such as 'dataset: lung-ct'")
    for key in values:
        _check_key(key, name)
    if not isinstance(values.get("report", False), bool):
        raise BadInput(f"{name}.report", values["report"], "true or false")
    description = values.get("description", "")
    if not isinstance(description, str):
        raise BadInput(f"{name}.description", description, "text")


def _check_key(key: str, where: str) -> None:
    if key in COMMAND_KEYS:
        raise BadInput(where, key, "keys that say what is computed", COMMAND_KEYS[key])
    known = [key for key in list(GroupSettings.keys()) if key not in COMMAND_KEYS]
    if key not in known and key not in _OWN_KEYS:
        error = unknown_key(key, [*known, *_OWN_KEYS])
        raise BadInput(f"{where}: setting", key, error.allowed, error.remedy)


def _resolve(name: str, written: Mapping[str, dict[str, Any]], below: tuple[str, ...] = ()) -> Experiment:
    """Merge what `name` extends, its own keys winning; `below` are the experiments that lead here."""
    own = {key: value for key, value in written[name].items() if key not in _OWN_KEYS}
    parent = written[name].get("extends")
    inherited: Mapping[str, Any] = {}
    report = False
    if parent is not None:
        if not isinstance(parent, str):
            raise BadInput(f"{name}.extends", parent, "the name of one experiment")
        if parent in (*below, name):
            raise BadInput(f"{name}.extends", parent, "an experiment that does not lead back here")
        if parent not in written:
            raise unknown_name(f"{name}.extends", parent, written)
        above = _resolve(parent, written, (*below, name))
        inherited, report = above.values, above.report
    report = written[name].get("report", report)
    return Experiment(name, written[name].get("description", ""), {**inherited, **own}, report)


def _read_set(text: str) -> tuple[str, Any]:
    """Read one ``key=value`` of ``--set``; the value is YAML when it opens a list or a mapping, else text."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise BadInput("--set", text, "key=value, such as rounds=5 or ga.max-norm=5")
    if "." not in key:
        _check_key(key, "--set")
    if key in _OWN_KEYS:
        raise BadInput("--set", key, "a setting", "write it in the manifest")
    read: Any = value
    if "." in key or (value.lstrip()[:1] in ("[", "{") and key != "overrides"):
        read = read_yaml(value, f"--set {key}")
    return key, _absolute(read, Path.cwd()) if key == "original" else read


def _expand(experiment: Experiment, sets: Iterable[tuple[str, Any]], folder: Path) -> list[GroupSettings]:
    """Multiply an experiment out into its groups: one for each combination of the keys that have a list."""
    values = dict(experiment.values)
    method_sets = []
    for key, value in sets:
        if "." in key:
            method_sets.append((key, value))
        else:
            values[key] = value
    flat = _flatten(values, experiment.name)
    several = {key: value for key, value in flat.items() if isinstance(value, list)}
    groups = []
    for chosen in itertools.product(*several.values()):
        scalars = {**flat, **dict(zip(several, chosen, strict=True)), "name": experiment.name}
        scalars["original"] = _absolute(scalars.get("original", ""), folder)
        scalars["overrides"] = _merge_overrides(scalars.get("overrides", ""), method_sets)
        groups.append(_parse(scalars, experiment.name))
    return groups


def _parse(scalars: Mapping[str, Any], name: str) -> GroupSettings:
    try:
        return GroupSettings.parse(scalars)
    except BadInput as error:
        raise BadInput(f"{name}.{error.key}", error.value, error.allowed, error.remedy) from None


def _flatten(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Turn lists of list keys into text and method settings into JSON; other lists stay, to be multiplied."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if key == "methods" and isinstance(value, dict):
            flat[key] = ",".join(value)
            settings = {method: given for method, given in value.items() if given is not None}
            if settings and "overrides" in values:
                raise BadInput(f"{name}.overrides", values["overrides"], "nothing, since methods has the settings")
            if settings:
                flat["overrides"] = settings
        elif key == "search":
            each = [_as_json(one, f"{name}.{key}") for one in value] if isinstance(value, list) else value
            flat[key] = _as_json(each, f"{name}.{key}")
        elif key in LIST_KEYS and isinstance(value, list):
            flat[key] = _join(value, LIST_KEYS[key], f"{name}.{key}")
        elif isinstance(value, list) and not value:
            raise BadInput(f"{name}.{key}", value, "at least one value")
        else:
            flat[key] = value
    return flat


def _join(values: list[Any], separator: str, key: str) -> str:
    """Join a list key's values; a list within ``requests`` is a sequence of requests."""
    values = [
        " > ".join(map(str, value)) if separator == ";" and isinstance(value, list) else value for value in values
    ]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, str | int) or separator in str(value):
            raise BadInput(key, value, f"a list of texts or whole numbers without {separator!r}")
    return separator.join(str(value) for value in values)


def _as_json(value: Any, key: str) -> Any:
    """Return a mapping as JSON text, in the order written; anything else as it is."""
    if not isinstance(value, dict):
        return value
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BadInput(
            key, value, "methods with their settings, each with a list of values or a range", str(error)
        ) from None


def _merge_overrides(given: Any, method_sets: Iterable[tuple[str, Any]]) -> str:
    """Return the method settings as JSON text, with each ``METHOD.KEY`` of ``--set`` merged in."""
    if isinstance(given, dict):
        if not all(isinstance(settings, dict) for settings in given.values()):
            raise BadInput("methods", given, "method names with a mapping of settings each, such as ga: {max-norm: 5}")
        merged = {method: dict(settings) for method, settings in given.items()}
    else:
        merged = GroupSettings.parse({"overrides": given}).method_overrides() if given else {}
    for key, value in method_sets:
        method, _, setting = key.partition(".")
        merged.setdefault(method, {})[setting] = value
    return json.dumps(merged, sort_keys=True) if merged else ""


def _absolute(path: Any, folder: Path) -> Any:
    """Resolve a relative path against `folder`, since every process has a working directory of its own."""
    if isinstance(path, list):
        return [_absolute(one, folder) for one in path]
    return str((folder / Path(path).expanduser()).resolve()) if isinstance(path, str) and path else path
