"""The stage cache: one folder a unit of work, keyed by all that determines its result, visible only when complete."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from safetensors.numpy import load_file, save_file

from partitions.disk import sync_tree
from partitions.errors import RunFailed
from unlearning.state import State

if TYPE_CHECKING:
    from flower_apps.depot import StageDepot

KINDS = ("train", "retrain", "unlearn", "recover", "score", "shadow", "relearn")
TRASH = re.compile(r"\.[0-9a-f]{24}-[0-9a-f]{8}")
"""How a stage is called while it is removed."""


def stage_key(parts: Mapping[str, Any]) -> str:
    """Hash what determines a result: 24 hex digits of the SHA-256 of its canonical JSON."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Stage:
    """A complete stage.

    Attributes
    ----------
    folder : Path
        Where its files lie.
    record : dict
        Contents of ``stage.json``: kind, key, parts, status, reason, cost, conditions, sha256, created and more.
    """

    folder: Path
    record: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The stage's key."""
        return str(self.record["key"])

    @property
    def status(self) -> str:
        """``"ok"`` or ``"diverged"``."""
        return str(self.record["status"])

    @property
    def reason(self) -> str:
        """Why the status is not ok; empty otherwise."""
        return str(self.record["reason"])

    @property
    def cost(self) -> dict[str, float]:
        """What the stage cost when it was computed."""
        return dict(self.record["cost"])

    @property
    def conditions(self) -> dict[str, Any]:
        """Host, workers, threads and jobs the cost was measured with."""
        return dict(self.record["conditions"])

    @property
    def model_path(self) -> Path:
        """The safetensors file of the stage's final state."""
        return self.folder / "model.safetensors"

    @property
    def history(self) -> Path:
        """The folder of recorded rounds; it need not exist."""
        return self.folder / "history"

    @cached_property
    def state(self) -> State:
        """The stage's final state; raises `RunFailed` when the file no longer holds what was computed."""
        state = State.from_arrays(load_file(self.model_path))
        if state.sha256() != self.record["sha256"]:
            raise RunFailed(f"{self.model_path} is damaged; remove {self.folder}, and it is computed again")
        return state


class StageWork:
    """A stage being computed: its folder survives a crash, so that the next try resumes from what is there."""

    def __init__(self, folder: Path, target: Path, kind: str, key: str, parts: Mapping[str, Any]) -> None:
        self.folder, self._target, self._kind, self._key, self._parts = folder, target, kind, key, parts
        self.committed: Stage | None = None

    @property
    def history(self) -> Path:
        """Folder for recorded rounds."""
        return self.folder / "history"

    def commit(
        self,
        *,
        state: State | None = None,
        status: str = "ok",
        reason: str = "",
        cost: Mapping[str, float] | None = None,
        conditions: Mapping[str, Any] | None = None,
        keep_history: bool = False,
        **extra: Any,
    ) -> Stage:
        """Write the final state and the record, then make the stage visible in one rename."""
        if state is not None:
            save_file(state.to_arrays(), self.folder / "model.safetensors")
            (self.folder / "model.safetensors").chmod(0o644)
        if not keep_history:
            shutil.rmtree(self.history, ignore_errors=True)
        record = {
            "kind": self._kind,
            "key": self._key,
            "parts": self._parts,
            "status": status,
            "reason": reason,
            "cost": dict(cost or {}),
            "conditions": dict(conditions or {}),
            "sha256": state.sha256() if state is not None else "",
            "created": time.time(),
            "files": _sizes(self.folder),
            **extra,
        }
        (self.folder / "stage.json").write_text(json.dumps(record, indent=1, sort_keys=True))
        _make_visible(self.folder, self._target)
        self.committed = Stage(self._target, record)
        return self.committed


