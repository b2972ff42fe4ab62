"""The depot: folders that several homes share through an fsspec URL, each visible only when complete.

A folder in the depot is a record, ``contents.json``, and the files that it names. A file's name there ends in its hash,
so that two hosts which give the same folder never mix theirs, and what an interrupted upload left is used by the next.
The record is written last, and is the one commit point.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from partitions.errors import BadInput

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

VERSION = 1
"""Of the layout; a depot of another version is refused."""
RECORD, MARKER = "contents.json", "lethe-depot.json"
LOCAL = ("", "file", "local")
URLS = "an fsspec URL such as s3://bucket/folder, or an absolute path, without user and password, or none, or empty"
NO_DEPOT = "none"
"""In place of a URL: no depot, whatever the environment names."""


class DepotFailed(Exception):
    """The depot did not do what it was asked, in one line; whoever asked goes on without it."""


class DepotDamaged(DepotFailed):
    """What lies in the depot is not what was given to it."""


@dataclass(frozen=True)
class Entry:
    """A file in the depot.

    Attributes
    ----------
    size : int
        Bytes.
    sha256 : str
        Of its contents, 64 hex digits.
    mtime_ns : int
        When it was last changed where it came from, nanoseconds since the epoch.
    """

    size: int
    sha256: str
    mtime_ns: int


@dataclass(frozen=True)
class Contents:
    """What a folder in the depot holds.

    Attributes
    ----------
    created : float
        When what it holds was made, seconds since the epoch.
    files : mapping of str to Entry
        By name relative to the folder, parts joined by ``/``.
    """

    created: float
    files: Mapping[str, Entry]

    def to_json(self) -> bytes:
        """Return the record, with a hash of itself."""
        told = {"created": self.created, "files": {name: asdict(entry) for name, entry in self.files.items()}}
        return json.dumps({**told, "sha256": _hash_of(told)}, indent=1, sort_keys=True).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Contents:
        """Read a record; raises `ValueError` for anything that was not written as one."""
        told = json.loads(text)
        if not isinstance(told, dict) or told.pop("sha256", "") != _hash_of(told):
            raise ValueError("it is cut short or changed")
        files = {name: Entry(**entry) for name, entry in told["files"].items()}
        for name in files:
            if name.startswith("/") or not set(PurePosixPath(name).parts).isdisjoint(("..", "")):
                raise ValueError(f"it names {name!r}, which lies outside of it")
        return cls(told["created"], files)


def check_url(url: str) -> None:
    """Raise `ValueError` unless `url` can name a depot: an absolute path or one fsspec URL, and no secret in it."""
    scheme, separator, rest = url.rpartition("://")
    if "::" in scheme or "?" in url or "#" in url or "\n" in url:
        raise ValueError("one file system, without options")
    if scheme in LOCAL and not rest.startswith("/"):
        raise ValueError("a relative path means another folder in every process")
    if not rest.strip("/") or (separator and not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9+.-]*", scheme)):
        raise ValueError("it names no folder")
    before = rest.rpartition("@")[0]
    if scheme not in LOCAL and (":" in before or (before and scheme.startswith("http"))):
        raise ValueError("a password in an address is for everyone to read")


def local_folder(url: str) -> Path | None:
    """Return the folder that a depot is, where it is one of a file system that is mounted here."""
    scheme, _, rest = url.rpartition("://")
    return Path(rest) if scheme in LOCAL else None


class Depot:
    """A depot that answered.

    Parameters
    ----------
    url : str
        How people name it.
    fs : AbstractFileSystem
        The file system it lies on.
    root : str
        Its folder there.
    """

    def __init__(self, url: str, fs: AbstractFileSystem, root: str) -> None:
        self.url, self._fs, self._root = url, fs, root.rstrip("/")
        self._doubted: set[str] = set()

    def meet(self) -> None:
        """Make sure that this is a depot of this version, and make a new one of an empty folder.

        Raises
        ------
        DepotFailed
            When it cannot be read, or a new one not be written.
        """
        text = self._read(MARKER)
        if text is None:
            self._write(MARKER, json.dumps({"depot": VERSION}).encode())
            text = self._read(MARKER)
        try:
            version = json.loads(text or b"")["depot"]
        except (ValueError, TypeError, KeyError):
            raise DepotFailed(f"{MARKER} there is damaged") from None
        if version != VERSION:
            raise DepotFailed(f"it has layout {version}, and this Lethe reads and writes {VERSION}")

    def contents(self, path: str) -> Contents | None:
        """Return what a folder holds, None when it is not there; raises `DepotDamaged` for a record that is none."""
        text = self._read(f"{path}/{RECORD}")
        try:
            return None if text is None else Contents.from_json(text)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self.damaged(path, f"{path}/{RECORD} is damaged ({error})") from None

    def lacks(self, path: str) -> bool:
        """Tell whether a folder is not there, or is known to be damaged."""
        with suppress(DepotDamaged):
            return path in self._doubted or self.contents(path) is None
        return True

    def names(self, path: str) -> list[str]:
        """Return the names of what lies right below a folder, complete or not; none where there is no such folder."""
        found: list[str] | None = self._do(self._list, self._at(path))
        return [name.rstrip("/").rpartition("/")[2] for name in found or []]

    def told(self, path: str, name: str) -> tuple[Any, int] | None:
        """Return what a JSON file of a folder says, and the bytes of all its files; None when it is not complete.

        Raises
        ------
        DepotFailed
            When the depot does not answer.
        """
        with suppress(DepotDamaged, ValueError, KeyError):
            contents = self.contents(path)
            if contents is not None:
                text = self._read(_named(f"{path}/{name}", contents.files[name]))
                size = sum(entry.size for entry in contents.files.values())
                return None if text is None else (json.loads(text), size)
        return None

    def _list(self, folder: str) -> list[str]:
        found: list[str] = self._fs.ls(folder, detail=False)
        return found

    def pull(self, path: str, contents: Contents, folder: Path) -> None:
        """Copy a folder of the depot into `folder`, which may have some of it already.

        Raises
        ------
        DepotDamaged
            When a file lacks, or is not what was given. What came until then stays in `folder`.
        DepotFailed
            When the depot does not answer.
        """
        for name, entry in contents.files.items():
            target = folder / name
            if _is(target, entry):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            there = _named(f"{path}/{name}", entry)
            found = self._do(self._fs.get_file, self._at(there), str(target))
            if found is None or not _is(target, entry):
                target.unlink(missing_ok=True)
                raise self.damaged(path, f"{there} is {'missing' if found is None else 'damaged'}")

    def damaged(self, path: str, why: str) -> DepotDamaged:
        """Make the error for a folder that is not what was given; the next `push` writes all of it again."""
        self._doubted.add(path)
        return DepotDamaged(why)

    def push(
        self, path: str, folder: Path, names: Iterable[str], *, created: float | None = None, replace: bool = False
    ) -> bool:
        """Give files of `folder` to the depot; nothing happens when it has the folder already.

        Parameters
        ----------
        path : str
            What the folder is called there.
        folder : Path
            Where the files lie here; they must not change meanwhile.
        names : iterable of str
            Which of them, relative to `folder`.
        created : float, optional
            When they were made; default: now.
        replace : bool
            Write all of it again, whatever is there.

        Returns
        -------
        bool
            Whether anything was given.
        """
        if not replace and not self.lacks(path):
            return False
        replace |= path in self._doubted
        if self._read(MARKER) is None:  # else a share that is no longer mounted would be made anew, on this disk
            raise DepotFailed(f"{MARKER} is gone")
        files = {name: _entry(folder / name) for name in names}
        for name, entry in files.items():
            there = self._at(_named(f"{path}/{name}", entry))
            if replace or (self._do(self._fs.info, there) or {}).get("size") != entry.size:
                self._make(there, self._fs.put_file, str(folder / name), there)
        self._write(f"{path}/{RECORD}", Contents(time.time() if created is None else created, files).to_json())
        self._doubted.discard(path)
        return True

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _read(self, path: str) -> bytes | None:
        found: bytes | None = self._do(self._fs.cat_file, self._at(path))
        return found

    def _write(self, path: str, data: bytes) -> None:
        there = self._at(path)
        self._make(there, self._fs.pipe_file, there, data)

    def _make(self, there: str, write: Callable[..., Any], *arguments: Any) -> None:
        """Write the file `there`, and where its file system has folders, first those it lies in; never a bucket."""
        if self._do(write, *arguments) is not None:
            return
        inside = PurePosixPath(there.removeprefix(self._root)).parents
        for folder in (f"{self._root}{one}".rstrip("/") for one in reversed(inside)):
            if "/" in folder:
                self._do(self._made, folder)
        if self._do(write, *arguments) is None:
            raise DepotFailed(f"{there} cannot be made: its bucket or folder is not there")

    def _made(self, folder: str) -> None:
        with suppress(FileExistsError):
            self._fs.mkdir(folder, create_parents=False)

    def _do(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Return what `work` returns, True for nothing; None where there is no such file or folder.

        A driver raises whatever its library raises, so that everything else becomes a `DepotFailed`.
        """
        try:
            self._fs.invalidate_cache()
            found = work(*arguments)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except Exception as error:
            raise DepotFailed(" ".join(f"{type(error).__name__}: {error}".split())) from error
        return True if found is None else found


