"""`lethe clean`: what nobody needs any more below a home, how much it frees, and its removal beside living commands."""

from __future__ import annotations

import json
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from evaluation.runs import RECORD, find_run, read_record
from flower_apps import leftovers
from flower_apps.identity import CACHE_VERSION, SCORES_VERSION
from flower_apps.lifetime import command_lock
from flower_apps.run_state import RUNNING, last_sign, refuse_if_running, state_of
from flower_apps.runs import STAGES, run_folders, stages_of
from flower_apps.stages import KINDS, StageStore
from partitions.errors import BadInput

KEPT_RESUMABLE = 30 * 24 * 3600.0
"""Seconds that a run without a finished cell is kept where `lethe resume` can go on with it."""
SETTLED = 3600.0
"""Seconds after which a file that is written in one go, and has no owner to ask, was left by something killed."""
TRASH = re.compile(r"\..+-[0-9a-f]{8}")
WORK = re.compile(rf"({'|'.join(KINDS)})-([0-9a-f]{{24}})")
TAKEN = re.compile(rf"{WORK.pattern}\.taken")


@dataclass(frozen=True)
class Stale:
    """Something that nobody needs.

    Parameters
    ----------
    what : str
        ``run``, ``stage (train)``, ``crash log``, ...
    why : str
        What makes it stale.
    path : Path
        Where it lies.
    size : int
        Bytes that its removal frees.
    hold : callable
        Gives a context that keeps commands from it while it goes; in it, whether it may still go.
    also : Path or None
        A folder elsewhere that goes with it.
    """

    what: str
    why: str
    path: Path
    size: int
    hold: Callable[[], AbstractContextManager[bool]] = field(default=lambda: nullcontext(True), repr=False)
    also: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what, why, path and size."""
        return {"what": self.what, "why": self.why, "path": str(self.path), "bytes": self.size}


def find_stale(home: Path, named: Sequence[str] = ()) -> list[Stale]:
    """List what is stale below a home, runs first.

    Parameters
    ----------
    home : Path
        LETHE_HOME.
    named : sequence of str
        Runs to take away as a whole. Then nothing else is listed but the stages that only they stood on.

    Raises
    ------
    BadInput
        When there is no such run.
    Busy
        When one of them is being worked on.
    """
    store, pins = StageStore(home / "stages"), Pins(home)
    chosen = list(dict.fromkeys(find_run(name, home) for name in named))
    for folder in chosen:
        refuse_if_running(folder, read_record(folder))
    runs = [_run(folder, "named") for folder in chosen] if named else list(_runs(home))
    going = {one.path for one in runs}
    pinned = pins.now(going)
    if named:
        lost = pins.now() - pinned
        half_done = [one for one in _unfinished(store, pins, going) if one.path.name.replace("-", "/") in lost]
        return [*runs, *(one for one in _stages(store, pins, pinned) if _key(one.path) in lost), *half_done]
    found = [
        *runs,
        *_stages(store, pins, pinned),
        *_unfinished(store, pins, going),
        *_half_taken(store),
        *_locks(store),
    ]
    return [*found, *_half_written(home, going), *_logs(home)]


def remove(found: Iterable[Stale]) -> list[Stale]:
    """Remove what is still stale and in nobody's hands; return what went."""
    gone = []
    for one in found:
        trash = one.path.with_name(f".{one.path.name.lstrip('.')}-{uuid.uuid4().hex[:8]}")
        with one.hold() as free:
            if not free:
                continue
            try:
                if one.path.is_dir() and not one.path.is_symlink():
                    one.path.rename(trash)
                else:
                    one.path.unlink()  # a lock, before it is let go: whoever waits for it sees that it is gone
            except OSError:  # gone already: another clean was faster
                continue
        _delete(trash)
        if one.also is not None:
            shutil.rmtree(one.also, ignore_errors=True)
        gone.append(one)
    return gone


