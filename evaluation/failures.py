"""Says which metric or curve it was that raised: those of other packages fail in words of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from partitions.errors import BadInput, RunFailed, disk_full, gpu_full


@contextmanager
def named_failure(what: str, name: str) -> Iterator[None]:
    """Turn what is raised within into a `RunFailed` of one line: what raised it, of which type, and its text.

    What is one line already, and a lack of room in memory, on the disk or on a GPU, stays as it is.

    Parameters
    ----------
    what, name : str
        ``metric`` or ``curve``, and which.

    Raises
    ------
    RunFailed
        In place of what was raised.
    """
    try:
        yield
    except (BadInput, RunFailed, MemoryError):
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
        if disk_full(error) or gpu_full(said):
            raise
        raise RunFailed(f"the {what} {name} raised {said}") from error
