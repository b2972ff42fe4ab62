"""Blobs as files named by their SHA-256 and kind: complete, on the disk and checked as that kind before they count."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from evaluation.service.formats import TABLE, TENSORS, BadBlob
from evaluation.service.inspector import INSPECTOR
from evaluation.service.limits import Limits
from partitions.disk import sync
from partitions.errors import BadInput

LEFTOVER_SECONDS = 24 * 3600.0
"""Age from which an unfinished upload, or a blob that no submission names, is taken away."""
ENDS = {TABLE: ".parquet", TENSORS: ".safetensors"}
"""How the names of files end, by kind: nothing is ever read as a kind as which it was not checked."""
_SHA = re.compile(r"[0-9a-f]{64}")


class BlobStore:
    """Blobs below a folder.

    Parameters
    ----------
    folder : Path
        Made when missing; raises `BadInput` when it cannot be written to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._uploads = folder / "uploads"
        try:
            self._uploads.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._uploads):
                pass
        except OSError as error:
            raise BadInput("store", str(folder), f"a folder one can write to ({error.strerror or error})") from None

    def path(self, sha: str, kind: str) -> Path:
        """Return where a blob lies; raises `KeyError` for what is no hash, so that no name leads elsewhere."""
        if not _SHA.fullmatch(sha):
            raise KeyError(sha)
        return self.folder / "blobs" / sha[:2] / (sha + ENDS[kind])

    def has(self, sha: str, kind: str) -> bool:
        """Tell whether a blob of this kind is here; a look at it keeps it from being taken away as unused."""
        try:
            os.utime(self.path(sha, kind))
        except (OSError, KeyError):
            return False
        return True

    def kinds(self, sha: str) -> list[str]:
        """Return the kinds as which a blob is here: none, one, or both for bytes that were uploaded as each."""
        return [kind for kind in ENDS if self.has(sha, kind)]

    def read(self, sha: str, kind: str) -> bytes:
        """Return a blob's bytes; raises `KeyError` when it is not here, checked as this kind."""
        try:
            return self.path(sha, kind).read_bytes()
        except FileNotFoundError:
            raise KeyError(sha) from None

    def upload(self, sha: str, kind: str, limits: Limits) -> Upload:
        """Begin to write a blob; see `Upload`."""
        return Upload(self.path(sha, kind), self._uploads, sha, kind, limits)

    def take_away_leftovers(self, used: Iterable[str]) -> int:
        """Remove old unfinished uploads and old blobs that are not `used`; return how many."""
        kept, removed = set(used), 0
        for path in [*self._uploads.iterdir(), *(self.folder / "blobs").glob("??/*")]:
            try:
                if path.name.partition(".")[0] not in kept and time.time() - path.stat().st_mtime > LEFTOVER_SECONDS:
                    path.unlink()
                    removed += 1
            except FileNotFoundError:  # another server was faster
                continue
        return removed


class Upload:
    """A blob on its way: `write` pieces, then `finish`; without that, nothing of it stays.

    Parameters
    ----------
    target, uploads : Path
        Where it goes, and the folder for unfinished files.
    sha, kind : str
        What it claims to be.
    limits : Limits
        Its size and what it may hold.
    """

    def __init__(self, target: Path, uploads: Path, sha: str, kind: str, limits: Limits) -> None:
        self._target, self._sha, self._kind, self._limits = target, sha, kind, limits
        self._digest, self.size = hashlib.sha256(), 0
        handle, name = tempfile.mkstemp(prefix="upload-", dir=uploads)
        self._path, self._file = Path(name), os.fdopen(handle, "wb")

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def write(self, piece: bytes) -> None:
        """Append bytes; the caller watches `size`."""
        self._digest.update(piece)
        self._file.write(piece)
        self.size += len(piece)

    def finish(self) -> None:
        """Check the hash and the content, then make the blob visible in one step.

        Raises
        ------
        BadInput
            When the bytes have another hash, or are not of their kind.
        """
        if self._digest.hexdigest() != self._sha:
            raise BadInput("sha256", self._sha, f"the hash of what was sent ({self._digest.hexdigest()})", "send again")
        self._file.flush()
        os.fsync(self._file.fileno())
        try:
            INSPECTOR.check(self._path, self._kind, self._limits)
        except BadBlob as error:
            raise BadInput("content", self._sha, f"bytes of {self._kind}: {error}") from None
        self._path.chmod(0o644)
        self._target.parent.mkdir(parents=True, exist_ok=True)
        self._path.replace(self._target)
        sync(self._target.parent)
        sync(self._target.parent.parent)
