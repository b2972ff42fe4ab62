"""Where things lie: LETHE_HOME with data, stages, runs and Flower's own state. Never inside the checkout."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from partitions.errors import BadInput

ROOT = Path(__file__).resolve().parent.parent
"""The folder that holds the rooms: the checkout, an installed package or the copy that Flower runs."""
RUN_RECORD = "run.json"
"""The file that makes a folder a run folder; a run never writes into a folder that is something else."""


def home_path(given: Path | str | None = None) -> Path:
    """Return LETHE_HOME as an absolute path: `given`, else the environment's, else ``~/.lethe``; whatever is there.

    Raises
    ------
    BadInput
        When it lies inside the checkout.
    """
    return outside_checkout("LETHE_HOME", Path(str(given or os.environ.get("LETHE_HOME", "") or "~/.lethe")))


def resolve_home(given: Path | str | None = None) -> Path:
    """Return `home_path`, for a command that reads what is there. Creates nothing.

    Raises
    ------
    BadInput
        When it lies inside the checkout, or it or what it holds is a file or cannot be read.
    """
    home = home_path(given)
    if home.exists() and not home.is_dir():
        raise BadInput("LETHE_HOME", str(home), "a folder", "name another with --home or LETHE_HOME")
    _check_readable("LETHE_HOME", home)
    for name in ("data", "stages", "runs", "flower"):
        _check_readable(name, home / name)
    if (home / "stages").is_dir():
        for kind in sorted((home / "stages").iterdir()):
            if "." not in kind.name:  # locks, and what other programs leave
                _check_readable("stages", kind)
    return home


def writable_home(given: Path | str | None = None) -> Path:
    """Return LETHE_HOME as `resolve_home` does, for a command that writes below it; creates nothing.

    Raises
    ------
    BadInput
        As `resolve_home`, and when the home, or where its runs, stages or Flower's state lie, cannot be written.
    """
    home = resolve_home(given)
    there = next(path for path in (home, *home.parents) if path.exists())
    below = [path for path in (home / "runs", home / "stages", home / "flower") if path.exists()]
    for folder in (there, *below):
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            remedy = f"{folder} is not: change its rights, or name another with --home or LETHE_HOME"
            raise BadInput("LETHE_HOME", str(home), "a folder that can be written", remedy)
    return home


def _check_readable(key: str, path: Path) -> None:
    if path.exists() and not (path.is_dir() and os.access(path, os.R_OK | os.X_OK)):
        remedy = "change its rights or move it away, or name another LETHE_HOME"
        raise BadInput(key, str(path), "a folder one can read", remedy)


def outside_checkout(key: str, path: Path) -> Path:
    """Return `path` absolute, with ``~`` resolved; raises `BadInput` naming `key` when it lies inside the checkout."""
    resolved = path.expanduser().resolve()
    if (ROOT / "pyproject.toml").is_file() and resolved.is_relative_to(ROOT):
        raise BadInput(
            key, str(resolved), f"a folder outside the checkout {ROOT}", "results there would go into the app"
        )
    return resolved


def run_name(folder: Path, home: Path | None = None) -> str:
    """Return how to call a run in a command: by its name where it lies below the home's ``runs``, else by its path.

    Parameters
    ----------
    folder : Path
        The run folder.
    home : Path, optional
        LETHE_HOME; by default the one of a command without ``--home``.
    """
    runs = (home or Path(os.environ.get("LETHE_HOME", "") or "~/.lethe").expanduser()) / "runs"
    resolved = folder.resolve()
    return shlex.quote(resolved.name if resolved.parent == runs.resolve() else str(resolved))


def file_name(name: str) -> str:
    """Return `name` as part of a file's name: no folder, no blank, nothing but ASCII."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"


@dataclass(frozen=True)
class Places:
    """The folders below one LETHE_HOME (absolute); each is made when it is first asked for."""

    home: Path

    @property
    def data(self) -> Path:
        """Fetched and prepared data sets."""
        return self._made("data")

    @property
    def stages(self) -> Path:
        """Cached stages."""
        return self._made("stages")

    @property
    def runs(self) -> Path:
        """Run folders."""
        return self._made("runs")

    @property
    def flower(self) -> Path:
        """Flower's own state, one folder a command."""
        return self._made("flower")

    def new_run(self, name: str) -> Path:
        """Make and return the run folder ``runs/<time>-<name>``, with a number after it when that one is taken."""
        stem = f"{datetime.now():%Y%m%d-%H%M%S}-{file_name(name)}"
        for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
            folder = self.runs / f"{stem}{suffix}"
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
        raise BadInput("name", name, "a name with fewer than 1000 runs in this second")

    def _made(self, name: str) -> Path:
        folder = self.home / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = error.strerror or str(error)
            raise BadInput(
                "LETHE_HOME", str(self.home), f"a folder one can write to ({reason})", "use --home"
            ) from None
        return folder


def open_run_folder(out: Path) -> Path:
    """Make the run folder that a person named, or take an earlier one on; raises `BadInput` for any other folder."""
    folder = outside_checkout("out", out)
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / RUN_RECORD).exists())):
        raise BadInput("out", str(folder), "a new or empty folder, or an earlier run's", "name another with --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput("out", str(folder), f"a folder one can write to ({error.strerror or error})") from None
    return folder