class StageStore:
    """All stages below one folder.

    Parameters
    ----------
    root : Path
        ``LETHE_HOME/stages``.
    fresh_since : float
        Stages and half-done work older than this time (seconds since the epoch) count as absent; 0 uses everything.
    depot : StageDepot, optional
        Asked for stages that are not here, and given those that are.
    """

    def __init__(self, root: Path, fresh_since: float = 0.0, depot: StageDepot | None = None) -> None:
        self.root, self._fresh_since, self._depot = root, fresh_since, depot
        for kind in KINDS:
            for leftover in [] if (root / kind).is_symlink() else (root / kind).glob(".*-????????"):
                if TRASH.fullmatch(leftover.name):
                    shutil.rmtree(leftover, ignore_errors=True)  # what a killed `_discard` had moved out of sight

    def folder(self, kind: str, key: str) -> Path:
        """Return where a stage lies once complete."""
        if kind not in KINDS:
            raise ValueError(f"stage kind {kind!r} is not one of {', '.join(KINDS)}")
        return self.root / kind / key

    def find(self, kind: str, key: str) -> Stage | None:
        """Return the complete stage, from here or the depot; None when neither has it, or it is being computed."""
        if found := self.here(kind, key):
            return self._offered(found)
        if self._depot is None:
            return None
        lock = self._lock(kind, key)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return None
        try:
            return self.here(kind, key) or self._taken(kind, key)
        finally:
            lock.release()

    def here(self, kind: str, key: str) -> Stage | None:
        """Return the complete stage; None when there is none, or when a file of it is gone or cut short."""
        folder = self.folder(kind, key)
        try:
            record = json.loads((folder / "stage.json").read_text())
            current = record["created"] >= self._fresh_since
            whole = all((folder / name).stat().st_size == size for name, size in record["files"].items())
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return Stage(folder, record) if current and whole else None

    def begun(self, kind: str, key: str) -> Path | None:
        """Return the folder of half-done work that the next try would go on from; None when there is none."""
        work = self.root / ".work" / f"{kind}-{key}"
        started = work / "started"
        return work if started.exists() and started.stat().st_mtime >= self._fresh_since else None

    @contextmanager
    def claim(
        self,
        kind: str,
        parts: Mapping[str, Any],
        waiting: Callable[[str], None] = lambda _: None,
        *,
        shared: bool = True,
    ) -> Iterator[Stage | StageWork]:
        """Yield the complete stage, or the exclusive right to compute it.

        While another process of this home computes the same stage this one waits, then finds it complete. The right
        ends with the process, however it ends. A stage that is not `shared` stays out of the depot.
        """
        key = stage_key(parts)
        target = self.folder(kind, key)
        if found := self.here(kind, key):
            yield self._offered(found) if shared else found
            return
        work = self._work(kind, key)
        lock = self._lock(kind, key)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            waiting(f"{kind} {key[:8]} is being computed by another run; waiting for it")
            lock.acquire()
        try:
            if found := self.here(kind, key) or (self._taken(kind, key) if shared else None):
                yield found
                return
            self._prepare(work)
            made = StageWork(work, target, kind, key, parts)
            yield made
            if made.committed is not None and shared:
                self._offered(made.committed, now=True)
        finally:
            lock.release()

    @contextmanager
    def alone(
        self, kind: str, parts: Mapping[str, Any], waiting: Callable[[str], None] = lambda _: None
    ) -> Iterator[None]:
        """Keep other processes from whatever is done under the same parts; unlike `claim`, whether or not it is there.

        For a stage that is let go after use: who comes second waits, and finds what was made of it.
        """
        key = stage_key(parts)
        lock = FileLock(self.root / ".work" / f"{kind}-{key}.use")
        Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            waiting(f"{kind} {key[:8]} is being used by another run; waiting for it")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def pinning(self) -> Iterator[None]:
        """Keep `lethe clean` from looking, or taking a stage away, while a run names one that it is about to use.

        A run names a stage first and looks for it then: what is named before clean looks stays, what clean has taken
        away before it is named is computed again.
        """
        lock = FileLock(self.root / ".pins.lock")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except PermissionError:  # a cache that may only be read is cleaned by nobody but its owner
            yield
            return
        try:
            yield
        finally:
            lock.release()

    def discard(self, stage: Stage) -> None:
        """Remove a stage; nothing happens when it is gone already."""
        with suppress(FileNotFoundError):
            _discard(stage.folder)

    def _work(self, kind: str, key: str) -> Path:
        return self.root / ".work" / f"{kind}-{key}"

    def _lock(self, kind: str, key: str) -> FileLock:
        work = self._work(kind, key)
        work.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(work.with_suffix(".lock"))

    def _offered(self, stage: Stage, *, now: bool = False) -> Stage:
        if self._depot is not None:
            self._depot.give(stage, now=now)
        return stage

    def _taken(self, kind: str, key: str) -> Stage | None:
        """Take a stage from the depot, whoever holds its lock; in place of what was half done of it here."""
        work, target = self._work(kind, key), self.folder(kind, key)
        came = work.with_suffix(".taken")
        if self._depot is None or not self._depot.take(kind, key, came, self._fresh_since):
            return None
        _make_visible(came, target)
        shutil.rmtree(work, ignore_errors=True)
        return self.here(kind, key)

    def _prepare(self, work: Path) -> None:
        started = work / "started"
        if work.exists() and (not started.exists() or started.stat().st_mtime < self._fresh_since):
            shutil.rmtree(work)
        work.mkdir(exist_ok=True)
        if not started.exists():
            started.touch()


def problem_of(folder: Path, kind: str, key: str) -> str:
    """Return why a folder is not the complete stage of a kind and key, down to its weights; empty when it is."""
    try:
        record = json.loads((folder / "stage.json").read_text())
        if (record["kind"], record["key"]) != (kind, key) or stage_key(record["parts"]) != key:
            return "it is another stage"
        if record["files"] != _sizes(folder):
            return "its files are not those of its record"
        if record["sha256"]:
            _ = Stage(folder, record).state  # which is checked when it is read
    except RunFailed:
        return "its model is damaged"
    except Exception as error:  # of whatever reads damaged weights
        return f"it cannot be read ({type(error).__name__}: {error})"
    return ""


def _make_visible(folder: Path, target: Path) -> None:
    """Flush a complete stage to the disk and rename it to where stages are looked for."""
    sync_tree(folder)
    with suppress(FileNotFoundError):
        _discard(target)  # an older one, or what is left of one
    target.parent.mkdir(parents=True, exist_ok=True)
    folder.rename(target)


def _discard(folder: Path) -> None:
    """Move a folder out of sight in one step, then delete it."""
    trash = folder.with_name(f".{folder.name}-{uuid.uuid4().hex[:8]}")
    folder.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)


def _sizes(folder: Path) -> dict[str, int]:
    """Return the size of every file of a stage but its record."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path != folder / "stage.json"]
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
