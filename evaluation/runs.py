"""Reading a run folder back: results, what was asked, and the recorded rounds of its trainings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.results import read_results
from partitions.errors import BadInput
from strategies.history import History

RECORD = "run.json"


@dataclass(frozen=True)
class Run:
    """A run folder.

    Attributes
    ----------
    path : Path
        The folder.
    """

    path: Path

    @cached_property
    def results(self) -> pd.DataFrame:
        """The results table (`read_results`)."""
        return read_results(self.path)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The contents of ``run.json``: environment, the settings of every group, and the cells."""
        found: dict[str, Any] = json.loads((self.path / RECORD).read_text(encoding="utf-8"))
        return found

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row a cell and checkpoint: cell, method, preset, request, train_seed, unlearn_seed, checkpoint, model."""
        keys = ("cell", "method", "preset", "request", "train_seed", "unlearn_seed")
        rows = [
            {key: cell[key] for key in keys} | {"checkpoint": name, "model": path}
            for cell in self.manifest["cells"]
            for name, path in cell["checkpoints"].items()
        ]
        return pd.DataFrame(rows, columns=[*keys, "checkpoint", "model"])

    def history(self, cell: str, checkpoint: str = "trained") -> History:
        """Return the recorded rounds behind a checkpoint; a training whose rounds were not kept has none.

        Raises
        ------
        BadInput
            When the run has no such cell and checkpoint.
        """
        found = self.cells[(self.cells["cell"] == cell) & (self.cells["checkpoint"] == checkpoint)]
        if found.empty:
            known = ", ".join(
                sorted({f"{c} {k}" for c, k in zip(self.cells["cell"], self.cells["checkpoint"], strict=True)})
            )
            raise BadInput("cell", f"{cell} {checkpoint}", f"one of {known}")
        return History(Path(found["model"].iloc[0]).parent / "history")

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """Every recorded round of every training: method, request, checkpoint, train_seed, round, site, examples, ...

        A training shared by several cells (the original) appears once.
        """
        frames = []
        for row in self.cells.drop_duplicates("model").to_dict("records"):
            frame = self.history(str(row["cell"]), str(row["checkpoint"])).frame()
            for name in ("train_seed", "checkpoint", "request", "method"):
                frame.insert(0, name, row[name])
            frames.append(frame)
        kept = [frame for frame in frames if len(frame)]
        return pd.concat(kept, ignore_index=True) if kept else pd.DataFrame(columns=["method", "round", "site"])


def open_run(path: Path | str) -> Run:
    """Open a run folder; raises `BadInput` when it is none."""
    folder = Path(path).expanduser()
    if not (folder / RECORD).is_file():
        raise BadInput("run", str(folder), f"a run folder with {RECORD}", "`lethe run` prints its path at the end")
    return Run(folder)
