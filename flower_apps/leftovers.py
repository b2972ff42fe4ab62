"""What a killed command may leave: processes and folders of launchers whose owner is gone."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname

import psutil

from evaluation.files import write_text

OWNER_FILE = "owner.json"
LOG_AGE = 30 * 24 * 3600.0
"""Seconds that the log of a failed launcher is kept."""
START_AGE = 60.0
"""Seconds in which a launcher that has made its folder has named itself in it."""


@dataclass(frozen=True)
class StaleProcess:
    """A process that nobody waits for.

    Parameters
    ----------
    pid : int
        Its id.
    name : str
        Its name, such as ``flower-superlink``.
    started : float
        Unix seconds.
    why : str
        What makes it stale, and what to do.
    """

    pid: int
    name: str
    started: float
    why: str


def write_owner(folder: Path, ray_folder: Path) -> None:
    """Note in a launcher's folder that this process owns it, and where its Ray files are."""
    started = psutil.Process().create_time()
    owner = {"host": gethostname(), "pid": psutil.Process().pid, "created": started, "ray": str(ray_folder)}
    write_text(folder / OWNER_FILE, json.dumps(owner))


def stale_processes(home: Path) -> list[StaleProcess]:
    """List processes of launchers below `home` that are gone, and SuperLinks that `flwr run` left as daemons."""
    base = home.resolve() / "flower"
    stale = []
    for process, flower_home in _flower_processes():
        if flower_home.is_relative_to(base):
            if not _owned(flower_home):
                stale.append(_stale(process, f"its lethe command is gone: kill {process.pid}"))
        elif _is_superlink(process) and process.ppid() == 1:
            stale.append(_stale(process, f"outlived the `flwr run` that started it: kill {process.pid} when unused"))
    return stale


def end_processes(flower_home: Path) -> None:
    """Kill every process of the launcher whose folder this is."""
    for process, folder in _flower_processes():
        if folder == flower_home:
            with contextlib.suppress(psutil.Error):
                process.kill()


def prune(home: Path) -> None:
    """Remove the folders of launchers below `home` whose owner and processes are all gone, and old logs."""
    for path in stale_files(home):
        if path.is_dir():
            if (ray := ray_folder(path)) is not None:
                shutil.rmtree(ray, ignore_errors=True)
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def stale_files(home: Path) -> list[Path]:
    """List what `prune` removes."""
    logs = [log for log in sorted((home / "flower").glob("*.log")) if _age(log) > LOG_AGE]
    candidates = [
        folder
        for folder in sorted((home / "flower").glob("*/"))
        if not _owned(folder) and ((folder / OWNER_FILE).exists() or _age(folder) > START_AGE)
    ]
    if not candidates:
        return logs
    in_use = {flower_home for _, flower_home in _flower_processes()}
    return logs + [folder for folder in candidates if folder.resolve() not in in_use]


def ray_folder(folder: Path) -> Path | None:
    """Return where a launcher has Ray's files; None where it did not say."""
    found = Path(str(_owner(folder).get("ray", "")))
    return found if found.name.startswith("lethe-") else None


def _age(path: Path) -> float:
    """Return the seconds since something was last written; 0 for what is gone."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _owner(folder: Path) -> dict[str, float | str]:
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads((folder / OWNER_FILE).read_text(encoding="utf-8")))
    return {}


def _owned(folder: Path) -> bool:
    owner = _owner(folder)
    if owner.get("host", gethostname()) != gethostname():
        return True  # where hosts share a home, each looks after its own
    try:
        return abs(psutil.Process(int(owner["pid"])).create_time() - float(owner["created"])) < 1.0
    except (KeyError, psutil.Error):
        return False


def _flower_processes() -> Iterator[tuple[psutil.Process, Path]]:
    """Yield every readable process with FLWR_HOME in its environment, and SuperLinks without."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            flower_home = process.environ().get("FLWR_HOME", "")
            if flower_home or _is_superlink(process):
                yield process, Path(flower_home)


def _is_superlink(process: psutil.Process) -> bool:
    return any(Path(part).name == "flower-superlink" for part in process.cmdline()[:2])


def _stale(process: psutil.Process, why: str) -> StaleProcess:
    return StaleProcess(process.pid, process.name(), process.create_time(), why)
