"""Scores what waits in a store: in processes of its own, so that no request waits and none can take the server down."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Iterator
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from evaluation.service.inspector import deaf_to_interrupts, end_with_the_server
from evaluation.service.limits import DEFAULT, Limits
from evaluation.service.store import LEASE, Store
from evaluation.service.wire import decode

POLL = 0.2
"""Seconds between looks for work."""
STOP_SECONDS = 3.0
"""Time a worker has to end before it is killed; what it was at is scored again later."""
log = logging.getLogger("lethe.evaluator")


def score_next(store: Store, owner: str, limits: Limits = DEFAULT, lease: float = LEASE) -> bool:
    """Take one submission, score it and keep the result; tells whether there was one.

    Parameters
    ----------
    store : Store
        Where it waits.
    owner : str
        Who takes it, unique among all workers of the store.
    limits : Limits
        Of tables and tensors.
    lease : float
        Seconds for which it is his; renewed while he is at it.
    """
    id = store.claim(owner, lease)
    if id is None:
        return False
    begun = time.monotonic()
    with _renewed(store, id, owner, lease):
        try:
            submission = decode(store.bundle(id), store.blobs.read, limits)
            rows, points = submission.rows(), submission.curves()
        except Exception as error:
            log.warning("%s failed: %s\n%s", id[:12], error, traceback.format_exc())
            told = f"missing blob {error}" if isinstance(error, KeyError) else str(error).strip()
            store.fail(id, owner, f"{type(error).__name__}: {' '.join(told.split())}"[:2000])
            return True
    kept = store.finish(id, owner, rows, points)
    log.info("%s: %d rows in %.2f s%s", id[:12], len(rows), time.monotonic() - begun, "" if kept else ", not ours now")
    return True


@contextlib.contextmanager
def _renewed(store: Store, id: str, owner: str, lease: float) -> Iterator[None]:
    """Renew the lease on a submission in the background."""
    done = threading.Event()

    def renew() -> None:
        while not done.wait(lease / 3):
            with contextlib.suppress(SQLAlchemyError):  # the next try is before the lease ends
                store.renew(id, owner, lease)

    thread = threading.Thread(target=renew, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def new_owner() -> str:
    """Return a name for a worker that no other has or had."""
    return f"{socket.gethostname()[:200]}/{os.getpid()}/{uuid.uuid4().hex[:12]}"


def work(store: Store, stop: threading.Event, owner: str, limits: Limits = DEFAULT, lease: float = LEASE) -> None:
    """Score whatever comes until told to stop; a database that is away for a while is waited for."""
    while not stop.is_set():
        try:
            if score_next(store, owner, limits, lease):
                continue
        except SQLAlchemyError as error:
            log.warning("the database does not answer: %s", str(error).splitlines()[0])
            stop.wait(5 * POLL)
        stop.wait(POLL)


class Workers:
    """Worker processes of a server; one that dies is replaced. A context manager.

    They end with the server however that ends, killed too.

    Parameters
    ----------
    store : Store
        Where submissions wait.
    count : int
        How many.
    limits : Limits
        Of tables and tensors.
    lease : float
        Seconds; see `Store.claim`.
    """

    def __init__(self, store: Store, count: int, limits: Limits = DEFAULT, lease: float = LEASE) -> None:
        self._store, self._count, self._limits, self._lease = store, count, limits, lease
        self._context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        self._processes: dict[str, BaseProcess] = {}
        self._unburied: dict[str, int | None] = {}
        self._stopping = threading.Event()
        self._watch = threading.Thread(target=self._keep_up, name="workers", daemon=True)

    @property
    def alive(self) -> int:
        """Workers at work or waiting."""
        return sum(process.is_alive() for process in list(self._processes.values()))

    def __enter__(self) -> Workers:
        self._start_missing()
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._watch.join()
        for process in self._processes.values():
            process.terminate()
        until = time.monotonic() + STOP_SECONDS
        for owner, process in self._processes.items():
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            with contextlib.suppress(SQLAlchemyError):  # its lease ends anyway
                self._store.release(owner)

    def _keep_up(self) -> None:
        while not self._stopping.is_set():
            wait([process.sentinel for process in self._processes.values()], timeout=POLL)
            dead = [owner for owner, process in self._processes.items() if not process.is_alive()]
            for owner in dead:
                process = self._processes.pop(owner)
                self._unburied[owner] = process.exitcode
                log.warning("worker %s ended with %s: another one takes its place", owner, process.exitcode)
                self._stopping.wait(1.0)  # one that cannot start at all must not be started without end
            self._bury()
            if dead and not self._stopping.is_set():
                self._start_missing()

    def _bury(self) -> None:
        """Tell the store of workers that died, or were told to end; again later when the database does not answer."""
        for owner, code in list(self._unburied.items()):
            with contextlib.suppress(SQLAlchemyError):
                (self._store.bury if code else self._store.release)(owner)
                del self._unburied[owner]

    def _start_missing(self) -> None:
        while len(self._processes) < self._count:
            owner = new_owner()
            level = log.getEffectiveLevel()
            arguments = (self._store.url, self._store.blobs.folder, owner, self._limits, self._lease, level)
            process = self._context.Process(target=_main, args=arguments, name=f"evaluator {owner}", daemon=True)
            with deaf_to_interrupts():
                process.start()
            self._processes[owner] = process


def _main(url: URL, folder: Path, owner: str, limits: Limits, lease: float, level: int) -> None:
    """Run one worker process."""
    import torch

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    logging.basicConfig(level=level, format="evaluator: %(message)s")
    end_with_the_server()
    torch.set_num_threads(1)  # sums of many threads have other last bits
    work(Store(url, folder), stop, owner, limits, lease)
