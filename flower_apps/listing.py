"""The experiments of a manifest as rows and tables: what each is for, and what its settings come to."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flower_apps.cases import SEARCHED
from flower_apps.cells import cells_of
from flower_apps.experiment import SETTINGS
from flower_apps.explain import Row, new_table
from flower_apps.manifest import Manifest
from flower_apps.settings import GroupSettings
from flower_apps.strict_yaml import in_one_line
from partitions.errors import naming

if TYPE_CHECKING:
    from rich.table import Table

WITHIN = ("methods", "overrides", "requests", "exclude", "unlearn_seeds", "evaluate_seeds")
"""Settings that say which cells a group has, not what a cell is."""
SEARCH = ("search", "search_sampler", "search_trials", "search_seed", "search_rule", "search_checkpoint")
"""Settings that say what a cell is only where its method's settings were searched."""
MAPPINGS = ("overrides", "exclude", "search")
"""Settings that are JSON in a group, and a mapping or a list of them in a manifest."""
TWIN = "-small"
"""Ends the name of an experiment that is another one in small."""


def experiment_row(manifest: Manifest, name: str, sets: Sequence[str] = ()) -> Row:
    """Return what an experiment is, how many groups and cells it has, and its settings.

    `settings` has every key that is not at its default in all groups: its value, or the list of the groups' values.
    """
    experiment, groups = manifest.get(name), manifest.groups([name], sets)
    with manifest.placing([name], sets):
        cells = {cell for group in groups for cell in _cells(group)}
    return {
        "name": name,
        "description": experiment.description,
        "tags": list(experiment.tags),
        "groups": len(groups),
        "cells": len(cells),
        "seeds": _seeds(groups),
        "budget": experiment.budget.to_json(),
        "report": experiment.report,
        "settings": _settings(groups),
    }


def experiments_table(rows: Sequence[Row]) -> Table:
    """Return the experiments as a table that reads at 80 columns; one in small shares a line with its original."""
    from rich.markup import escape

    names = {row["name"] for row in rows}
    twins = {name for name in names if name.endswith(TWIN) and name.removesuffix(TWIN) in names}
    table = new_table("Experiments", "experiment", "what for", "small", "groups", "cells")
    table.box, table.padding = None, (0, 1)
    table.header_style = "bold"
    for column in table.columns[3:]:
        column.justify = "right"
    for row in rows:
        if row["name"] in twins:
            continue
        about = row["description"] + (f" [{', '.join(row['tags'])}]" if row["tags"] else "")
        small = "yes" if row["name"] + TWIN in twins else ""
        table.add_row(row["name"], escape(about), small, str(row["groups"]), str(row["cells"]))
    table.caption = (
        f"\nsmall: NAME{TWIN} is the same on packaged data, in minutes. In brackets: tags, for --tag.\n"
        "group: cells that share an original model. cell: a request and a method, original and retrained model "
        "included, under one train and one unlearning seed.\nOne experiment with its settings: `lethe experiments NAME`"
    )
    table.caption_justify = "left"
    return table


def experiment_table(row: Row) -> Table:
    """Return one experiment: its settings that are not the defaults, a value a line where its groups differ."""
    from rich.markup import escape

    seeds = ", ".join(f"{count} {kind}" for kind, count in row["seeds"].items())
    table = new_table(escape(f"{row['name']}: {row['description']}"), "setting", "value", "meaning")
    for key, value in row["settings"].items():
        table.add_row(key, escape(_shown(key, value)), GroupSettings.describe(key))
    groups = f"{row['groups']} group{'' if row['groups'] == 1 else 's'}"
    about = [f"{groups}, {row['cells']} cells; seeds: {seeds}. Other settings are at their defaults."]
    if row["tags"]:
        about.append(escape(f"tags: {', '.join(row['tags'])}"))
    if row["budget"]:
        about.append("budget: " + ", ".join(f"{key} {limit:g}" for key, limit in row["budget"].items()))
    if row["report"]:
        about.append("a run ends with a report")
    table.caption, table.caption_justify = "\n".join(about), "left"
    return table


def _cells(group: GroupSettings) -> Iterator[tuple[Hashable, ...]]:
    """Yield what tells the cells of an experiment's groups apart: groups may share some."""
    training = group.model_copy(update=dict.fromkeys((*WITHIN, *SEARCH), ""))
    with naming(group.name):
        requested = cells_of(group)
    search = tuple(getattr(group, key) for key in SEARCH[1:])
    overrides, searched = group.method_overrides(), group.searched()
    for request, method, seed in requested:
        cell = (training, request, method, seed, json.dumps(overrides.get(method), sort_keys=True))
        yield cell
        if method in searched:
            yield *cell, SEARCHED, json.dumps(searched[method]), search


def _settings(groups: Sequence[GroupSettings]) -> dict[str, Any]:
    flat, defaults = [group.to_run_config() for group in groups], GroupSettings.keys()
    found: dict[str, Any] = {}
    for key in SETTINGS:
        values = list(dict.fromkeys(one[key] for one in flat))
        if values != [defaults[key]]:
            found[key] = values[0] if len(values) == 1 else values
    return found


def _seeds(groups: Sequence[GroupSettings]) -> dict[str, int]:
    """Return how many train seeds there are, unlearning seeds to each, and evaluation seeds to each of those."""
    first = groups[0]
    counts = (len({group.train_seed for group in groups}), len(first.seeds("unlearn")), len(first.seeds("evaluate")))
    return dict(zip(("train", "unlearn", "evaluate"), counts, strict=True))


def _shown(key: str, value: Any) -> str:
    """Return a value as one writes it in a manifest, one a line where groups differ."""
    if key not in MAPPINGS:
        return _spaced("\n".join(map(str, value)) if isinstance(value, list) else str(value))
    if isinstance(value, list):
        return "\n".join(in_one_line(json.loads(one)) if one else "(none)" for one in value)
    read = json.loads(value)
    if isinstance(read, dict):
        return "\n".join(f"{method}: {in_one_line(settings)}" for method, settings in read.items())
    return "\n".join(f"- {in_one_line({part: _single(those) for part, those in entry.items()})}" for entry in read)


def _single(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _spaced(text: str) -> str:
    """Return text lists with blanks after their commas, so that a table can break them."""
    return text.replace(",", ", ").replace(",  ", ", ")
