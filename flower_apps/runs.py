"""The run folder: what was asked, on what it ran, which stages it stands on, and where every checkpoint lies."""

from __future__ import annotations

import json
import platform
import re
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock

from evaluation.files import write_text
from evaluation.record import PLACED
from evaluation.runs import RECORD, read_record
from flower_apps.places import run_name
from flower_apps.settings import GroupSettings
from flower_apps.stages import stage_key
from partitions.errors import BadInput

LIBRARIES = ("flwr", "ray", "torch", "torchvision", "numpy", "pandas", "scikit-learn", "lightning-fabric")


STAGES = "stages.txt"
"""The file of a run folder that names the stages it stands on."""
PLAN = "plan.json"
"""The file of a run folder with the plan of its last command; without it, none was made."""
ELSEWHERE = "elsewhere.txt"
"""The file below a home's ``runs`` that names run folders which lie elsewhere, a line each."""
KEPT = "kept"
"""The file of a folder below a home's ``reproductions`` whose stages are to stay."""
REMEDY = "put it right: a run folder a line"
"""What to do where the list of those is damaged."""
MANIFEST = "experiments.yaml"
"""The copy of its manifest in a run folder."""
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
    def fresh_since(self) -> float:
        """From when on stages count for a run that computes everything again; a resumed one goes on from there."""
        record = self.record()
        return float((record.get("command") or {}).get("fresh_since") or record["created"])

    def events_path(self, group: str) -> Path:
        """Return the event file of one group."""
        return self.path / "events" / f"{group}.jsonl"

    def record(self) -> dict[str, Any]:
        """Return the contents of ``run.json``."""
        return read_record(self.path)

    def begin(
        self, command: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]], *, resumed: bool = False
    ) -> None:
        """Keep what a command is about to do, all of it before any of it is done: `lethe resume` needs nothing else.

        Parameters
        ----------
        command : mapping
            What was asked and which process does it (`evaluation.record`), but for ``groups`` and ``fresh_since``.
        groups : mapping of str to mapping
            The flat settings of every group by its id, in their order.
        resumed : bool
            Whether it goes on with the command before it: what that has computed anew, even all of it, counts.
        """
        now = time.time()
        with self._lock:
            record = self.record()
            fresh = {"fresh_since": _fresh_since(record, now, resumed)} if command.get("fresh") else {}
            record["command"] = {**command, **fresh, "groups": list(groups)}
            record["groups"] |= {group: dict(settings) for group, settings in groups.items()}
            record |= {"started": now, "ended": None, "status": "running", "exit_code": None}
            record |= {"failures": [], "outcomes": {}, "doing": ""}
            self._write(record)

    def keep_data(self, group: str, dataset: str, fingerprint: str) -> None:
        """Keep which data a group computes on; raises `BadInput` when it has begun on others."""
        with self._lock:
            record = self.record()
            known = record.setdefault("data", {})
            if known.get(group, fingerprint) != fingerprint:
                allowed = f"the data that {self.path.name} was begun on ({known[group][:12]}), not others"
                remedy = f"put the old files of {dataset} back, or start anew with another --out"
                raise BadInput("dataset", f"{dataset} {fingerprint[:12]}", allowed, remedy)
            known[group] = fingerprint
            self._write(record)

    def end_group(self, group: str, status: str, reason: str = "", log: str = "") -> None:
        """Keep how a group ended: ``completed``, or ``failed`` with its reason and its log."""
        with self._lock:
            record = self.record()
            outcome = {"status": status, "reason": reason, "log": log, "ended": time.time()}
            record.setdefault("outcomes", {})[group] = outcome
            self._write(record)

    def doing(self, what: str) -> None:
        """Keep what the command does beside its groups, in a few words, for who asks how it is."""
        with self._lock:
            self._write({**self.record(), "doing": what})

    def end(self, status: str, exit_code: int, failures: Sequence[str]) -> None:
        """Keep how the command ended."""
        with self._lock:
            record = self.record()
            record |= {"ended": time.time(), "status": status, "exit_code": exit_code, "failures": list(failures)}
            record["doing"] = ""
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
        write_text(self._file, json.dumps(record, indent=1, sort_keys=True))


def _fresh_since(record: Mapping[str, Any], now: float, resumed: bool) -> float:
    """Return from when on stages count for a command that computes all again, given what the folder held before."""
    before = record.get("command")
    if before is None:
        return now if record["cells"] else float(record["created"])
    since = before.get("fresh_since")
    return float(since) if since and (resumed or record["status"] != "completed") else now


def stages_of(folder: Path) -> set[str]:
    """Return the stages that a run stands on, each as ``kind/key``; raises `BadInput` when its list is damaged."""
    remedy = f"move it away, then `lethe resume {run_name(folder)}` names its stages again"
    return {word for line in _lines(folder / STAGES, remedy) for word in line.split() if STAGE_LINE.fullmatch(word)}


def name_run(home: Path, folder: Path) -> None:
    """Keep where a run folder is that lies elsewhere than below the home's ``runs``: its stages are in use, too."""
    place, line = home / "runs" / ELSEWHERE, str(folder.resolve())
    if folder.resolve().parent == place.parent.resolve() or line in _lines(place, REMEDY):
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(place.with_suffix(".lock")):
        write_text(place, "".join(f"{one}\n" for one in [*_lines(place, REMEDY), line]))


def run_folders(home: Path, say: Callable[[str], None] = lambda text: None) -> list[Path]:
    """Return every run folder that works with a home: those below its ``runs``, and the named ones elsewhere.

    Parameters
    ----------
    home : Path
        LETHE_HOME.
    say : callable
        Gets what is damaged in the list of those elsewhere; that is skipped.
    """
    found = sorted(path.parent for path in (home / "runs").glob(f"*/{RECORD}"))
    place = home / "runs" / ELSEWHERE
    try:
        lines = _lines(place, REMEDY)
    except BadInput as error:
        say(str(error))
        return found
    for line in filter(None, lines):
        try:
            if (Path(line) / RECORD).is_file():
                found.append(Path(line))
        except PermissionError:  # whoever reads it says so
            found.append(Path(line))
        except OSError as error:
            say(f"{place} has a line that can be no folder ({error.strerror}): {line[:40]}...; {REMEDY}")
    return found


def _lines(path: Path, remedy: str) -> list[str]:
    """Return the lines of a file, each once; none where there is no file. Raises `BadInput` when it is damaged."""
    try:
        return list(dict.fromkeys(path.read_text(encoding="utf-8").splitlines()))
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is damaged: no text"
        raise BadInput("run", str(path), f"a text file one can read ({why})", remedy) from None


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
