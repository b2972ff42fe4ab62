"""Multiplies an experiment out into groups of cells, and takes out what it excludes."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flower_apps.cells import Exclusion, check_excludable, normal, write_exclusions
from flower_apps.experiment import OWN_KEYS, Experiment, check_key
from flower_apps.settings import GroupSettings
from flower_apps.strict_yaml import in_one_line
from partitions.errors import BadInput, Quantity, naming, unknown_name

LIST_KEYS = {"methods": ",", "requests": ";", "unlearn-seeds": ",", "evaluate-seeds": ","}
"""Keys that hold several values in one group, with what separates them; a list for any other key makes groups."""
MOST_GROUPS = 10_000
"""Groups that one experiment may have."""
MAPPINGS = {"search": "{fedquit: {lr: [0.001, 0.01]}}", "overrides": "{ga: {max-norm: 5}}"}
"""Keys that hold a mapping of methods, with an example."""
CELL_KEYS = ("method", "request")
"""Keys of an exclusion that name cells of a group; any other names groups."""
NOT_EXCLUDED_BY = {
    "methods": "say method",
    "requests": "say request",
    "unlearn-seeds": "a group has all its seeds",
    "evaluate-seeds": "a group has all its seeds",
    "overrides": "name the method",
    "exclude": "say what it would exclude",
}
"""Settings that no exclusion can name, with the remedy."""


def expand(experiment: Experiment, sets: Sequence[tuple[str, Any]], folder: Path) -> list[GroupSettings]:
    """Multiply an experiment out into its groups: one for each combination of the keys that have a list.

    Parameters
    ----------
    experiment : Experiment
        Of the manifest.
    sets : sequence of (str, value)
        Keys to replace, or ``METHOD.KEY``.
    folder : Path
        Where the manifest lies: relative paths start there.

    Raises
    ------
    BadInput
        Naming experiment, key and value. An exclusion that fits nothing is one, unless `sets` narrowed what there is,
        or the experiment is only a part of others.
    """
    values, method_sets = dict(experiment.values), []
    for key, value in sets:
        if "." in key:
            method_sets.append((key, value))
        else:
            values[key] = value
    name = experiment.name
    rules = _rules(values.pop("exclude", []), name, folder)
    flat = _flatten(values, name)
    several = {key: value for key, value in flat.items() if isinstance(value, list)}
    check_number({key: len(value) for key, value in several.items()}, name)
    groups = []
    for chosen in itertools.product(*several.values()):
        scalars = {**flat, **dict(zip(several, chosen, strict=True)), "name": name}
        scalars["original"] = absolute(scalars.get("original", ""), folder)
        scalars["overrides"] = _merge_overrides(scalars.get("overrides", ""), method_sets, name)
        groups.append(_parse(scalars, name))
    if not experiment.is_part and (not sets or any(key == "exclude" for key, _ in sets)):
        for rule in rules:
            rule.check(groups, name)
    left = [_without(group, rules) for group in groups if not any(rule.drops(group) for rule in rules)]
    if not left:
        raise BadInput(
            f"{name}.exclude",
            [rule.entry for rule in rules],
            "exclusions that leave a group",
            "leave out the experiment",
        )
    return left


def check_number(lengths: Mapping[str, int], name: str) -> None:
    """Refuse lists that multiply to more than `MOST_GROUPS`; raises `BadInput` naming each key with its length."""
    number = math.prod(lengths.values())
    if number > MOST_GROUPS:
        long = " x ".join(f"{key} ({length})" for key, length in lengths.items() if length > 1)
        remedy = "shorten a list, or make several experiments of it"
        raise BadInput(name, Quantity(f"{number} groups"), f"at most {MOST_GROUPS}: its lists multiply, {long}", remedy)


@dataclass(frozen=True)
class Rule:
    """One entry of ``exclude``: which groups it is about, and which of their cells.

    Attributes
    ----------
    entry : mapping
        As written.
    wanted : mapping of str to tuple
        Settings by hyphenated key, and the values of which a group must have one; none: every group.
    cells : Exclusion or None
        Cells of those groups; None: the groups themselves.
    """

    entry: Mapping[str, Any]
    wanted: Mapping[str, tuple[Any, ...]]
    cells: Exclusion | None

    def fits(self, group: GroupSettings) -> bool:
        """Tell whether a group is one that it is about."""
        return all(_value(group, key) in values for key, values in self.wanted.items())

    def drops(self, group: GroupSettings) -> bool:
        """Tell whether it takes out a whole group."""
        return self.cells is None and self.fits(group)

    def check(self, groups: Sequence[GroupSettings], name: str) -> None:
        """Raise `BadInput`, with the nearest value, when there is nothing that it takes out."""
        for key, values in self.wanted.items():
            there = {_value(group, key) for group in groups}
            for value in values:
                if value not in there:
                    raise unknown_name(f"{name}.exclude: {key}", str(value), map(str, there))
        for key, named in (self.cells.to_json() if self.cells else {}).items():
            cells = {one for group in groups for one in _cell_values(group, key)}
            for one in named:
                if one not in cells:
                    raise unknown_name(f"{name}.exclude: {key}", one, cells)
        if not any(self.fits(group) for group in groups):
            raise BadInput(f"{name}.exclude", dict(self.entry), "a combination of values that the experiment has")


def absolute(path: Any, folder: Path) -> Any:
    """Resolve a relative path against `folder`, since every process has a working directory of its own."""
    if isinstance(path, list):
        return [absolute(one, folder) for one in path]
    return str((folder / Path(path).expanduser()).resolve()) if isinstance(path, str) and path else path


def _rules(entries: Any, name: str, folder: Path) -> list[Rule]:
    key = f"{name}.exclude"
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and entry for entry in entries):
        raise BadInput(key, entries, "a list of mappings, such as [{method: ga, alpha: 1.0}]")
    return [_rule(entry, name, key, folder) for entry in entries]


def _rule(entry: Mapping[str, Any], name: str, key: str, folder: Path) -> Rule:
    wanted: dict[str, tuple[Any, ...]] = {}
    for setting, value in entry.items():
        if setting in CELL_KEYS:
            continue
        if setting in NOT_EXCLUDED_BY or setting in OWN_KEYS:
            allowed = "method, request, or a setting with one value in a group"
            raise BadInput(key, setting, allowed, NOT_EXCLUDED_BY.get(setting, ""))
        check_key(setting, key)
        if isinstance(value, list) and not value:
            raise BadInput(f"{key}: {setting}", value, "at least one value")
        values = value if isinstance(value, list) else [value]
        wanted[setting] = tuple(_read(setting, one, key, folder) for one in values)
    named = {cell: _joined(entry[cell]) for cell in CELL_KEYS if cell in entry}
    if not named:
        return Rule(entry, wanted, None)
    try:
        cells = Exclusion.read(named)
    except BadInput as error:
        raise BadInput(f"{key}: request", error.value, error.allowed, error.remedy) from None
    except ValueError as error:
        raise BadInput(key, dict(entry), "a method and a request as text, or as a list of texts", str(error)) from None
    for method in cells.methods:
        check_excludable(method, f"{key}: method")
    return Rule(entry, wanted, cells)


def _read(setting: str, value: Any, key: str, folder: Path) -> Any:
    """Return what a group that was given this value has."""
    value = absolute(value, folder) if setting == "original" else value
    try:
        return _value(GroupSettings.parse({setting: value}), setting)
    except BadInput as error:
        raise BadInput(f"{key}: {error.key}", error.value, error.allowed, error.remedy) from None


def _value(group: GroupSettings, key: str) -> Any:
    return getattr(group, key.replace("-", "_"))


def _cell_values(group: GroupSettings, key: str) -> list[str]:
    """Return the methods or the requests of a group, for `Rule.check` to look up in."""
    with naming(group.name):
        return group.method_names() if key == "method" else [normal(text) for text in group.request_texts()]


def _without(group: GroupSettings, rules: Iterable[Rule]) -> GroupSettings:
    """Return a group that leaves out the cells it has of those that the rules name."""
    methods, requests = (_cell_values(group, key) for key in CELL_KEYS) if rules else ((), ())
    found = []
    for rule in rules:
        if rule.cells is None or not rule.fits(group):
            continue
        here = Exclusion(
            tuple(one for one in rule.cells.methods if one in methods),
            tuple(one for one in rule.cells.requests if one in requests),
        )
        if bool(here.methods) == bool(rule.cells.methods) and bool(here.requests) == bool(rule.cells.requests):
            found.append(here)
    return group.model_copy(update={"exclude": write_exclusions(found)}) if found else group


def _parse(scalars: Mapping[str, Any], name: str) -> GroupSettings:
    with naming(name):
        return GroupSettings.parse(scalars)


def _flatten(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Turn lists of list keys into text and method settings into JSON; other lists stay, to be multiplied."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, list) and key not in ("methods", "requests"):
            _check_list(value, f"{name}.{key}")
        if key in MAPPINGS:
            _check_mappings(value, key, name)
        if key in LIST_KEYS and (key != "methods" or not isinstance(value, dict)):
            _check_texts(value, key, f"{name}.{key}")
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
        else:
            flat[key] = value
    return flat


def _check_list(values: list[Any], key: str) -> None:
    """Refuse a list of no values, or with one of them twice."""
    if not values:
        raise BadInput(key, values, "at least one value")
    seen = set()
    for value in values:
        mark = json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else value
        if mark in seen:
            raise BadInput(key, value, "each value once")
        seen.add(mark)


def _check_mappings(value: Any, key: str, name: str) -> None:
    """Refuse text that is no JSON for a key that holds mappings; JSON is what a group's own setting has."""
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, str) and one.strip() and not one.lstrip().startswith("{"):
            raise BadInput(f"{name}.{key}", one, f"a mapping such as {MAPPINGS[key]}")


