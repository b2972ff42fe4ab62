"""Looking at files that others own: what may not be read is a person's matter, said in one line."""

from __future__ import annotations

from pathlib import Path

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
