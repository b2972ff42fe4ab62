"""Files: those that others own, where what may not be read is a person's matter, and one way to write one's own."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from partitions.disk import sync
from partitions.errors import BadInput


def is_file(path: Path) -> bool:
    """Tell whether there is a file, or one that this process may not see; a name that no file can have is none."""
    try:
        return path.is_file()
    except PermissionError:  # whoever reads it says so
        return True
    except OSError:
        return False


def exists(path: Path) -> bool:
    """Tell whether there is anything, or something that this process may not see."""
    try:
        return path.exists()
    except PermissionError:
        return True
    except OSError:
        return False


def within(path: Path, name: str) -> Path:
    """Return the file of that name where `path` is a folder, else `path` itself."""
    try:
        return path / name if path.is_dir() else path
    except OSError:
        return path


def read_bytes(path: Path, key: str) -> bytes:
    """Return what is in a file.

    Raises
    ------
    BadInput
        Naming `key`, when the file may not or cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        why = error.strerror or str(error)
        remedy = "see that you may read it and the folder it is in"
        raise BadInput(key, str(path), f"a file one can read ({why})", remedy) from None


def write_text(path: Path, text: str) -> None:
    """Write a file in one step: readable by all, on the disk before it is visible, nothing of it after a failure."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync(path.parent)
