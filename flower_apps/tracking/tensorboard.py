"""TensorBoard: event files below the run folder, ``tensorboard/rounds`` by stage and ``tensorboard/cells`` by cell."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_apps.tracking.base import CellPoint, RoundPoint, RunFacts

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

FOLDER = "tensorboard"


class TensorBoard:
    """See `flower_apps.tracking.base.Writer`."""

    name = "tensorboard"
    packages = ("tensorboard",)
    requirement = "tensorboard"

    def open(self, run: RunFacts) -> TensorBoardSession:
        """See `Writer.open`."""
        return TensorBoardSession(run.path / FOLDER, run.created)


class TensorBoardSession:
    """Writes scalars; what the files have already is asked of the files.

    Parameters
    ----------
    folder : Path
        Made when there is something to write.
    created : float
        Time of the cells' points, seconds since the epoch.
    """

    def __init__(self, folder: Path, created: float) -> None:
        self._folder, self._created = folder, created
        self._writers: dict[str, SummaryWriter] = {}
        self._written: dict[str, set[tuple[str, int]]] = {}

    def rounds(self, points: Sequence[RoundPoint]) -> None:
        """See `Session.rounds`: one scalar a value and round, in the folder of the stage."""
        used = {point.name for point in points}
        for name in [name for name in self._writers if name not in used]:
            self._writers.pop(name).close()
        for point in points:
            folder = self._folder / "rounds" / point.name
            if point.name not in self._written:
                self._written[point.name] = set(scalars(folder))
            for tag, value in point.values.items():
                if (tag, point.round) in self._written[point.name]:
                    continue
                self._written[point.name].add((tag, point.round))
                self._writer(point.name, folder).add_scalar(tag, value, point.round, point.time)
        for writer in self._writers.values():
            writer.flush()

    def cell(self, point: CellPoint) -> None:
        """See `Session.cell`: ``checkpoint/metric`` by evaluation seed, and the settings as hyper-parameters."""
        from torch.utils.tensorboard import summary

        folder = self._folder / "cells" / point.name
        wanted = {key: float(np.float32(value)) for key, value in point.values.items()}
        if folder.exists():
            if scalars(folder) == wanted:
                return
            shutil.rmtree(folder)  # half written, or of a computation that another has replaced
        writer: Any = self._open(folder)
        given = {**point.settings, **{f"{point.method}.{key}": value for key, value in point.config.items()}}
        about = {"method": point.method, "request": point.request, "status": point.status}
        make: Callable[..., Iterable[Any]] = summary.hparams
        for part in make({**about, **given}, dict.fromkeys(sorted({tag for tag, _ in wanted}), 0)):
            writer.file_writer.add_summary(part)
        for (tag, seed), value in sorted(point.values.items()):
            writer.add_scalar(tag, value, seed, self._created)
        writer.close()

    def close(self) -> None:
        """See `Session.close`."""
        while self._writers:
            self._writers.popitem()[1].close()

    def _writer(self, name: str, folder: Path) -> SummaryWriter:
        if name not in self._writers:
            self._writers[name] = self._open(folder)
        return self._writers[name]

    def _open(self, folder: Path) -> SummaryWriter:
        from torch.utils.tensorboard.writer import SummaryWriter

        return SummaryWriter(str(folder))


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    """Return every scalar that the event files of a folder hold: tag and step to value; empty without a file."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not folder.is_dir():
        return {}
    read = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    read.Reload()
    return {(tag, event.step): event.value for tag in read.Tags()["scalars"] for event in read.Scalars(tag)}


WRITER = TensorBoard()
