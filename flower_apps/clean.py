"""`lethe clean`: what nobody needs any more below a home, how much it frees, and its removal beside living commands."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from evaluation.files import exists, is_file
from evaluation.runs import RECORD, find_run, read_record
from flower_apps import leftovers
from flower_apps.identity import CACHE_VERSION, SCORES_VERSION
from flower_apps.lifetime import command_lock
from flower_apps.run_state import RUNNING, last_sign, names_no_process, refuse_if_running, state_of
from flower_apps.runs import KEPT, STAGES, run_folders, stages_of
from flower_apps.stages import KINDS, StageStore
from partitions.errors import BadInput

KEPT_RESUMABLE = 30 * 24 * 3600.0
"""Seconds that a run without a finished cell is kept where `lethe resume` can go on with it."""
SETTLED = 3600.0
"""Seconds after which a file that is written in one go, and has no owner to ask, was left by something killed."""
TRASH = re.compile(r"\..+-[0-9a-f]{8}\.gone")
"""How a run folder is called while it is removed."""
KEY = re.compile(r"[0-9a-f]{24}")
HALF = re.compile(r"\.([^.].*\.(json|csv|yaml|txt)-[a-z0-9_]{8}|plan\.json\.tmp)")
"""A file of a run folder that is being written."""
LOCKS = (".run.lock", ".command.lock")
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
    name : str
        What it is called; empty: the name of `path`.
    """

    what: str
    why: str
    path: Path
    size: int
    hold: Callable[[], AbstractContextManager[bool]] = field(default=lambda: nullcontext(True), repr=False)
    also: Path | None = None
    name: str = ""

    @property
    def called(self) -> str:
        """What a person knows it by."""
        return self.name or self.path.name

    def to_json(self) -> dict[str, Any]:
        """Return what, why, path and size."""
        return {"what": self.what, "why": self.why, "path": str(self.path), "bytes": self.size}


def find_stale(home: Path, named: Sequence[str] = (), say: Callable[[str], None] = lambda text: None) -> list[Stale]:
    """List what is stale below a home, runs first; nothing that lies behind a symbolic link below it.

    Parameters
    ----------
    home : Path
        LETHE_HOME.
    named : sequence of str
        Runs to take away as a whole. Then nothing else is listed but the stages that only they stood on.
    say : callable
        Gets, once each, which damaged files and which links were left alone, and what that means.

    Raises
    ------
    BadInput
        When there is no such run, or it lies behind a link.
    Busy
        When one of them is being worked on.
    """
    notes: dict[str, None] = {}
    note = notes.setdefault
    store, pins = StageStore(home / "stages"), Pins(home)
    chosen = list(dict.fromkeys(_chosen(name, home) for name in named))
    for folder in chosen:
        try:
            record = read_record(folder)
        except BadInput as error:
            raise BadInput(error.key, error.value, error.allowed, f"{error.remedy}; {_by_hand(folder)}") from None
        refuse_if_running(folder, record)
        if names_no_process(record):
            note(f"{folder.name}: {state_of(folder, record).note}")
    runs = [_run(folder, "named") for folder in chosen] if named else list(_within(home, _runs(home, note), note))
    going = {one.path for one in runs}
    damage = pins.damage(going)
    for text in damage:
        note(f"all stages are kept, for it cannot be known on which of them a run stands: {text}")
    pinned = pins.now(going)
    stages = [] if damage else [*_stages(store, pins, pinned), *_unfinished(store, pins, going)]
    if named:
        lost, why = pins.now() - pinned, "only of runs that are removed"
        rest = [
            replace(one, why=why) for one in stages if one.path.name.replace("-", "/") in lost or _key(one.path) in lost
        ]
    else:
        rest = [*stages, *_half_taken(store), *_locks(store)]
        rest += [*_reproductions(home), *_half_written(home, going), *_logs(home)]
    found = [*runs, *_within(home, rest, note)]
    for text in notes:
        say(text)
    return found