def look_into(url: str) -> Depot:
    """Return a depot to be read, without meeting it: nothing is made, and it need not answer yet."""
    import fsspec

    return Depot(url, *fsspec.core.url_to_fs(url))


def check_driver(url: str) -> None:
    """Refuse a URL that fsspec has no driver for; raises `BadInput`. Asks nobody."""
    import fsspec

    scheme = url.rpartition("://")[0]
    try:
        fsspec.get_filesystem_class(scheme or "file")
    except ImportError as error:
        raise BadInput("depot", url, f"a URL whose driver is installed ({error})", _install(scheme)) from None
    except ValueError as error:  # a protocol that fsspec does not know
        raise BadInput("depot", url, f"a URL that fsspec knows ({error})") from None


@cache
def open_depot(url: str) -> Depot:
    """Open a depot, once a process; a new one is made where its folder is empty.

    Raises
    ------
    BadInput
        When its driver is not installed, or it does not answer.
    """
    import fsspec

    check_driver(url)
    try:
        options = {"auto_mkdir": True} if url.rpartition("://")[0] in LOCAL else {}
        fs, root = fsspec.core.url_to_fs(url, **options)
        depot = Depot(url, fs, root)
        depot.meet()
    except Exception as error:  # of the driver: no credentials, no such region
        reason = error if isinstance(error, DepotFailed) else f"{type(error).__name__}: {error}"
        remedy = "look at the address and at the credentials in this machine's environment, or run without depot"
        raise BadInput("depot", url, f"a depot that can be read and written ({reason})", remedy) from None
    return depot


def files_below(folder: Path) -> list[str]:
    """Return the names of all files below a folder, relative to it, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _install(scheme: str) -> str:
    """Return the command that brings a protocol's driver, in the version that goes with the installed fsspec."""
    import fsspec
    from fsspec.registry import known_implementations

    known = known_implementations.get(scheme, {})
    package = str(known.get("class", "")).partition(".")[0]
    if package in ("", "fsspec"):
        return str(known.get("err", "install what its driver needs"))
    pin = f"=={fsspec.__version__}" if package in ("s3fs", "gcsfs") else ""
    return f"pip install {package}{pin}"


def _named(name: str, entry: Entry) -> str:
    return f"{name}.{entry.sha256[:16]}"


def _entry(path: Path) -> Entry:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    stat = path.stat()
    return Entry(stat.st_size, digest, stat.st_mtime_ns)


def _is(path: Path, entry: Entry) -> bool:
    """Tell whether a file here is what an entry says."""
    if not path.is_file() or path.stat().st_size != entry.size:
        return False
    return _entry(path).sha256 == entry.sha256


def _hash_of(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
