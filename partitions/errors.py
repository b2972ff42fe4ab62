"""Errors a person can act on: one line with the key, the value, what is allowed and the remedy."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

MOST_NAMES, FEW_NAMES = 30, 6
"""Names up to which an error lists them all, and how many it gives of more."""
MOST_CHARACTERS = 200
"""Of a value that an error shows."""
_GPU_FULL = re.compile(r"OutOfMemoryError\b|CUDA out of memory|MPS backend out of memory|CUBLAS_STATUS_ALLOC_FAILED")
"""How torch and its libraries say so."""


class BadInput(ValueError):
    """A person's mistake: shown as one line, exit code 2, nothing written.

    Parameters
    ----------
    key : str
        The setting, flag or file at fault.
    value : object
        What was given.
    allowed : str
        What would have been accepted.
    remedy : str
        What to do now.
    """

    def __init__(self, key: str, value: object, allowed: str, remedy: str = "") -> None:
        self.key, self.value, self.allowed, self.remedy = key, value, allowed, remedy
        super().__init__(
            f"{shortened(key)}={shortened(repr(value))}: allowed is {allowed}" + (f"; {remedy}" if remedy else "")
        )

    def _render_traceback_(self) -> list[str]:
        """Give a notebook the one line instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]

    def __reduce__(self) -> tuple[type[BadInput], tuple[str, object, str, str]]:
        return type(self), (self.key, self.value, self.allowed, self.remedy)


class Quantity(str):
    """A number with its unit, such as ``2.0 GB``: an error shows it without the quotes of a text."""

    def __repr__(self) -> str:
        return str(self)


def shortened(text: str) -> str:
    """Return a text, or of a long one its beginning and its length."""
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]}... ({len(text)} characters)"


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Put a name, such as an experiment's, in front of the key of a `BadInput` that is raised within."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{name}.{error.key}", error.value, error.allowed, error.remedy) from None


class RunFailed(RuntimeError):
    """A run that could not go on (a dead worker, a timeout): shown as one line, exit code 1."""

    def _render_traceback_(self) -> list[str]:
        """Give a notebook the one line instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class Refused(RunFailed):
    """A site does not do what it is asked, by a policy of its own."""


class SiteLost(RunFailed):
    """A site or its worker stopped answering: nothing is wrong with the run, which resumes when submitted again."""


class OutOfMemory(SiteLost):
    """A site found no room on its GPU: fewer sites at once may find it, and the run resumes."""


def disk_full(error: BaseException) -> bool:
    """Tell whether an error, of whatever library, says that the disk is full."""
    return getattr(error, "errno", None) == errno.ENOSPC or "No space left on device" in str(error)


def gpu_full(text: str) -> bool:
    """Tell whether an error's text, its type in front, says that a GPU's memory is used up."""
    return bool(_GPU_FULL.search(text))


def unknown_name(key: str, value: str, known: Iterable[str]) -> BadInput:
    """Make the error for a name that is not registered, with the nearest known one as remedy."""
    names = sorted(known)
    near = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    return BadInput(key, value, "one of " + _listed(names), f"did you mean {near[0]!r}?" if near else "")


def _listed(names: list[str]) -> str:
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return f"{len(names)} names: {', '.join(names[:FEW_NAMES])}, ..., {names[-1]}"