def remove(found: Iterable[Stale]) -> list[Stale]:
    """Remove what is still stale and in nobody's hands; return what went."""
    gone = []
    for one in found:
        gone_by = ".gone" if one.what == "run" else ""
        trash = one.path.with_name(f".{one.path.name.lstrip('.')}-{uuid.uuid4().hex[:8]}{gone_by}")
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
        self._known: dict[Path, tuple[tuple[int, ...], _Footing]] = {}

    def now(self, without: Iterable[Path] = (), *, unfinished: bool = False) -> set[str]:
        """Return every stage, as ``kind/key``, that a run stands on, leaving out some runs.

        With `unfinished` only those of runs that have not come to their end.
        """
        return self._all(without, unfinished)[0]

    def damage(self, without: Iterable[Path] = ()) -> list[str]:
        """Say what is damaged so that a stage may be in use without being among those of `now`; a line each."""
        return self._all(without, False)[1]

    def let_go(self, key: str, *, unfinished: bool = False) -> bool:
        """Tell whether no run stands on a stage, for certain."""
        pinned, damage = self._all((), unfinished)
        return not damage and key not in pinned

    def _all(self, without: Iterable[Path], unfinished: bool) -> tuple[set[str], list[str]]:
        left_out, damage = set(without), list[str]()
        folders = run_folders(self._home, damage.append)
        read = [self._read(one) for one in folders if not left_out or not left_out & {one, one.resolve()}]
        damage += [one.damage for one in read if one.damage]
        return {line for one in read if not (unfinished and one.done) for line in one.stages}, damage

    def _read(self, folder: Path) -> _Footing:
        stamp = tuple(_stamp(folder / name) for name in (RECORD, STAGES))
        known = self._known.get(folder)
        if known is None or known[0] != stamp:
            known = self._known[folder] = stamp, _stands_on(folder)
        return known[1]


@dataclass(frozen=True)
class _Footing:
    """Which stages a run stands on, those of its checkpoints too, whether it came to its end, and what is damaged."""

    stages: frozenset[str]
    done: bool
    damage: str = ""


def _stands_on(folder: Path) -> _Footing:
    stages, damage = set[str](), ""
    try:
        stages = stages_of(folder)
    except BadInput as error:
        damage = str(error)
    try:
        record = read_record(folder)
    except BadInput as error:
        if not exists(folder / RECORD):  # another clean was faster
            return _Footing(frozenset(), True)
        return _Footing(frozenset(stages), False, damage or ("" if stages else str(error)))
    paths = [Path(path).parent for cell in record["cells"] for path in cell["checkpoints"].values()]
    return _Footing(frozenset(stages | {_key(path) for path in paths}), record.get("status") == "completed", damage)


def _by_hand(folder: Path) -> str:
    return f"when nothing in it is needed, remove {folder} by hand"


def _chosen(name: str, home: Path) -> Path:
    """Return the folder of a named run; raises `BadInput` where a link stands in its place: whose it is, who knows."""
    found = find_run(name, home)
    places = [place for place in (Path(name).expanduser(), home / "runs" / name) if is_file(place / RECORD)]
    place = places[0] if places else found
    link = place if place.is_symlink() else _link(home, place)
    if link is not None:
        remedy = "name that folder to remove the run, or remove the link alone with `rm`"
        raise BadInput("run", name, f"a run folder, and {link} is a link that leads to {found.resolve()}", remedy)
    return found


def _within(home: Path, found: Iterable[Stale], note: Callable[[str], None]) -> Iterator[Stale]:
    """Yield what is not reached through a link; what lies behind one may be another home's, or a person's."""
    for one in found:
        link = _link(home, one.path)
        if link is None:
            yield one
        else:
            note(f"{link} is a link to {os.path.realpath(link)}: it is left alone, with all behind it")


