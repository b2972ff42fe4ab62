"""What a run's record (``run.json``) holds, and one check of all of it: whoever has a record may rely on its shape."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from partitions.errors import BadInput

DEEPEST = 12
"""Levels of lists and objects in a record; a real one has five."""
LATEST = 1e11
"""Seconds since the epoch that a calendar still has: the year 5138."""

PLACED = (
    "home",
    "out",
    "depot",
    "workers",
    "gpu-share",
    "jobs",
    "lane",
    "evaluator",
    "track",
    "timeout",
    "fresh",
    "keep-histories",
)
"""Settings that tell where and how fast a run went, not what it computed."""

Scalar = str | int | float | bool | None
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Amount = Annotated[int, Field(ge=0, lt=2**63)]
Moment = Annotated[float, Field(ge=0, lt=LATEST, allow_inf_nan=False)]
"""Seconds since the epoch."""


class _Part(BaseModel):
    """Part of a record; keys beyond those named are kept."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Environment(_Part):
    host: str = ""
    platform: str = ""
    python: str = ""
    commit: str = ""
    cpus: Amount | None = None
    memory_bytes: Amount | None = None
    libraries: dict[str, str] = {}


class _Difficulty(_Part):
    level: str
    reason: str


class _Cell(_Part):
    cell: str
    method: str
    preset: str
    request: str
    train_seed: Seed
    unlearn_seed: Seed
    checkpoints: dict[str, str]
    status: str = "ok"
    settings: dict[str, Scalar] = {}
    config: dict[str, Any] = {}
    difficulty: _Difficulty | dict[str, Any] = Field(default={}, union_mode="left_to_right")


class _Command(_Part):
    """What a run was asked for, and the process that does it: all that `lethe resume` needs beside the groups."""

    via: str = ""
    groups: list[str] = []
    experiments: list[str] = []
    manifest: str = ""
    sets: list[str] = []
    jobs: Amount | None = None
    workers: Amount | None = None
    gpus: Amount | None = None
    evaluator: str = ""
    report: bool = False
    fresh: bool = False
    fresh_since: Moment | None = None
    host: str = ""
    boot: str = ""
    pid: Amount | None = None
    process_started: str = ""


class _Outcome(_Part):
    """How a group ended."""

    status: str
    reason: str = ""
    log: str = ""
    ended: Moment | None = None


class _Record(_Part):
    created: Moment
    environment: _Environment = _Environment()
    groups: dict[str, dict[str, Scalar]] = {}
    cells: list[_Cell]
    # since runs say how they ended; older ones lack these
    command: _Command | None = None
    data: dict[str, str] = {}
    started: Moment | None = None
    ended: Moment | None = None
    status: Literal["", "running", "completed", "failed", "stopped", "refused"] = ""
    exit_code: int | None = None
    failures: list[str] = []
    outcomes: dict[str, _Outcome] = {}
    doing: str = ""


def parse_record(content: str | bytes) -> dict[str, Any]:
    """Return the record in the contents of a file, as it stands there; what may be left out is there and empty.

    Raises
    ------
    ValueError
        With the first thing that is wrong, in one line.
    """
    try:
        found = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is no JSON: {error}") from None
    return check_record(found)


def check_record(found: Any) -> dict[str, Any]:
    """As `parse_record`, of what was read from JSON."""
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    if too_deep(found, DEEPEST):
        raise ValueError("it is nested too deeply")
    try:
        json.dumps(found, ensure_ascii=False).encode()
        parsed = _Record.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"[:300]) from None
    except UnicodeEncodeError:
        raise ValueError("it has lone surrogates") from None
    except OverflowError:
        raise ValueError("it has a number that is too large") from None
    for number, cell in enumerate(parsed.cells):
        if isinstance(cell.difficulty, dict) and cell.difficulty:
            raise ValueError(f"cells.{number}.difficulty: it has no level and reason")
    cells = [{"status": "ok", "settings": {}, "config": {}, **cell} for cell in found["cells"]]
    return {"environment": {}, "groups": {}, **found, "cells": cells}


def damaged(path: object, error: ValueError) -> BadInput:
    """Make the error for a record that is none."""
    return BadInput("run", str(path), "the record of a run", f"it is damaged ({error}): run again with another --out")


def too_deep(found: Any, deepest: int) -> bool:
    """Tell whether lists and objects are inside each other in more than `deepest` levels, without recursion."""
    level, depth = [found], 0
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        if depth > deepest:
            return True
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return False
