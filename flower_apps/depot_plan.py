"""What stages a depot has, for a plan: only read, without waiting long for a depot that does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from partitions.depot import Depot, look_into

PATIENCE = 10.0
"""Seconds that the depot has for one answer."""
Answer = TypeVar("Answer")


class StagesThere:
    """Stages of a depot, as far as it tells of them in time.

    Parameters
    ----------
    url : str
        Of the depot.
    deadline : float
        On the monotonic clock; nothing is waited for beyond it.
    """

    def __init__(self, url: str, deadline: float) -> None:
        self._known, self._deadline = _known(url), deadline

    @property
    def problem(self) -> str:
        """Why what it has counts as not there; empty when it answered."""
        return self._known.problem

    def find(self, kind: str, key: str) -> tuple[Mapping[str, Any], int] | None:
        """Return the record of a complete stage, and its bytes; None where the depot has none, or tells nothing."""
        return self._known.find(kind, key, self._deadline)


class _Known:
    """What a depot has told: one listing for each kind, and the record of each stage that was asked for."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._depot: Depot | None = None
        self._listed: dict[str, frozenset[str]] = {}
        self._found: dict[tuple[str, str], tuple[Mapping[str, Any], int] | None] = {}
        self.problem = ""

    def find(self, kind: str, key: str, deadline: float) -> tuple[Mapping[str, Any], int] | None:
        """See `StagesThere.find`."""
        if self.problem:
            return None
        try:
            if (kind, key) not in self._found:
                self._found[kind, key] = self._ask(kind, key, deadline)
            return self._found[kind, key]
        except Exception as error:  # of a driver's library: anything
            said = " ".join(f"{error or type(error).__name__}".split())
            self.problem = f"the depot {self._url} cannot be asked ({said}): what it has is counted as to be computed"
            return None

    def _ask(self, kind: str, key: str, deadline: float) -> tuple[Mapping[str, Any], int] | None:
        if (depot := self._depot) is None:
            depot = self._depot = _in_time(lambda: look_into(self._url), deadline)
        if kind not in self._listed:
            self._listed[kind] = _in_time(lambda: frozenset(depot.names(f"stages/{kind}")), deadline)
        if key not in self._listed[kind]:
            return None
        return _in_time(lambda: depot.told(f"stages/{kind}/{key}", "stage.json"), deadline)


@cache
def _known(url: str) -> _Known:
    return _Known(url)


def _in_time(ask: Callable[[], Answer], deadline: float) -> Answer:
    """Return what `ask` returns; raises what it raises, and `TimeoutError` when that takes too long."""
    answers: list[Answer] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            answers.append(ask())
        except Exception as error:
            errors.append(error)

    limit = min(PATIENCE, max(deadline - time.monotonic(), 0.0))
    thread = threading.Thread(target=work, name="depot of a plan", daemon=True)
    thread.start()
    thread.join(limit)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"no answer within {limit:.0f} s")
    return answers[0]