class Pins:
    """Which stages the runs of a home stand on; a run's files are read again only when they changed.

    Parameters
    ----------
    home : Path
        LETHE_HOME.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._known: dict[Path, tuple[tuple[int, ...], frozenset[str], bool]] = {}

    def now(self, without: Iterable[Path] = (), *, unfinished: bool = False) -> set[str]:
        """Return every stage, as ``kind/key``, that a run stands on, leaving out some runs.

        With `unfinished` only those of runs that have not come to their end.
        """
        left_out = set(without)
        read = [self._read(folder) for folder in run_folders(self._home) if folder not in left_out]
        return {line for lines, done in read if not (unfinished and done) for line in lines}

    def _read(self, folder: Path) -> tuple[frozenset[str], bool]:
        stamp = tuple(_stamp(folder / name) for name in (RECORD, STAGES))
        known = self._known.get(folder)
        if known is None or known[0] != stamp:
            known = self._known[folder] = stamp, *_stands_on(folder)
        return known[1], known[2]


def _stands_on(folder: Path) -> tuple[frozenset[str], bool]:
    """Return the stages of a run, those that its cells' checkpoints lie in too, and whether it came to its end."""
    try:
        record = read_record(folder)
    except BadInput:
        return frozenset(stages_of(folder)), False
    paths = [Path(path).parent for cell in record["cells"] for path in cell["checkpoints"].values()]
    return frozenset(stages_of(folder) | {_key(path) for path in paths}), record.get("status") == "completed"


def _runs(home: Path) -> Iterator[Stale]:
    """Yield run folders without a finished cell that nobody works on, or will go on with."""
    for folder in run_folders(home):
        try:
            record = read_record(folder)
        except BadInput:
            continue
        if folder.parent != home / "runs":  # whoever named it has it in hand
            continue
        state, age = state_of(folder, record), time.time() - last_sign(folder, record)
        if record["cells"] or state.word == RUNNING or (state.resumable and age < KEPT_RESUMABLE):
            continue
        if state.word == "unrecorded" and age < SETTLED:
            continue
        yield _run(folder, f"no finished cell, {state.word}")
    for folder in sorted((home / "runs").glob("*/")):
        empty = all(path.name.startswith(".") for path in folder.iterdir())
        if TRASH.fullmatch(folder.name) or (empty and _age(folder) > SETTLED):
            yield Stale("run", "half made or half removed", folder, _size(folder))


def _run(folder: Path, why: str) -> Stale:
    @contextmanager
    def hold() -> Iterator[bool]:
        try:
            record = read_record(folder)
        except BadInput:  # another clean was faster
            yield False
            return
        lock = command_lock(folder)
        with _unheld(lock) as free:
            if free and not (folder / RECORD).exists():  # another clean was faster, and the lock made the folder anew
                Path(lock.lock_file).unlink(missing_ok=True)
                with suppress(OSError):
                    folder.rmdir()
                free = False
            yield free and state_of(folder, record).word != RUNNING

    return Stale("run", why, folder, _size(folder), hold)


def _stages(store: StageStore, pins: Pins, pinned: set[str]) -> Iterator[Stale]:
    """Yield complete stages that no run stands on, and rounds of shadows that were to be let go after use."""
    open_ones = pins.now(unfinished=True)
    for folder in sorted(store.root.glob("*/*/")):
        kind = folder.parent.name
        if kind not in KINDS or folder.name.startswith("."):
            continue
        parts = _parts(folder)
        left_behind = kind == "shadow" and parts.get("rounds") is True and _key(folder) not in open_ones
        if _key(folder) not in pinned:
            yield Stale(f"stage ({kind})", _outdated(parts), folder, _size(folder), _unpinned(store, pins, folder))
        elif left_behind:
            yield Stale("shadow rounds", "left behind", folder, _size(folder), _unpinned(store, pins, folder, True))


def _unpinned(
    store: StageStore, pins: Pins, folder: Path, unfinished: bool = False
) -> Callable[[], AbstractContextManager[bool]]:
    """Make the hold on a stage: no run can name it meanwhile, and none has since it was listed."""

    @contextmanager
    def hold() -> Iterator[bool]:
        with store.pinning():
            yield _key(folder) not in pins.now(unfinished=unfinished)

    return hold


def _outdated(parts: Mapping[str, Any]) -> str:
    """Say why a stage that no run stands on is not only unused, but can never be found again."""
    present = {"cache": CACHE_VERSION, "torch": version("torch"), "flwr": version("flwr"), "scores": SCORES_VERSION}
    words = {"cache": "cache version", "scores": "scores version"}
    for name, now in present.items():
        if name in parts and parts[name] != now:
            return f"no run stands on it; of {words.get(name, name)} {parts[name]}"
    return "no run stands on it"


