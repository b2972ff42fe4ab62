"""Reading a run folder back: results, what was asked, and the recorded rounds of its trainings."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import nn

from evaluation.costs import costs
from evaluation.curves import read_curves
from evaluation.files import is_file, read_bytes
from evaluation.record import damaged, parse_record
from evaluation.results import read_results
from evaluation.rounds import RunHistory
from evaluation.trials import read_trials
from partitions.errors import BadInput, unknown_name
from partitions.registry import Registry
from unlearning.state import State

RECORD = "run.json"
ROUNDS = ("cell", "method", "request", "checkpoint", "train_seed")
"""Which training a round is of."""


CHECKPOINTS = ("trained", "unlearned", "recovered")
"""In the order in which a cell has them."""


class Builder(Protocol):
    """What a task family can do for whoever reads a run: make its network."""

    def build(self, model_name: str, data_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Return a network with random weights."""


TASKS: Registry[Builder] = Registry("task", "clients.tasks", "TASK", "lethe.tasks")
"""Task families by name: only those that a model is asked of are loaded."""


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

    @cached_property
    def costs(self) -> pd.DataFrame:
        """What every checkpoint cost, how that was measured, and whether this run computed it (`evaluation.costs`)."""
        return costs(self.cells, self.results, float(self.manifest["created"]))

    def history(self, cell: str, checkpoint: str = "") -> RunHistory:
        """Return the recorded rounds behind a checkpoint; a training whose rounds were not kept has none.

        Parameters
        ----------
        cell : str
            Its id, or a method that has one cell only in this run; one that has several with the same training, as
            the original has, is that too.
        checkpoint : str
            ``trained``, ``unlearned`` or ``recovered``; empty: the cell's first.

        Raises
        ------
        BadInput
            When the run has no such cell and checkpoint.
        """
        found = self._checkpoint(cell, checkpoint, first=True)
        about = f"{found['method']} {found['checkpoint']}"
        return RunHistory(Path(found["model"]).parent / "history", about, partial(self._module, found["cell"]))

    def state(self, cell: str, checkpoint: str = "") -> State:
        """Return the state of a checkpoint, by default the cell's last.

        Raises
        ------
        BadInput
            When the run has no such cell and checkpoint, or its file is gone or cannot be read.
        """
        return read_state(self._checkpoint(cell, checkpoint, first=False)["model"])

    def model(self, cell: str, checkpoint: str = "") -> nn.Module:
        """Return the network of a checkpoint, by default the cell's last, in evaluation mode on the CPU.

        The task of the cell's settings builds it (`clients.tasks`, or a third-party one), so that it takes what
        ``TASKS.get(task).to_inputs`` makes of records. Arguments and errors as of `state`.
        """
        state = self.state(cell, checkpoint)
        return self._module(str(self._checkpoint(cell, checkpoint, first=False)["cell"]), state)

    def _checkpoint(self, cell: str, checkpoint: str, *, first: bool) -> dict[str, str]:
        cells = self.cells
        rows = cells[(cells["cell"] == cell) | (cells["method"] == cell)]
        if checkpoint:
            rows = rows[rows["checkpoint"] == checkpoint]
        if rows.empty:
            known = {*cells["method"], *cells["cell"]} if cell not in {*cells["method"], *cells["cell"]} else set()
            if known:
                raise unknown_name("cell", cell, sorted(known))
            own = cells[(cells["cell"] == cell) | (cells["method"] == cell)]["checkpoint"]
            raise unknown_name("checkpoint", checkpoint, list(dict.fromkeys(own)))
        if rows.groupby("cell")["model"].agg(tuple).nunique() > 1:
            one = rows.drop_duplicates("cell")
            each = [
                f"{row['cell']} ({row['request']}, {row['preset']}, seeds {row['train_seed']} and "
                f"{row['unlearn_seed']})"
                for row in one.to_dict("records")
            ]
            raise BadInput("cell", cell, f"one of its cells: {'; '.join(each)}", "all of them are in run.cells")
        own = rows[rows["cell"] == rows["cell"].iloc[0]]
        order = own["checkpoint"].map(lambda name: CHECKPOINTS.index(name) if name in CHECKPOINTS else len(CHECKPOINTS))
        chosen = own.loc[order.idxmin() if first else order.idxmax()]
        return {str(name): str(value) for name, value in chosen.items()}

    def _module(self, cell: str, state: State) -> nn.Module:
        """Build the network of a cell and load a state into it."""
        (found,) = [one for one in self.manifest["cells"] if one["cell"] == cell]
        settings, network = found["settings"], found.get("network", {})
        if not network:
            remedy = "`lethe run` with its settings again: from the cache it takes seconds"
            raise BadInput("run", self.name, "a run whose record tells the shape of its records", remedy)
        module = TASKS.get(str(settings["task"])).build(
            str(settings["model"]), tuple(network["data-shape"]), int(network["num-classes"])
        )
        if any(tensor.dtype == torch.float64 for tensor in state.params.values()):
            module = module.double()
        state.load_into(module)
        return module.eval()

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
    raise BadInput(
        "run", str(run), f"a run folder or a name below {runs} (newest: {newest})", "see `lethe status --all`"
    )


def read_state(model: Path | str) -> State:
    """Return the state in the file of a checkpoint; raises `BadInput` when that is gone or cannot be read."""
    try:
        return State.from_arrays(load_file(model))
    except (OSError, SafetensorError, ValueError) as error:
        remedy = "the same `lethe run` again computes it"
        raise BadInput("model", str(model), f"a file of weights ({error})", remedy) from None


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
