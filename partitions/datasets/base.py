"""What a data set is, and the store that prepares one once: fetched, checked, read, visible only when complete."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd
from filelock import FileLock

from partitions.depot import Depot, files_below
from partitions.disk import sync
from partitions.errors import BadInput, RunFailed
from partitions.records import LoadedData, table_digest

Say = Callable[[str], None]
SOURCE = "source"
"""What the provider's files are called in a depot."""
CHUNK = 4096
"""Records read, written or hashed at once."""


class DataSet(Protocol):
    """A data set in its provider's layout."""

    @property
    def name(self) -> str:
        """Name in the catalogue."""

    @property
    def title(self) -> str:
        """What it is, in a few words."""

    @property
    def licence(self) -> str:
        """Licence of the data, not of the package that brings it."""

    @property
    def source(self) -> str:
        """The official source."""

    @property
    def citation(self) -> str:
        """What to cite."""

    @property
    def modality(self) -> str:
        """Imaging modality."""

    @property
    def packaged(self) -> bool:
        """Whether it comes inside a package, so that its name is enough to fetch it."""

    @property
    def layout(self) -> str:
        """The exact files expected."""

    def fetch(self, home: Path, say: Say) -> None:
        """Get the provider's files below `home`; raises `BadInput` saying what is missing when they cannot be had."""

    def load(self, home: Path, cap: int) -> LoadedData:
        """Return the prepared records, at most `cap` a class and patient; fetches and prepares at first use."""

    def renew_damaged(self, home: Path, cap: int) -> None:
        """Have the prepared records prepared again, at their next use, when they are not what was prepared."""

    def check(self, home: Path) -> list[str]:
        """Return what is wrong with the files below `home`, nothing when all is well."""


@dataclass(frozen=True)
class Records:
    """What a data set's reader hands to the store.

    Attributes
    ----------
    chunks : iterable of ndarray
        The inputs, some records at a time, uint8; together as long as the table.
    targets : ndarray
        int64.
    table : DataFrame
        See `LoadedData`.
    classes : tuple of str
        Class names.
    available : int
        Records before the cap.
    """

    chunks: Iterable[np.ndarray]
    targets: np.ndarray
    table: pd.DataFrame
    classes: tuple[str, ...]
    available: int


