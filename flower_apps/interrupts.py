"""The signals that end a command, made a KeyboardInterrupt: it can end what it started, and say that it was ended."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
from types import FrameType
from typing import Any

INTERRUPTED = 130
"""Exit code of a command that INT, TERM or HUP ended."""


class Interrupts:
    """Makes INT, TERM and HUP a KeyboardInterrupt in the main thread; a context manager.

    Inside another one it changes nothing: only handlers that nobody has set are replaced.
    """

    def __init__(self) -> None:
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def take(self) -> None:
        """Set the handlers; nothing happens outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        # a shell starts background jobs with INT ignored; nohup ignores HUP, and means it
        replaceable = {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
        for number, present in replaceable.items():
            if signal.getsignal(number) is present:
                self._handlers[number] = signal.signal(number, _interrupt)

    def give_back(self) -> None:
        """Put back the handlers that were there."""
        while self._handlers:
            signal.signal(*self._handlers.popitem())


def _interrupt(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGHUP:
        _leave_terminal()
    raise KeyboardInterrupt(signal.Signals(number).name)


def _leave_terminal() -> None:
    """Let what is still said go nowhere: the terminal is gone, and to write to it is an error."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(stream).st_mode):  # files and pipes are still there
                os.dup2(nowhere, stream)
    os.close(nowhere)