def _check_texts(value: Any, key: str, where: str) -> None:
    """Refuse a mapping among the methods or the requests, with how it is meant to be written."""
    entries = value if isinstance(value, list) else [value]
    inner = [one for entry in entries for one in (entry if key == "requests" and isinstance(entry, list) else [entry])]
    mapping = next((one for one in inner if isinstance(one, dict)), None)
    if mapping is None:
        return
    if key == "methods":
        allowed = "a list of methods, or, where one has settings, a mapping of all of them"
        raise BadInput(where, mapping, allowed, f"write methods: {_with_settings(entries)}")
    if key == "requests":
        said = [f"{kind}:{what}" for kind, what in mapping.items() if isinstance(what, str | int)]
        example = said[0] if len(said) == len(mapping) == 1 else "client:patient-1"
        raise BadInput(where, mapping, "a list of requests as text", f"write {example}, without a blank at the colon")
    raise BadInput(where, mapping, "a list of whole numbers")


def _with_settings(entries: Sequence[Any]) -> str:
    """Return methods, some of them mappings to their settings, as one mapping in YAML; else one that is right."""
    pairs = [pair for one in entries for pair in (one.items() if isinstance(one, dict) else [(one, None)])]
    alike = all(isinstance(name, str) and (given is None or isinstance(given, dict)) for name, given in pairs)
    if not alike or len(dict(pairs)) < len(pairs):
        return "{ga: {max-norm: 5}, fedquit: }"
    return "{" + ", ".join(f"{name}: {in_one_line(given) if given is not None else ''}" for name, given in pairs) + "}"


