"""Run folders made by hand, for tests of what is said of them and done with them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from flower_apps.process_mark import ProcessMark

HERE = ProcessMark.here().to_json()
GONE = {**HERE, "process_started": "1"}
AWAY = {**HERE, "host": "elsewhere"}
SETTINGS = {"name": "small", "dataset": "digits", "timeout": 100.0}
CELL = {"cell": "c", "method": "ga", "preset": "", "request": "class:1", "train_seed": 0, "unlearn_seed": 0}


def make_run(
    home: Path,
    name: str = "run",
    *,
    status: str = "completed",
    by: dict[str, Any] | None = None,
    cells: bool = True,
    stages: tuple[str, ...] = (),
    started: float | None = None,
    checkpoints: dict[str, str] | None = None,
    **more: Any,
) -> Path:
    """Make a run folder with the record that a command of that status leaves; status empty: of an older version."""
    folder = home / "runs" / name
    folder.mkdir(parents=True)
    begun = time.time() - 60.0 if started is None else started
    record: dict[str, Any] = {"created": begun, "groups": {"aaaa11112222": SETTINGS}}
    record["cells"] = [{**CELL, "checkpoints": checkpoints or {}}] if cells else []
    if status:
        command = {"via": "lethe run", "jobs": 1, "groups": ["aaaa11112222"], "experiments": ["small"], **(by or HERE)}
        record |= {"command": command, "started": begun, "status": status, "failures": [], "outcomes": {}}
        record |= {"ended": None if status == "running" else begun + 30.0, "exit_code": None}
    (folder / "run.json").write_text(json.dumps(record | more))
    (folder / "stages.txt").write_text("".join(f"{line}\n" for line in stages))
    return folder


def make_events(folder: Path, *events: dict[str, Any], group: str = "aaaa11112222") -> None:
    """Append to a group's event file; an event without a time is of now."""
    path = folder / "events" / f"{group}.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps({"time": time.time(), **event}) + "\n" for event in events)


def make_stage(home: Path, kind: str = "train", key: str = "a" * 24, **parts: Any) -> Path:
    """Make a complete stage of 1000 bytes."""
    folder = home / "stages" / kind / key
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x" * 1000)
    (folder / "stage.json").write_text(json.dumps({"kind": kind, "key": key, "parts": parts}))
    return folder
