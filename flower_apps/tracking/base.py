"""What a tracking writer is told. A module of this package takes part by binding ``WRITER``."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flower_apps.places import file_name
from partitions.errors import BadInput
from partitions.registry import Registry


@dataclass(frozen=True)
class RunFacts:
    """What a run is.

    Attributes
    ----------
    id : str
        16 hex digits: the same for every command that continues the run, another for every other run.
    path : Path
        The run folder.
    created : float
        Seconds since the epoch.
    tags : mapping of str to str
        Experiments, run folder, git commit, host and library versions.
    """

    id: str
    path: Path
    created: float
    tags: Mapping[str, str]


@dataclass(frozen=True)
class RoundPoint:
    """One finished round of a training, an unlearning step or a recovery.

    Attributes
    ----------
    stage, label, key : str
        Kind of the stage (``train``, ``retrain``, ``unlearn``, ``recover``), how progress names it, its cache key.
    round : int
        From 1.
    time : float
        When it ended, seconds since the epoch.
    values : mapping of str to float
        Whichever are known and finite of ``loss``, ``metric``, ``seconds`` (wall time), ``client_seconds``,
        ``examples``, ``bytes_down`` and ``bytes_up``.
    """

    stage: str
    label: str
    key: str
    round: int
    time: float
    values: Mapping[str, float]

    @property
    def name(self) -> str:
        """The stage as part of a file's name, the same whichever run tells of it."""
        return f"{file_name(self.label)}-{self.key[:8]}"


@dataclass(frozen=True)
class CellPoint:
    """A cell with its results.

    Attributes
    ----------
    cell, method, request, status : str
        As in the run's record; status is ``ok``, ``diverged`` or ``not_applicable``.
    settings, config : mapping
        The flat settings, and the method's own.
    values : mapping of (str, int) to float
        ``checkpoint/metric`` and evaluation seed to every finite value of the panel.
    tags : mapping of str to str
        Preset, seeds, and what holds for the whole run.
    """

    cell: str
    method: str
    request: str
    status: str
    settings: Mapping[str, str | int | float | bool]
    config: Mapping[str, str | int | float | bool]
    values: Mapping[tuple[str, int], float]
    tags: Mapping[str, str]

    @property
    def name(self) -> str:
        """The cell as part of a file's name."""
        return f"{file_name(f'{self.method} {self.request}')}-{self.cell}"


class Session(Protocol):
    """One run as one tool sees it. What was written before, by an earlier command too, is not written again."""

    def rounds(self, points: Sequence[RoundPoint]) -> None:
        """Take finished rounds."""

    def cell(self, point: CellPoint) -> None:
        """Take a cell; one that was written with other values is replaced."""

    def close(self) -> None:
        """Write what is not written yet, and let go of files and connections."""


class Writer(Protocol):
    """A tool that runs can be followed in.

    Attributes
    ----------
    name : str
        In the setting ``track``.
    packages : tuple of str
        Modules that must be there.
    requirement : str
        What ``pip install`` has to be given when they are not.
    """

    name: str
    packages: tuple[str, ...]
    requirement: str

    def open(self, run: RunFacts) -> Session:
        """Begin, or go on, writing about a run."""


WRITERS: Registry[Writer] = Registry("track", "flower_apps.tracking", "WRITER", "lethe.trackers")
"""This package's writers and those of the entry-point group ``lethe.trackers``."""


def check_tracking(names: Sequence[str]) -> None:
    """Refuse an unknown writer, and one whose package is not installed; raises `BadInput` with what to do."""
    for name in names:
        writer = WRITERS.get(name)
        missing = [package for package in writer.packages if importlib.util.find_spec(package) is None]
        if missing:
            allowed = f"a tool that is installed ({', '.join(missing)} is not)"
            raise BadInput("track", name, allowed, f"pip install {writer.requirement}")