def _join(values: list[Any], separator: str, key: str) -> str:
    """Join a list key's values; a list within ``requests`` is a sequence of requests."""
    values = _joined(values) if separator == ";" else values
    for value in values:
        if isinstance(value, bool) or not isinstance(value, str | int) or separator in str(value):
            raise BadInput(key, value, f"a list of texts or whole numbers without {separator!r}")
    if values:
        _check_list([str(value).strip() for value in values], key)
    return separator.join(str(value) for value in values)


def _joined(values: Any) -> Any:
    """Return a list with every list in it as a sequence of requests; anything else as it is."""
    if not isinstance(values, list):
        return values
    return [" > ".join(map(str, value)) if isinstance(value, list) else value for value in values]


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


def _merge_overrides(given: Any, method_sets: Iterable[tuple[str, Any]], name: str) -> str:
    """Return the method settings as JSON text, with each ``METHOD.KEY`` of ``--set`` merged in."""
    if isinstance(given, dict):
        if not all(isinstance(settings, dict) for settings in given.values()):
            raise BadInput(
                f"{name}.methods", given, "method names with a mapping of settings each, such as ga: {max-norm: 5}"
            )
        merged = {method: dict(settings) for method, settings in given.items()}
    else:
        merged = _parse({"overrides": given}, name).method_overrides() if given else {}
    for key, value in method_sets:
        method, _, setting = key.partition(".")
        merged.setdefault(method, {})[setting] = value
    return json.dumps(merged, sort_keys=True) if merged else ""
