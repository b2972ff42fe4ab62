"""The launcher: a private SuperLink for as long as a command lives, runs submitted to it, nothing left afterwards."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from flower_apps import control, leftovers, watch
from flower_apps.control import Control, Scalar
from flower_apps.guard import Guard
from flower_apps.interrupts import Interrupts
from flower_apps.watch import Ending, EventTail, OnEvent, Outcome, RunProcesses, RunWatch
from partitions.errors import BadInput, RunFailed, unknown_name

ROOMS = ("flower_apps", "strategies", "clients", "unlearning", "evaluation", "partitions")
START_LIMIT = 60.0
"""Seconds that the SuperLink, and then the process of a run, may take to appear."""
PORT_ATTEMPTS = 5
ATTEMPTS = 2
"""How often a run that can be resumed is submitted."""

LONGEST_RAY_FOLDER = 26
"""Bytes; Ray adds up to 80 for the Unix sockets below it, and 107 is the limit (104 on macOS)."""


@dataclass(frozen=True)
class Relief:
    """What a run is submitted with again.

    Attributes
    ----------
    run_config, federation : mapping
        What changes of either.
    """

    run_config: Mapping[str, Scalar]
    federation: Mapping[str, Scalar]


Relieve = Callable[[Ending], tuple[Relief | None, str]]


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    Parameters
    ----------
    status : {"completed", "failed", "cancelled"}
        ``completed`` only when the ServerApp said that it finished and Flower agrees.
    reason : str
        One line; empty for ``completed``.
    seconds : float
        From the call to the end, all attempts together.
    log_path : Path
        The run's log.
    attempts : int
        How often the run was submitted.
    """

    status: Outcome
    reason: str
    seconds: float
    log_path: Path
    attempts: int = 1

    def raise_for_status(self) -> None:
        """Raise `RunFailed` with reason and log unless the run completed."""
        if self.status != "completed":
            raise RunFailed(f"{self.reason}; log: {self.log_path}")


