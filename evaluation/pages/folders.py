"""Run folders below a Lethe home as a source of runs."""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from evaluation.curves import FILE as CURVES
from evaluation.files import is_file
from evaluation.report.sections import slug
from evaluation.results import FILE as RESULTS
from evaluation.runs import RECORD, Run, read_record
from evaluation.service.sources import RunInfo
from evaluation.trials import FILE as TRIALS
from partitions.errors import BadInput

KEPT = 8
"""Opened runs kept in memory, with their tables."""

Stamp = tuple[tuple[int, ...], ...]


class FolderRuns:
    """The run folders below ``LETHE_HOME/runs``. Nothing outside of it is ever opened, whatever is asked for.

    Parameters
    ----------
    home : Path, str or None
        LETHE_HOME; None takes the environment's, else ``~/.lethe``.
    """

    def __init__(self, home: Path | str | None = None) -> None:
        self._runs = Path(home or os.environ.get("LETHE_HOME", "") or "~/.lethe").expanduser() / "runs"
        self._lock = threading.Lock()
        self._told: dict[Path, tuple[Stamp, RunInfo]] = {}
        self._open: OrderedDict[Path, tuple[Stamp, Run]] = OrderedDict()

    def runs(self) -> list[RunInfo]:
        """Return the runs, newest first; a folder whose record is damaged is one of them and says so."""
        found = [self._info(folder) for folder in self._folders()]
        return sorted(found, key=lambda info: -math.inf if math.isnan(info.created) else info.created, reverse=True)

    def open(self, id: str) -> Run:
        """Return a run: the same object while its files stay as they are.

        Raises
        ------
        BadInput
            When there is none of that id.
        """
        folder = next((folder for folder in self._folders() if _id(folder) == id), None)
        if folder is None:
            raise BadInput("run", id, f"a run below {self._runs.name}/", "see the list of runs")
        stamp = _stamp(folder)
        with self._lock:
            if folder not in self._open or self._open[folder][0] != stamp:
                self._open[folder] = stamp, Run(folder)
            self._open.move_to_end(folder)
            while len(self._open) > KEPT:
                self._open.popitem(last=False)
            return self._open[folder][1]

    def _folders(self) -> Iterator[Path]:
        """Yield every folder with a record; links that lead out of the home are not followed."""
        try:
            with os.scandir(self._runs) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return
        yield from (self._runs / name for name in names if is_file(self._runs / name / RECORD))

    def _info(self, folder: Path) -> RunInfo:
        stamp = _stamp(folder)
        with self._lock:
            known = self._told.get(folder)
        if known is None or known[0] != stamp:
            known = stamp, _read_info(folder)
            with self._lock:
                self._told[folder] = known
        return known[1]


def _id(folder: Path) -> str:
    """Return the folder's name where it can stand in an address, else something like it that is as unique."""
    name = folder.name
    plain = slug(name)
    return name if name.lower() == plain else f"{plain}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:8]}"


def _stamp(folder: Path) -> Stamp:
    """Return what changes whenever a file of the run is written, or who may read it: its times and size."""
    found: list[tuple[int, ...]] = []
    for name in (RECORD, RESULTS, CURVES, TRIALS):
        try:
            state = (folder / name).stat()
            found.append((state.st_mtime_ns, state.st_ctime_ns, state.st_size))
        except OSError:
            found.append(())
    return tuple(found)


def _read_info(folder: Path) -> RunInfo:
    name = os.fsencode(folder.name).decode(errors="replace")
    try:
        record = read_record(folder)
    except BadInput:
        return RunInfo(_id(folder), name, math.nan, (), 0, "damaged")
    cells: list[dict[str, Any]] = record["cells"]
    settings = [cell["settings"] for cell in cells]
    return RunInfo(
        id=_id(folder),
        name=name,
        created=float(record["created"]),
        experiments=_distinct(one.get("name") for one in settings),
        models=sum(len(cell["checkpoints"]) for cell in cells),
        status="done" if is_file(folder / RESULTS) else "empty",
        datasets=_distinct(one.get("dataset") for one in settings),
        requests=_distinct(cell["request"] for cell in cells),
        methods=_distinct(cell["method"] for cell in cells),
    )


def _distinct(names: Iterable[object]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(name) for name in names if name))
