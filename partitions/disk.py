"""What must outlive a loss of power."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Put a file on the disk, or a folder's entries: a name, or a new name."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Put a folder on the disk with all that is in it, before it gets the name under which it is looked for."""
    for path in [*folder.rglob("*"), folder]:
        sync(path)