class Launcher:
    """A private simulation SuperLink that lives as long as this context manager is open.

    It starts in the background, so what is prepared meanwhile costs no time. `run` may be called from several threads.
    In the main thread INT, TERM and HUP become KeyboardInterrupt while the launcher is open; whatever ends this
    process, KILL too, its guard ends everything that was started within seconds.

    Parameters
    ----------
    home : Path
        LETHE_HOME; the SuperLink's own folder is ``flower/<id>`` below it, and goes afterwards.
    log : Path or None
        File for the SuperLink's output; default ``flower/<id>.log``, which goes too unless a run failed.
    app_dir : Path or None
        Folder of the Flower app; default the one that all rooms lie in.
    gpus : sequence of str or None
        The GPUs that its runs see, as CUDA_VISIBLE_DEVICES has them; None leaves all.
    cluster : str
        Address of a Ray cluster on which runs work; empty: each run has a Ray of its own on this machine.
    """

    def __init__(
        self,
        home: Path,
        log: Path | None = None,
        *,
        app_dir: Path | None = None,
        gpus: Sequence[str] | None = None,
        cluster: str = "",
    ) -> None:
        self._app_dir = (app_dir or rooms_root()).resolve()
        self._keys = control.app_config(self._app_dir).get("config", {})
        self._home = home.resolve()
        self._gpus, self._cluster = gpus, cluster
        self._folder = self._home / "flower" / f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._keep_log = log is not None
        self.log_path = log.resolve() if log else self._folder.with_suffix(".log")
        self._ray_folder = self._folder
        self._port = 0
        self._guard: Guard | None = None
        self._link: Control | None = None
        self._app: Future[bytes] = Future()
        self._starting, self._submitting, self._counting = threading.Lock(), threading.Lock(), threading.Lock()
        self._is_ready = self._failed = self._closed = self._hurry = False
        self._running = 0
        self._signals = Interrupts()

    def __enter__(self) -> Launcher:
        self._signals.take()
        leftovers.prune(self._home)
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._start_superlink(_free_port())
        threading.Thread(target=self._prepare, name="preparation of Flower", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every run and the SuperLink, within 3 s; a second Ctrl-C meanwhile kills at once."""
        self._closed = True
        try:
            with self._starting:
                self._end_superlink()
        finally:
            if self._link is not None:
                self._link.close()
            if not (self._keep_log or self._failed):
                self.log_path.unlink(missing_ok=True)
            self._signals.give_back()

    def run(
        self,
        run_config: Mapping[str, Scalar],
        federation: Mapping[str, Scalar],
        events_path: Path,
        on_event: OnEvent = lambda event: None,
        cancel: threading.Event | None = None,
        log_path: Path | None = None,
        relieve: Relieve | None = None,
    ) -> RunResult:
        """Submit one run, pass its events on, and return how it ended.

        A run whose ``failed`` event says ``resumable``, or whose process was killed, is submitted a second time; so is
        one that executes several groups for each group that such a thing happens to.

        Parameters
        ----------
        run_config : mapping
            Flat keys of ``[tool.flwr.app.config]``; among them whatever makes the ServerApp write to `events_path`.
        federation : mapping
            ``num-supernodes``, ``client-resources-num-cpus``, ``client-resources-num-gpus``, ``init-args-num-cpus``,
            ``init-args-num-gpus``, ...
        events_path : Path
            The event file (strategies/events.py); what it holds already is not passed on.
        on_event : callable
            Gets each new event, in the calling thread; also a ``note`` when the run is submitted again.
        cancel : threading.Event or None
            Once set, the run is ended within seconds and its status is ``cancelled``.
        log_path : Path or None
            The run's log; default beside the events, with the suffix ``.log``.
        relieve : callable or None
            Asked when a site found no room on its GPU: returns what to submit the run with again, and what to tell of
            it. Nothing instead of a `Relief` ends the run, and what it tells is the reason.

        Raises
        ------
        BadInput
            For an unknown key, or resources that this machine does not have; nothing was submitted.
        """
        begin = time.monotonic()
        for key in run_config:
            if key not in self._keys:
                raise unknown_name("run-config", key, self._keys)
        federation = {"client-resources-num-cpus": 1, "client-resources-num-gpus": 0.0, **federation}
        if not self._cluster:
            check_resources(federation)
        cancel = cancel or threading.Event()
        log_path = log_path or events_path.with_suffix(".log")
        log_path.parent.mkdir(parents=True, exist_ok=True)
        attempts, tries = 0, 0
        while True:
            attempts += 1
            ending = self._attempt(run_config, federation, EventTail(events_path), on_event, cancel, log_path)
            tries = 1 if ending.progressed else tries + 1
            text = f"{ending.reason}: submitted again, to go on where it stopped"
            again = ending.resumable and tries < ATTEMPTS
            if ending.out_of_memory and relieve is not None:
                relief, text = relieve(ending)
                again, tries = relief is not None, 0
                if relief is not None:
                    run_config = {**run_config, **relief.run_config}
                    federation = {**federation, **relief.federation}
                ending = ending if again else replace(ending, reason=text)
            if not again:
                self._failed |= ending.status == "failed"
                return RunResult(ending.status, ending.reason, time.monotonic() - begin, log_path, attempts)
            on_event({"kind": "note", "time": time.time(), "text": text})

    def _attempt(
        self,
        run_config: Mapping[str, Scalar],
        federation: Mapping[str, Scalar],
        events: EventTail,
        on_event: OnEvent,
        cancel: threading.Event,
        log_path: Path,
    ) -> Ending:
        ending = Ending("cancelled", "cancelled")
        if cancel.is_set():
            return ending
        with self._counted():
            try:
                link = self._ready()
                run_id, processes = self._submit(link, run_config, federation)
            except RunFailed as error:
                return Ending("failed", f"{error}; SuperLink log: {self.log_path}")
            logged = log_path.stat().st_size if log_path.exists() else 0
            follower = watch.follow_log(link, run_id, log_path)
            try:
                ending = RunWatch(link, run_id, processes, events, on_event).wait(cancel)
                if ending.status == "failed" and not link.healthy():
                    ending = Ending("failed", "the SuperLink ended unexpectedly", resumable=True)
            except RunFailed as error:
                ending = Ending("failed", str(error), resumable=True)
            finally:
                self._end_run(link, run_id, processes, ending)
                follower.join(timeout=2.0)
                if ending.status == "failed" and not ending.traceback and (root := watch.first_error(log_path, logged)):
                    ending = replace(ending, reason=f"{ending.reason} ({root})")
                if ending.status != "completed":
                    watch.append_to_log(log_path, ending)
        return ending

    def _end_run(self, link: Control, run_id: int, processes: RunProcesses, ending: Ending) -> None:
        try:
            if ending.status == "failed":
                time.sleep(watch.LOG_DELAY)
            with contextlib.suppress(RunFailed):
                link.stop(run_id)
            processes.end(patience=2.0 if ending.status == "completed" else 0.0)
        except KeyboardInterrupt:
            self._hurry = True
            raise

    def _submit(
        self, link: Control, run_config: Mapping[str, Scalar], federation: Mapping[str, Scalar]
    ) -> tuple[int, RunProcesses]:
        """Start a run and find its process; one at a time, so that none is taken for another's."""
        app = self._app.result(timeout=START_LIMIT)
        with self._submitting:
            before = self._run_pids()
            run_id = link.submit(app, run_config, federation)
            deadline = time.monotonic() + START_LIMIT
            while not (new := self._run_pids() - before):
                status = link.status(run_id)
                if status.finished or time.monotonic() > deadline:
                    raise RunFailed(f"the run did not start ({status.state} {status.details})".replace(" )", ")"))
                time.sleep(0.1)
            return run_id, RunProcesses(new.pop())

    def _run_pids(self) -> set[int]:
        """Return the processes of runs below the guard."""
        assert self._guard is not None
        pids = set()
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._guard.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if any(Path(part).name == control.RUN_COMMAND for part in process.cmdline()[:2]):
                        pids.add(process.pid)
        return pids

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Count the runs at work; when none is left, drop what Ray left of them."""
        with self._counting:
            self._running += 1
        try:
            yield
        finally:
            with self._counting:
                self._running -= 1
                if not self._running:
                    for session in self._ray_folder.glob("ray/session_*"):
                        shutil.rmtree(session, ignore_errors=True)

    def _prepare(self) -> None:
        """Do, while the SuperLink starts, what the first run would wait for."""
        try:
            self._app.set_result(control.build_app(self._app_dir))
        except Exception as error:
            self._app.set_exception(error)  # `run` raises it
        with contextlib.suppress(RunFailed):
            self._ready().connect()

    def _start_superlink(self, port: int) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._ray_folder = _short_folder()
        leftovers.write_owner(self._folder, self._ray_folder)
        with self.log_path.open("ab") as log:
            self._guard = Guard(
                control.superlink_command(port),
                env=control.superlink_environment(
                    self._folder, self._ray_folder, gpus=self._gpus, cluster=self._cluster
                ),
                log=log,
                remove=[self._ray_folder, self._folder],
            )
        self._port, self._link, self._is_ready = port, Control(f"127.0.0.1:{port}"), False

    def _end_superlink(self) -> None:
        if self._guard is not None:
            self._guard.close(hurry=self._hurry)
            # nothing, unless the guard itself was killed
            leftovers.end_processes(self._folder)
            shutil.rmtree(self._ray_folder, ignore_errors=True)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _ready(self) -> Control:
        """Return the link to a SuperLink that answers; starts another when it ended, or when its port was taken."""
        with self._starting:
            for _ in range(PORT_ATTEMPTS):
                assert self._guard is not None and self._link is not None
                if self._closed:
                    raise RunFailed("the launcher was closed")
                if not self._guard.alive() or (self._is_ready and not self._link.healthy()):
                    self._end_superlink()
                    self._start_superlink(_free_port())
                if self._is_ready or self._answers():
                    self._is_ready = True
                    return self._link
                self._end_superlink()
        raise RunFailed(f"the SuperLink did not start in {PORT_ATTEMPTS} attempts")

    def _answers(self) -> bool:
        """Wait until this launcher's own SuperLink answers; false when it ended or another process has its port."""
        assert self._guard is not None and self._link is not None
        deadline = time.monotonic() + START_LIMIT
        while self._guard.alive() and not self._closed:
            if self._link.healthy():
                return _listens(self._guard.pid, self._port)
            if time.monotonic() > deadline:
                raise RunFailed(f"the SuperLink did not answer within {START_LIMIT:.0f} s")
            time.sleep(0.05)
        return False


def rooms_root() -> Path:
    """Return the folder that all rooms lie in; raises `BadInput` when they come from different places."""
    places: dict[Path | None, list[str]] = {}
    for room in ROOMS:
        spec = importlib.util.find_spec(room)
        place = Path(spec.origin).resolve().parent.parent if spec and spec.origin else None
        places.setdefault(place, []).append(room)
    if len(places) > 1 or None in places:
        found = "; ".join(f"{', '.join(rooms)} in {place or 'no place'}" for place, rooms in places.items())
        raise BadInput("packages", found, "all in one folder", "uninstall the packages that are not lethe's")
    return next(place for place in places if place is not None)


def check_resources(federation: Mapping[str, Scalar]) -> None:
    """Refuse a federation that Ray could not start a single worker of.

    Raises
    ------
    BadInput
        Names the key to change and what there is.
    """
    cpus, gpus = (federation.get(f"client-resources-num-{kind}", 0) for kind in ("cpus", "gpus"))
    there = int(federation.get("init-args-num-cpus") or control.usable_cores())
    if not 1 <= int(cpus) <= there:
        remedy = "set it, or init-args-num-cpus for more workers than CPUs"
        raise BadInput("client-resources-num-cpus", cpus, f"from 1 to {there}, the CPUs of this machine", remedy)
    if float(gpus) < 0 or (float(gpus) > 1 and not float(gpus).is_integer()):
        raise BadInput("client-resources-num-gpus", gpus, "a share from 0 to 1, or a whole number")
    if float(gpus) > 0:
        there = int(federation.get("init-args-num-gpus") or control.visible_gpus())
        if float(gpus) > there:
            remedy = "lower it, or set init-args-num-gpus for logical GPUs"
            raise BadInput("client-resources-num-gpus", gpus, f"up to {there}, the GPUs seen here", remedy)


def _free_port() -> int:
    """Return a port that was free a moment ago; who takes it must check that he got it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(guard_pid: int, port: int) -> bool:
    """Return whether a child of the guard, and no stranger, listens on the port."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(guard_pid).children():
            for connection in child.net_connections(kind="tcp4"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                    return True
    return False


def _short_folder() -> Path:
    """Make a private folder whose path is short enough for Ray's Unix sockets."""
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) + len("/lethe-12345678") > LONGEST_RAY_FOLDER:
        base = "/tmp"
    return Path(tempfile.mkdtemp(prefix="lethe-", dir=base))
