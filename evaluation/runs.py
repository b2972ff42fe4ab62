"""Reading a run folder back: results, what was asked, and the recorded rounds of its trainings."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.curves import read_curves
from evaluation.files import is_file, read_bytes
from evaluation.record import damaged, parse_record
from evaluation.results import read_results
from evaluation.trials import read_trials
from partitions.errors import BadInput
from strategies.history import History

RECORD = "run.json"
ROUNDS = ("cell", "method", "request", "checkpoint", "train_seed")
"""Which training a round is of."""


@dataclass(frozen=True)
class Run:
    """A run folder.

    Attributes
    ----------
    path : Path
        The folder.
    """

    path: Path

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.path.name

    @cached_property
    def results(self) -> pd.DataFrame:
        """The results table (`read_results`)."""
        return read_results(self.path)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """The points of its curves (`read_curves`)."""
        return read_curves(self.path)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """Every trial of its hyper-parameter searches (`read_trials`); without rows where nothing was searched."""
        return read_trials(self.path)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The contents of ``run.json``: environment, the settings of every group, and the cells."""
        return read_record(self.path)

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
        """Every recorded round of every training: cell, method, request, checkpoint, train_seed, round, site, ...

        A training shared by several cells (the original) appears once; rounds that may not be read are left out.
        """
        frames = []
        for row in self.cells.drop_duplicates("model").to_dict("records"):
            try:
                frame = self.history(str(row["cell"]), str(row["checkpoint"])).frame()
            except OSError:
                continue
            if len(frame):
                frames.append(
                    pd.concat([pd.DataFrame({name: row[name] for name in ROUNDS}, frame.index), frame], axis=1)
                )
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=[*ROUNDS, "round", "site"])


def open_run(run: Path | str, home: Path | str | None = None) -> Run:
    """Open a run: a run folder, the name of one below the home's ``runs``, or ``"latest"``.

    Parameters
    ----------
    run : Path or str
        Which; "latest" is the newest with a finished cell.
    home : Path, str or None
        LETHE_HOME; None takes the environment's, else ``~/.lethe``.

    Raises
    ------
    BadInput
        When there is no such run, naming the newest ones.
    """
    return Run(find_run(run, home))


def find_run(run: Path | str, home: Path | str | None = None) -> Path:
    """Return the folder of a run; arguments and errors as in `open_run`."""
    runs = Path(home or os.environ.get("LETHE_HOME", "") or "~/.lethe").expanduser() / "runs"
    known = sorted((path.parent for path in runs.glob(f"*/{RECORD}")), reverse=True)
    if str(run) == "latest":
        known = [folder for folder in known if _has_cells(folder)]
        if known:
            return known[0]
        raise BadInput(
            "run", str(run), f"a run with a finished cell below {runs}, and there is none", "see `lethe run`"
        )
    for folder in (Path(run).expanduser(), runs / run):
        if is_file(folder / RECORD):
            return folder.resolve()
    newest = ", ".join(path.name for path in known[:5]) or "none yet"
    raise BadInput("run", str(run), f"a run folder or a name below {runs} (newest: {newest})", "see `lethe run`")


def read_record(folder: Path) -> dict[str, Any]:
    """Return the contents of a run folder's ``run.json``, checked as a whole (`evaluation.record`).

    Raises
    ------
    BadInput
        When it cannot be read, or is damaged.
    """
    path = folder / RECORD
    content = read_bytes(path, "run")
    try:
        return parse_record(content)
    except ValueError as error:
        raise damaged(path, error) from None


def _has_cells(folder: Path) -> bool:
    try:
        return bool(read_record(folder)["cells"])
    except BadInput:
        return False
