"""Looks into uploaded files in a process of its own: bytes made to crash a reader cannot crash the server."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from typing import Any

from evaluation.service.formats import BadBlob, check_blob
from evaluation.service.limits import Limits


class Inspector:
    """Checks files in another process, which is started when first needed and replaced when a file ends it.

    The C++ reader of parquet aborts on some damaged files instead of raising.
    """

    def __init__(self) -> None:
        self._lock, self._alone = threading.Lock(), threading.Lock()
        self._pool: ProcessPoolExecutor | None = None
        atexit.register(self.close)

    def check(self, path: Path, kind: str, limits: Limits) -> None:
        """Raise `BadBlob` unless the file can be read as its kind (`evaluation.service.formats.check_blob`).

        A file that was there when the process ended is tried once more, alone: another may have ended it.
        """
        try:
            self._check(path, kind, limits)
        except BrokenProcessPool:
            try:
                with self._alone:
                    self._check(path, kind, limits)
            except BrokenProcessPool:
                raise BadBlob("reading it ends the reader") from None

    def warm_up(self) -> None:
        """Start the process, so that the first upload need not wait for it."""
        with contextlib.suppress(BrokenProcessPool):
            self._submit(self._started(), os.getpid)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _check(self, path: Path, kind: str, limits: Limits) -> None:
        pool = self._started()
        try:
            problem = self._submit(pool, _problem, path, kind, limits).result()
        except BrokenProcessPool:
            with self._lock:
                if self._pool is pool:
                    self._pool = None
            raise
        if problem:
            raise BadBlob(problem)

    def _submit(self, pool: ProcessPoolExecutor, work: Callable[..., Any], *arguments: object) -> Future[Any]:
        with self._lock, deaf_to_interrupts():  # the first work starts the process
            return pool.submit(work, *arguments)

    def _started(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._pool is None:
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(1, context, initializer=end_with_the_server)
            return self._pool


INSPECTOR = Inspector()
"""One a process is enough."""


@contextlib.contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Start processes that a Ctrl-C, which reaches the whole group, does not interrupt: the server ends them."""
    ensure_running()  # Python's own helper, whose start would undo the next line
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_the_server() -> None:
    """End this process when the one that started it ends, killed too."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="server", daemon=True).start()


def _problem(path: Path, kind: str, limits: Limits) -> str:
    try:
        check_blob(kind, path.read_bytes(), limits)
    except BadBlob as error:
        return str(error)
    return ""