def _unfinished(store: StageStore, pins: Pins, going: set[Path]) -> Iterator[Stale]:
    """Yield stages that were begun, that nobody computes, and that no unfinished run will go on with."""
    wanted = pins.now(going, unfinished=True)
    for folder in sorted((store.root / ".work").glob("*/")):
        found = WORK.fullmatch(folder.name)
        if found is None:
            continue
        key, lock = "/".join(found.groups()), FileLock(folder.with_suffix(".lock"))
        if key not in wanted and _is_free(lock):
            hold = _abandoned(store, pins, key, lock)
            yield Stale("unfinished stage", "no run goes on with it", folder, _size(folder), hold)


def _half_taken(store: StageStore) -> Iterator[Stale]:
    """Yield what a killed command had taken from a depot in part; the next one takes it from the start."""
    for folder in sorted((store.root / ".work").glob("*.taken/")):
        lock = FileLock(folder.with_suffix(".lock"))
        if TAKEN.fullmatch(folder.name) and _is_free(lock):
            yield Stale(
                "unfinished stage",
                "its way from the depot was cut short",
                folder,
                _size(folder),
                partial(_unheld, lock),
            )


def _abandoned(store: StageStore, pins: Pins, key: str, lock: FileLock) -> Callable[[], AbstractContextManager[bool]]:
    @contextmanager
    def hold() -> Iterator[bool]:
        with store.pinning(), _unheld(lock) as free:
            may_go = free and key not in pins.now(unfinished=True)
            yield may_go
            if may_go:
                Path(lock.lock_file).unlink(missing_ok=True)

    return hold


def _locks(store: StageStore) -> Iterator[Stale]:
    """Yield lock files that nobody holds. Whoever waits for one that is taken away makes a new one."""
    for path in sorted((store.root / ".work").iterdir()) if (store.root / ".work").is_dir() else []:
        lock = FileLock(path)
        if path.suffix in (".lock", ".use") and not path.with_suffix("").exists() and _is_free(lock):
            yield Stale("lock", "nobody holds it", path, 0, partial(_unheld, lock))


def _half_written(home: Path, going: set[Path]) -> Iterator[Stale]:
    """Yield what a killed command left of a file or folder that becomes visible only when complete."""
    for folder in run_folders(home):
        if folder in going or not _is_free(command_lock(folder)):
            continue
        for path in [*folder.glob(".*-????????"), *folder.glob("exports/.*-????????")]:
            if _age(path) > SETTLED:
                yield Stale("half-written file", "its writer is gone", path, _size(path))
    data = home / "data"
    for path in sorted([*data.glob("*/.preparing-*"), *data.glob("*/.fetching-*")]):
        lock = FileLock(path.parent / ".lock")
        if _is_free(lock):
            yield Stale("half-prepared data", "its writer is gone", path, _size(path), partial(_unheld, lock))
    for path in sorted((home / "evaluator" / "uploads").glob("upload-*")):
        if _age(path) > 24 * SETTLED:
            yield Stale("half-sent upload", "its sender is gone", path, _size(path))


def _logs(home: Path) -> Iterator[Stale]:
    for path in sorted((home / "crashes").glob("*.log")):
        yield Stale("crash log", "of an unexpected error", path, _size(path))
    for path in leftovers.stale_files(home):
        if path.is_dir():
            ray = leftovers.ray_folder(path)
            size = _size(path) + (_size(ray) if ray else 0)
            yield Stale("Flower", "its command is gone", path, size, also=ray)
        else:
            yield Stale("Flower", "log of a month ago", path, _size(path))


@contextmanager
def _unheld(lock: FileLock) -> Iterator[bool]:
    """Hold a lock, if nobody else does."""
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError):
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _is_free(lock: FileLock) -> bool:
    if not Path(lock.lock_file).exists():
        return True
    with _unheld(lock) as free:
        return free


def _parts(folder: Path) -> Mapping[str, Any]:
    try:
        parts = json.loads((folder / "stage.json").read_text())["parts"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return parts if isinstance(parts, dict) else {}


def _key(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def _delete(folder: Path) -> None:
    (folder / RECORD).unlink(missing_ok=True)  # half removed, it is no run
    shutil.rmtree(folder, ignore_errors=True)


def _stamp(path: Path) -> int:
    try:
        state = path.stat()
    except OSError:
        return 0
    return hash((state.st_mtime_ns, state.st_size, state.st_ino))


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    total = 0
    for one in [path, *path.rglob("*")] if path.is_dir() else [path]:
        with suppress(OSError):
            total += one.lstat().st_size if not one.is_dir() else 0
    return total
