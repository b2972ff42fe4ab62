"""Refuses the record of a run (``run.json``) that no page could show; one may say less than a run folder's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from evaluation.record import LATEST, too_deep
from partitions.errors import BadInput

DEEPEST = 50
"""How deep lists and objects of a record may be nested."""


def check_record(record: Mapping[str, Any]) -> None:
    """Raise `BadInput` at the first field of a record that has not the shape of a run folder's."""
    if too_deep(record, DEEPEST):
        raise BadInput("record", "(not shown)", f"at most {DEEPEST} lists and objects inside each other")
    if not _is_utf8(json.dumps(record, ensure_ascii=False)):
        raise BadInput("record", "(not shown)", "text without lone surrogates")
    created = record.get("created")
    if isinstance(created, bool) or not isinstance(created, int | float) or not 0 <= created < LATEST:
        raise BadInput("record.created", created, "seconds since the epoch")
    _need(record, "record", "groups", dict)
    _need(record, "record", "cells", list)
    if "environment" in record:
        _need(record, "record", "environment", dict)
    for name in record["groups"]:
        group = _need(record["groups"], "record.groups", name, dict)
        if "name" in group:
            _need(group, f"record.groups.{name}", "name", str)
    for number, cell in enumerate(record["cells"]):
        _check_cell(f"record.cells.{number}", cell)


def _check_cell(field: str, cell: Any) -> None:
    if not isinstance(cell, dict):
        raise BadInput(field, type(cell).__name__, "an object")
    for name in ("cell", "method"):
        _need(cell, field, name, str)
    for name, kinds in _CELL.items():
        if name in cell and not isinstance(cell[name], kinds):
            raise BadInput(f"{field}.{name}", type(cell[name]).__name__, " or ".join(_WORDS[kind] for kind in kinds))
    checkpoints = _need(cell, field, "checkpoints", dict)
    for name in checkpoints:
        _need(checkpoints, f"{field}.checkpoints", name, str)


_CELL: dict[str, tuple[type, ...]] = {
    "preset": (str,),
    "request": (str,),
    "train_seed": (int, type(None)),
    "unlearn_seed": (int, type(None)),
    "settings": (dict,),
}
_WORDS: dict[type, str] = {dict: "an object", list: "a list", str: "text", int: "a whole number", type(None): "null"}


def _need(holder: Mapping[str, Any], field: str, name: str, kind: type) -> Any:
    found = holder.get(name)
    if not isinstance(found, kind):
        raise BadInput(f"{field}.{name}", type(found).__name__ if name in holder else "missing", _WORDS[kind])
    return found


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