class StoredDataSet(ABC):
    """A data set kept in ``home/data/<name>/``: the provider's files, and one ``prepared-<key>`` folder for each cap.

    A subclass has the attributes of `DataSet` and says where its files come from (`_is_here`, `_get`), what identifies
    them (`_source_key`) and how they are read (`_read`). `version` changes whenever `_read` gives other records.
    """

    name: str
    title: str
    licence: str
    source: str
    citation: str
    modality: str
    packaged: bool
    layout: str
    version: int = 1

    @abstractmethod
    def _is_here(self, folder: Path) -> bool:
        """Say whether the provider's files are complete in `folder`."""

    @abstractmethod
    def _get(self, folder: Path) -> None:
        """Put the provider's files into `folder`; raises `BadInput` made by `missing` when they cannot be had."""

    @abstractmethod
    def _source_key(self, folder: Path) -> str:
        """Return text that changes when the provider's files do."""

    @abstractmethod
    def _read(self, folder: Path, cap: int) -> Records:
        """Read the provider's files."""

    def _check_source(self, folder: Path) -> list[str]:
        """Return what is wrong with the provider's files."""
        return [] if self._is_here(folder) else [f"{self.layout} is missing or damaged in {folder}"]

    def folder(self, home: Path) -> Path:
        """Return where the files are looked for."""
        return home / "data" / self.name

    def fetch(self, home: Path, say: Say) -> None:
        """See `DataSet.fetch`; the licence is said when, and only when, something is fetched."""
        with self._locked(home) as folder:
            self._fetch(folder, say)

    def load(self, home: Path, cap: int) -> LoadedData:
        """See `DataSet.load`."""
        folder = self.folder(home)
        if self.is_prepared(home, cap):
            return self._open(folder / self._key(folder, cap))
        with self._locked(home) as folder:
            if not self._is_prepared(folder, cap):
                self._fetch(folder, _say_on_stderr)
                self._prepare(folder, cap)
            return self._open(folder / self._key(folder, cap))

    def renew_damaged(self, home: Path, cap: int) -> None:
        """See `DataSet.renew_damaged`; reads everything once, a second for each gigabyte."""
        folder = self.folder(home)
        if not self.is_prepared(home, cap):
            return
        prepared = folder / self._key(folder, cap)
        if (problem := _changed(prepared)) and prepared.is_dir():
            _say_on_stderr(f"{self.name}: {problem}; preparing it again")
            with self._locked(home):
                shutil.rmtree(prepared, ignore_errors=True)

    def is_prepared(self, home: Path, cap: int) -> bool:
        """Tell whether the prepared records are here."""
        folder = self.folder(home)
        return folder.is_dir() and self._is_prepared(folder, cap)

    def take(self, home: Path, cap: int, depot: Depot) -> bool:
        """Put what a depot has below `home` where it is missing: the prepared records, else the provider's files.

        One process at a time takes, and who comes second finds it done. Returns whether anything was taken; raises
        `DepotFailed` when the depot does not answer or what it has is damaged.
        """
        if self.is_prepared(home, cap):
            return False
        with self._locked(home) as folder:
            if self._is_prepared(folder, cap):
                return False
            if self._take_prepared(folder, cap, depot):
                return True
            if not self._take_source(folder, depot):
                return False
            self._take_prepared(folder, cap, depot)  # its name may tell of the provider's files
            return True

    def take_source(self, home: Path, depot: Depot) -> bool:
        """Put the provider's files where they are looked for, if a depot has them; as `take` otherwise."""
        with self._locked(home) as folder:
            return self._take_source(folder, depot)

    def give(self, home: Path, cap: int, depot: Depot) -> bool:
        """Give a depot the prepared records and the provider's files, where it lacks them; tells whether it did.

        Raises `DepotFailed` when the depot does not take them.
        """
        folder, given = self.folder(home), self.give_source(home, depot)
        if self._is_prepared(folder, cap):
            key = self._key(folder, cap)
            given |= depot.push(self._shelf(key), folder / key, files_below(folder / key))
        return given

    def give_source(self, home: Path, depot: Depot) -> bool:
        """Give a depot the provider's files, when they are the provider's; as `give` otherwise."""
        folder = self.folder(home)
        names = [name for name in files_below(folder) if not name.startswith((".", "prepared-"))]
        if not names or not depot.lacks(self._shelf(SOURCE)) or self._check_source(folder):
            return False
        return depot.push(self._shelf(SOURCE), folder, names)

    def _shelf(self, what: str) -> str:
        return f"data/{self.name}/{what}"

    def _take_prepared(self, folder: Path, cap: int, depot: Depot) -> bool:
        try:
            key = self._key(folder, cap)
        except OSError:  # it tells of the provider's files, and they are not here
            return False
        contents = depot.contents(self._shelf(key))
        if contents is None:
            return False
        with tempfile.TemporaryDirectory(prefix=".preparing-", dir=folder) as made:
            work = Path(made) / key
            depot.pull(self._shelf(key), contents, work)
            if problem := _changed(work):
                raise depot.damaged(self._shelf(key), f"{self._shelf(key)} is damaged: {problem}")
            for path in (*work.iterdir(), work):
                sync(path)
            shutil.rmtree(folder / key, ignore_errors=True)
            work.rename(folder / key)
        sync(folder)
        return True

    def _take_source(self, folder: Path, depot: Depot) -> bool:
        contents = None if self._is_here(folder) else depot.contents(self._shelf(SOURCE))
        if contents is None:
            return False
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder) as made:
            work = Path(made)
            depot.pull(self._shelf(SOURCE), contents, work)
            if problems := self._check_source(work):
                raise depot.damaged(self._shelf(SOURCE), f"{self._shelf(SOURCE)} is damaged: {problems[0]}")
            for name, entry in contents.files.items():
                os.utime(work / name, ns=(entry.mtime_ns, entry.mtime_ns))  # some data sets know a file by it
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (work / name).replace(folder / name)
        return True

    def check(self, home: Path) -> list[str]:
        """See `DataSet.check`; counts constant images, and reads every prepared folder again."""
        folder = self.folder(home)
        if not self._is_here(folder) and not list(folder.glob("prepared-*")):
            return [str(self.missing(folder))]
        problems = self._check_source(folder)
        for prepared in sorted(folder.glob("prepared-*")):
            problems += [f"{prepared.name}: {problem}" for problem in _check_prepared(prepared)]
        return problems

    def missing(self, folder: Path, reason: str = "") -> BadInput:
        """Make the one message for data that are not here: what they are, whose, which files, where, why."""
        remedy = (
            f"put {self.layout} into {folder} (source: {self.source}; licence: {self.licence}), "
            "or set LETHE_HOME to where it is"
        )
        what = f"a data set that is here or can be fetched, and {self.title} is neither"
        return BadInput("dataset", self.name, what, remedy + (f"; fetching failed: {reason}" if reason else ""))

    def _fetch(self, folder: Path, say: Say) -> None:
        if self._is_here(folder):
            return
        say(f"{self.name}: {self.title}. Licence: {self.licence}. Source: {self.source}. Please cite: {self.citation}")
        self._get(folder)

    def _key(self, folder: Path, cap: int) -> str:
        parts = json.dumps([self.name, self.version, cap, self._source_key(folder)])
        return f"prepared-{hashlib.sha256(parts.encode()).hexdigest()[:16]}"

    def _is_prepared(self, folder: Path, cap: int) -> bool:
        """Say whether the prepared folder is there with every file at its full length."""
        try:
            prepared = folder / self._key(folder, cap)
            sizes = json.loads((prepared / "about.json").read_text())["sizes"]
            return all((prepared / name).stat().st_size == size for name, size in sizes.items())
        except (OSError, ValueError, KeyError):
            return False

    def _prepare(self, folder: Path, cap: int) -> None:
        if cap < 0:
            raise BadInput("cap", cap, "0 (all records) or more")
        for stale in folder.glob(".preparing-*"):
            shutil.rmtree(stale, ignore_errors=True)
        records = self._read(folder, cap)
        work = Path(tempfile.mkdtemp(prefix=".preparing-", dir=folder))
        try:
            work.chmod(0o755)
            _write(work, records)
            final = folder / self._key(folder, cap)
            shutil.rmtree(final, ignore_errors=True)
            work.rename(final)
            sync(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _open(self, prepared: Path) -> LoadedData:
        about = json.loads((prepared / "about.json").read_text())
        return LoadedData(
            name=self.name,
            inputs=np.load(prepared / "inputs.npy", mmap_mode="r"),
            targets=np.load(prepared / "targets.npy"),
            table=pd.read_parquet(prepared / "table.parquet"),
            classes=tuple(about["classes"]),
            licence=self.licence,
            source=self.source,
            citation=self.citation,
            fingerprint=about["fingerprint"],
            available=about["available"],
        )

    def _locked(self, home: Path) -> _LockedFolder:
        return _LockedFolder(self.folder(home))


class _LockedFolder:
    """A folder made when it is not there, held by one process at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Path:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self._folder / ".lock")
            self._lock.acquire()
        except OSError as error:
            allowed = f"a folder that can be written ({error.strerror or error})"
            raise BadInput("LETHE_HOME", str(self._folder), allowed, "set LETHE_HOME to another folder") from None
        return self._folder

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _say_on_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _write(folder: Path, records: Records) -> None:
    """Write arrays, table and ``about.json`` (written last, with the size of each) and flush them to the disk."""
    digest = _write_inputs(folder / "inputs.npy", records)
    np.save(folder / "targets.npy", records.targets)
    records.table.to_parquet(folder / "table.parquet", index=False)
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    about = {
        "classes": list(records.classes),
        "available": records.available,
        "fingerprint": _fingerprint(digest, records.targets, records.table),
        "sizes": sizes,
    }
    (folder / "about.json").write_text(json.dumps(about, indent=1))
    for path in (*folder.iterdir(), folder):
        sync(path)


def _write_inputs(path: Path, records: Records) -> hashlib._Hash:
    """Write the inputs as one array without holding them all; return their running hash."""
    chunks = iter(records.chunks)
    first = next(chunks, None)
    count = len(records.table)
    if first is None or not count:
        raise RunFailed(f"no record was read while preparing {path.parent.parent}")
    shape = (count, *first.shape[1:])
    needed, free = int(np.prod(shape)), shutil.disk_usage(path.parent).free
    if needed > free:
        raise RunFailed(f"preparing {path.parent.parent} needs {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free")
    array: np.ndarray = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
    digest, start = _inputs_digest(shape), 0
    for chunk in _chain(first, chunks):
        array[start : start + len(chunk)] = chunk
        digest.update(np.ascontiguousarray(chunk).tobytes())
        start += len(chunk)
    if start != count:
        raise RunFailed(f"{start} images were read for {count} records while preparing {path.parent.parent}")
    array.flush()  # type: ignore[attr-defined]
    return digest


def _chain(first: np.ndarray, rest: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    yield first
    yield from rest


def _inputs_digest(shape: tuple[int, ...]) -> hashlib._Hash:
    return hashlib.sha256(f"uint8{list(shape)}".encode())


def _fingerprint(inputs: hashlib._Hash, targets: np.ndarray, table: pd.DataFrame) -> str:
    digest = inputs.copy()
    digest.update(f"|{targets.dtype}{list(targets.shape)}|".encode())
    digest.update(np.ascontiguousarray(targets).tobytes())
    digest.update(table_digest(table))
    return digest.hexdigest()


def _is_unchanged(folder: Path, look: Callable[[np.ndarray], object] = lambda chunk: None) -> bool:
    """Say whether a prepared folder's contents are what was prepared; `look` sees every chunk of the inputs.

    Raises OSError or ValueError where they cannot be read.
    """
    about = json.loads((folder / "about.json").read_text())
    inputs = np.load(folder / "inputs.npy", mmap_mode="r")
    targets, table = np.load(folder / "targets.npy"), pd.read_parquet(folder / "table.parquet")
    digest = _inputs_digest(inputs.shape)
    for start in range(0, len(inputs), CHUNK):
        chunk = np.ascontiguousarray(inputs[start : start + CHUNK])
        digest.update(chunk.tobytes())
        look(chunk)
    return bool(_fingerprint(digest, targets, table) == about["fingerprint"])


def _changed(folder: Path) -> str:
    """Return what is wrong with the contents of a prepared folder; empty when they are what was prepared."""
    try:
        return "" if _is_unchanged(folder) else f"{folder.name} changed since it was prepared"
    except (OSError, ValueError) as error:
        return f"{folder.name} cannot be read ({error})"


def _check_prepared(folder: Path) -> list[str]:
    """Return what is wrong with a prepared folder: changed contents, constant images."""
    constant = [np.zeros(0, dtype=bool)]

    def look(chunk: np.ndarray) -> None:
        flat = chunk.reshape(len(chunk), -1)
        constant.append(flat.min(axis=1) == flat.max(axis=1))

    try:
        unchanged = _is_unchanged(folder, look)
    except (OSError, ValueError) as error:
        return [f"cannot be read ({error}); it is prepared again at the next use"]
    problems = [] if unchanged else [f"its contents changed since they were prepared; delete {folder}"]
    flags = np.concatenate(constant)
    if flags.any():
        problems.append(f"{flags.sum()} of {len(flags)} images are constant (one grey value everywhere)")
    return problems
