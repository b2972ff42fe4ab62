"""The JSON Schema of manifests, for editors: made from the settings, the methods and every other name there is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from flower_apps.cells import ALWAYS
from flower_apps.experiment import BUDGET_KEYS, OWN_KEYS, SETTINGS
from flower_apps.multiply import CELL_KEYS, LIST_KEYS, NOT_EXCLUDED_BY
from flower_apps.settings import AUTO, LARGEST, PRECISION_ALIASES, PRECISIONS, GroupSettings

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TRUTHS = ("yes", "no", "on", "off")
"""Text that a key takes for true or false, beside YAML's own two."""
_NAMES = r"[^\s,;>][^,;>]*(,[^,;>]*[^\s,;>][^,;>]*)*"
_FRACTION = r"(0*\.\d*[1-9]\d*|0*1(\.0*)?|\d+(\.\d*)?[eE]-\d+)"
_STEP = rf"\s*((client|class|patient)\s*:\s*{_NAMES}|sample\s*:\s*{_FRACTION}\s*(@\s*[^\s,;>][^,;>]*)?)\s*"
_SEQUENCE = rf"{_STEP}(>{_STEP})*"
_SEEDS = r"\s*\d+\s*(,\s*\d+\s*)*"
_SEED = {"type": "integer", "minimum": 0, "maximum": LARGEST}


def schema_text() -> str:
    """Return the schema as JSON text, the same for the same installed components."""
    return json.dumps(manifest_schema(), indent=1, ensure_ascii=False) + "\n"


def manifest_schema() -> Schema:
    """Return the JSON Schema (2020-12) of a manifest.

    It checks a key at a time, names and ranges included. What depends on several keys, on the data or on the machine
    is for `lethe run` to refuse, and where Lethe also reads a number from quoted text, the schema wants the number.
    """
    from strategies.registry import METHODS

    methods = METHODS.names()
    values = {key: _value(key, schema) for key, schema in _declared().items() if key not in (*LIST_KEYS, "exclude")}
    settings = {key: _setting(key) for key in SETTINGS}
    return {
        "$schema": DIALECT,
        "title": "Lethe manifest",
        "description": "Experiments by name. Those whose name starts with '_' are there to be extended.",
        "type": "object",
        "not": {"propertyNames": {"pattern": "^_"}},
        "additionalProperties": {"$ref": "#/$defs/experiment"},
        "$defs": {
            "experiment": {
                "type": "object",
                "properties": {**_own(), **settings},
                "additionalProperties": False,
            },
            "exclusion": _exclusion(values, methods),
            "request": {"type": "string", "pattern": f"^{_SEQUENCE}$"},
            "method": {"enum": methods},
            "method-settings": {
                "type": "object",
                "properties": {name: {"$ref": f"#/$defs/method-{name}"} for name in methods},
                "additionalProperties": False,
            },
            "search": {
                "description": "methods, each with the settings that are searched",
                "type": "object",
                "properties": {name: _searched(name) for name in methods if name not in ALWAYS},
                "additionalProperties": False,
            },
            "range": _range(),
            **{f"value-{key}": schema for key, schema in values.items()},
            **{f"method-{name}": _method(name) for name in methods},
        },
    }


def _own() -> dict[str, Schema]:
    """Return the schemas of the keys that an experiment has for itself."""
    text: Schema = {"type": "string", "minLength": 1}
    name = {**text, "pattern": r"\S"}
    limits = {key: {"type": "number", "exclusiveMinimum": 0, "description": BUDGET_KEYS[key]} for key in BUDGET_KEYS}
    own: dict[str, Schema] = {
        "description": {"type": "string"},
        "extends": {"anyOf": [text, {"type": "array", "items": text, "uniqueItems": True}]},
        "tags": {"type": "array", "items": name},
        "report": {"type": "boolean"},
        "budget": {"type": "object", "properties": limits, "additionalProperties": False},
    }
    return {key: {"description": meaning, **own[key]} for key, meaning in OWN_KEYS.items()}


def _setting(key: str) -> Schema:
    """Return the schema of a setting in an experiment: lists make groups, or hold several values within one."""
    about = {"description": GroupSettings.describe(key), "default": GroupSettings.keys()[key]}
    if key == "methods":
        names = {"type": "array", "items": {"$ref": "#/$defs/method"}}
        return {**about, "anyOf": [names, {"$ref": "#/$defs/method-settings"}, _method_names()]}
    if key == "requests":
        one = {"$ref": "#/$defs/request"}
        sequence = {"type": "array", "items": one, "minItems": 1}
        texts = {"type": "string", "pattern": rf"^{_SEQUENCE}(;{_SEQUENCE})*$"}
        return {**about, "anyOf": [texts, {"type": "array", "items": {"anyOf": [one, sequence]}, "minItems": 1}]}
    if key in LIST_KEYS:
        text = {"type": "string", "pattern": f"^{_SEEDS}$"}
        return {**about, "anyOf": [_SEED, {"type": "array", "items": _SEED, "minItems": 1}, text]}
    if key == "exclude":
        return {**about, "type": "array", "items": {"$ref": "#/$defs/exclusion"}}
    return {**about, **_several({"$ref": f"#/$defs/value-{key}"})}


