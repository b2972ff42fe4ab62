"""The run folder: what was asked, on what it ran, which stages it stands on, and where every checkpoint lies."""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import subprocess
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock

from evaluation.record import PLACED
from evaluation.runs import RECORD, read_record
from flower_apps.settings import GroupSettings
from flower_apps.stages import stage_key

LIBRARIES = ("flwr", "ray", "torch", "torchvision", "numpy", "pandas", "scikit-learn", "lightning-fabric")


STAGES = "stages.txt"
"""The file of a run folder that names the stages it stands on."""
STAGE_LINE = re.compile(r"[a-z]+/[0-9a-f]{24}")

ROOT = Path(__file__).resolve().parent.parent
"""Where the code runs from: a checkout, an installed package, or the copy that Flower made of the app."""


class RunFolder:
    """A run folder, shared by the groups of one command.

    Parameters
    ----------
    path : Path
        Created when it is not there. A folder of an earlier run is continued.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stages: set[str] | None = None
        path.mkdir(parents=True, exist_ok=True)
        with self._lock:
            if not self._file.exists():
                self._write({"created": time.time(), "environment": environment(), "groups": {}, "cells": []})

    @property
    def created(self) -> float:
        """When the run was first started, in seconds since the epoch."""
        return float(self.record()["created"])

    def events_path(self, group: str) -> Path:
        """Return the event file of one group."""
        return self.path / "events" / f"{group}.jsonl"

    def record(self) -> dict[str, Any]:
        """Return the contents of ``run.json``."""
        return read_record(self.path)

    def add_group(self, group: str, settings: Mapping[str, Any]) -> None:
        """Keep the flat settings of a group."""
        with self._lock:
            record = self.record()
            record["groups"][group] = dict(settings)
            self._write(record)

    def add_cell(self, cell: Mapping[str, Any]) -> None:
        """Keep where a cell's checkpoints lie; a cell of the same id is replaced."""
        with self._lock:
            record = self.record()
            record["cells"] = [c for c in record["cells"] if c["cell"] != cell["cell"]] + [dict(cell)]
            self._write(record)

    def add_stage(self, kind: str, key: str) -> None:
        """Keep that the run stands on a stage, in ``stages.txt``: a line ``kind/key`` for each, in order of first use.

        While the run folder is there, `lethe clean` leaves its stages alone.
        """
        line = f"{kind}/{key}"
        if self._stages is None:
            self._stages = stages_of(self.path)
        if line not in self._stages:
            self._stages.add(line)
            with (self.path / STAGES).open("a", encoding="utf-8") as file:
                file.write(f"\n{line}\n")  # the blank line ends one that a killed process left unfinished

    @property
    def _file(self) -> Path:
        return self.path / RECORD

    @property
    def _lock(self) -> FileLock:
        return FileLock(self.path / ".run.lock")

    def _write(self, record: Mapping[str, Any]) -> None:
        temporary = self._file.with_suffix(".tmp")
        with temporary.open("w") as handle:
            json.dump(record, handle, indent=1, sort_keys=True)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(self._file)


def stages_of(folder: Path) -> set[str]:
    """Return the stages that a run stands on, each as ``kind/key``."""
    try:
        text = (folder / STAGES).read_text(encoding="utf-8")
    except FileNotFoundError:
        return set()
    return {line for line in text.split() if STAGE_LINE.fullmatch(line)}


def group_id(settings: GroupSettings) -> str:
    """Return a short id of what a group computes; where and how fast it does so is left out."""
    flat = {key: value for key, value in settings.to_run_config().items() if key not in PLACED}
    return stage_key(flat)[:12]


def environment() -> dict[str, Any]:
    """Return host, hardware, library versions and, in a checkout, the commit."""
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpus": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "libraries": {name: version(name) for name in LIBRARIES},
        "source": str(ROOT),
        "commit": _commit(ROOT),
    }


def _commit(checkout: Path) -> str:
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            cwd=checkout,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()
