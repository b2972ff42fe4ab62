"""How long to wait, in time in which this process could have seen an answer: being stopped or asleep does not count."""

from __future__ import annotations

import time
from collections.abc import Callable


class Patience:
    """Measures a wait by its looks: between two of them at most `step` seconds count.

    A process that was stopped (SIGSTOP, Ctrl-Z, a frozen container, a closed laptop where the clock goes on) comes back
    to one long step; whoever it waits for was most likely stopped as well.

    Parameters
    ----------
    step : float
        Seconds that one step counts at most; well above the time between two looks.
    clock : callable
        Seconds that never go back.
    """

    def __init__(self, step: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._step, self._clock = step, clock
        self._last, self._spent = clock(), 0.0

    def spent(self) -> float:
        """Return the seconds waited so far; this is a look."""
        now = self._clock()
        self._spent += min(now - self._last, self._step)
        self._last = now
        return self._spent