def _link(home: Path, path: Path) -> Path | None:
    """Return the first symbolic link on the way from a home to what lies below it; None when there is none."""
    if not path.is_relative_to(home):
        return None
    below = [path, *path.parents][: len(path.parts) - len(home.parts)]
    return next((one for one in reversed(below) if one.is_symlink()), None)


def _runs(home: Path, note: Callable[[str], None]) -> Iterator[Stale]:
    """Yield run folders without a finished cell that nobody works on, or will go on with."""
    for folder in run_folders(home):
        try:
            record = read_record(folder)
        except BadInput as error:
            note(f"left alone: {error}; {_by_hand(folder)}")
            continue
        if folder.parent != home / "runs":  # whoever named it has it in hand
            continue
        state, age = state_of(folder, record), time.time() - last_sign(folder, record)
        if names_no_process(record):
            note(f"{folder.name}: {state.note}")
        if record["cells"] or state.word == RUNNING or (state.resumable and age < KEPT_RESUMABLE):
            continue
        if state.word == "unrecorded" and age < SETTLED:
            continue
        yield _run(folder, f"no finished cell, {state.word}")
    for folder in sorted((home / "runs").glob("*/")):
        if TRASH.fullmatch(folder.name) or (_is_half_made(folder) and _age(folder) > SETTLED):
            yield Stale("run", "half made or half removed", folder, _size(folder))


def _is_half_made(folder: Path) -> bool:
    """Tell whether a folder has nothing in it but what a command makes before it writes the record of a run."""
    try:
        return all(path.name in LOCKS or HALF.fullmatch(path.name) for path in folder.iterdir())
    except OSError:
        return False


def _run(folder: Path, why: str) -> Stale:
    return Stale("run", why, folder, _size(folder), partial(_idle, folder))


def _reproductions(home: Path) -> Iterator[Stale]:
    """Yield the stages of reproductions that were killed; their results stay."""
    for place in sorted((home / "reproductions").glob("*/")):
        if (place / KEPT).exists():
            continue
        hold = partial(_idle, place / "run")
        for path in sorted([*place.glob("stages"), *place.glob(".stages-*")]):
            with hold() as free:
                if free:
                    why = "killed before it took its stages away"
                    yield Stale("reproduction", why, path, _size(path), hold, name=place.name)


@contextmanager
def _idle(folder: Path) -> Iterator[bool]:
    """Hold a run folder, if no command works on it."""
    try:
        record = read_record(folder)
    except BadInput:  # another clean was faster
        yield False
        return
    lock = command_lock(folder)
    with _unheld(lock) as free:
        if free and not exists(folder / RECORD):  # another clean was faster, and the lock made the folder anew
            Path(lock.lock_file).unlink(missing_ok=True)
            with suppress(OSError):
                folder.rmdir()
            free = False
        yield free and state_of(folder, record).word != RUNNING


def _stages(store: StageStore, pins: Pins, pinned: set[str]) -> Iterator[Stale]:
    """Yield complete stages that no run stands on, and rounds of shadows that were to be let go after use."""
    open_ones = pins.now(unfinished=True)
    for folder in sorted(store.root.glob("*/*/")):
        kind = folder.parent.name
        if kind not in KINDS or not KEY.fullmatch(folder.name):
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
            yield pins.let_go(_key(folder), unfinished=unfinished)

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
            may_go = free and pins.let_go(key, unfinished=True)
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
        files = [path for path in folder.glob(".*") if HALF.fullmatch(path.name) and path.is_file()]
        folders = [*folder.glob(".report-????????"), *folder.glob("exports/.*-????????")]
        for path in [*files, *folders]:
            if (
                _age(path) > SETTLED
                and not path.is_symlink()
                and path.parent.resolve().is_relative_to(folder.resolve())
            ):
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
    """Return the bytes of a file, or of all files below a folder; a link counts nothing of what it leads to."""
    total = 0
    for one in path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]:
        with suppress(OSError):
            total += one.lstat().st_size if one.is_symlink() or not one.is_dir() else 0
    return total