def _exclusion(values: Mapping[str, Schema], methods: Iterable[str]) -> Schema:
    settings = {
        key: {"description": GroupSettings.describe(key), **_several({"$ref": f"#/$defs/value-{key}"})}
        for key in values
        if key not in NOT_EXCLUDED_BY
    }
    request: Schema = {"$ref": "#/$defs/request"}
    sequence = {"type": "array", "items": request, "minItems": 1}
    several = {"type": "array", "items": {"anyOf": [request, sequence]}, "minItems": 1}
    cells = {
        "method": {
            "description": "methods whose cells are left out",
            **_several({"enum": [name for name in methods if name not in ALWAYS]}),
        },
        "request": {"description": "requests whose cells are left out", "anyOf": [request, several]},
    }
    assert set(cells) == set(CELL_KEYS)
    return {
        "description": "What is left out: groups with these settings, or, with a method or a request, cells of theirs.",
        "type": "object",
        "properties": {**cells, **settings},
        "minProperties": 1,
        "additionalProperties": False,
    }


def _declared() -> dict[str, Schema]:
    """Return what pydantic says of every setting a manifest may have."""
    properties: dict[str, Schema] = GroupSettings.model_json_schema(by_alias=True)["properties"]
    return {key: properties[key] for key in SETTINGS}


def _value(key: str, declared: Schema) -> Schema:
    """Return the schema of one value of a setting."""
    from clients.catalogue import MODELS, TASKS
    from partitions.catalogue import DATASETS, SPLITS

    names = {"dataset": DATASETS.names, "split": SPLITS.names, "task": TASKS.names, "model": MODELS.names}
    if key in names:
        return {"enum": names[key]()}
    if key == "precision":
        short = [*PRECISION_ALIASES, *(int(alias) for alias in PRECISION_ALIASES if alias.isdecimal())]
        return {"enum": [AUTO, *PRECISIONS, *short]}
    if key == "preset":
        return {"enum": _presets()}
    if key == "evaluator":
        return {"type": "string", "pattern": r"^(https?://\S+)?$"}
    if key == "search":
        return {"anyOf": [{"type": "string", "pattern": r"^(\s*\{.*\}\s*)?$"}, {"$ref": "#/$defs/search"}]}
    if key == "overrides":
        return {"anyOf": [{"type": "string", "pattern": r"^(\s*\{.*\}\s*)?$"}, {"$ref": "#/$defs/method-settings"}]}
    value = _plain(declared)
    if value.get("type") == "string" and "enum" not in value:
        value["type"] = ["string", "integer"]
    return value


def _presets() -> list[str]:
    from strategies.declaration import SHARED_PRESETS
    from strategies.registry import METHODS

    own = {preset for name in METHODS.names() for preset in METHODS.get(name).presets}
    return [*SHARED_PRESETS, *sorted(own - set(SHARED_PRESETS))]


def _method(name: str) -> Schema:
    """Return the schema of a method's settings; nothing (``ga:``) stands for none."""
    from strategies.registry import METHODS

    method = METHODS.get(name)
    declared = method.Config.model_json_schema(by_alias=True)
    about = {
        key: {part: schema[part] for part in ("description", "default") if part in schema}
        for key, schema in declared["properties"].items()
    }
    return {
        "description": f"{method.title}. {method.citation}",
        "type": ["object", "null"],
        "properties": {key: {**about[key], **_plain(schema)} for key, schema in declared["properties"].items()},
        "additionalProperties": False,
    }


def _searched(name: str) -> Schema:
    """Return the schema of what is searched of a method: of each setting some values, or a range."""
    from strategies.registry import METHODS

    declared = METHODS.get(name).Config.model_json_schema(by_alias=True)["properties"]
    return {
        "type": "object",
        "minProperties": 1,
        "properties": {
            key: {"anyOf": [{"type": "array", "items": _plain(schema), "minItems": 1}, {"$ref": "#/$defs/range"}]}
            for key, schema in declared.items()
        },
        "additionalProperties": False,
    }


def _range() -> Schema:
    number: Schema = {"type": "number"}
    parts = {"low": number, "high": number, "step": {**number, "exclusiveMinimum": 0}, "log": {"type": "boolean"}}
    return {"type": "object", "properties": parts, "required": ["low", "high"], "additionalProperties": False}


def _plain(declared: Schema) -> Schema:
    """Return a value's schema without what only describes it, and with what YAML gives for it."""
    schema = {key: part for key, part in declared.items() if key not in ("title", "description", "default")}
    if schema.get("type") == "boolean":
        return {"enum": [True, False, *TRUTHS]}
    if schema.get("type") == "integer":
        return {"maximum": LARGEST, **schema}
    return schema


def _several(one: Schema) -> Schema:
    return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}


def _method_names() -> Schema:
    """Return the schema of method names in one text, separated by commas."""
    from strategies.registry import METHODS

    name = rf"\s*({'|'.join(METHODS.names())})\s*"
    return {"type": "string", "pattern": f"^({name}(,{name})*)?$"}
