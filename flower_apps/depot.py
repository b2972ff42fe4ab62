"""The depot of a run: stages that another home has computed are taken from it, and those computed here given to it."""

from __future__ import annotations

import os
import queue
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from flower_apps.places import outside_checkout
from flower_apps.settings import GroupSettings
from flower_apps.stages import Stage, problem_of
from partitions.depot import (
    NO_DEPOT,
    URLS,
    Depot,
    DepotDamaged,
    DepotFailed,
    check_driver,
    check_url,
    local_folder,
    open_depot,
)
from partitions.errors import BadInput

PATIENCE = 3
"""Failures in a row after which the rest of a group goes on without the depot."""


def depot_url(settings: GroupSettings) -> str:
    """Return the URL of the depot: the setting, else the environment's LETHE_DEPOT; empty for none.

    A setting of `NO_DEPOT` is none, whatever the environment says.
    """
    url = settings.depot or os.environ.get("LETHE_DEPOT", "").strip().rstrip("/")
    if settings.depot or url == NO_DEPOT:
        return "" if url == NO_DEPOT else url
    try:
        if url:
            check_url(url)
    except ValueError as error:
        raise BadInput("LETHE_DEPOT", url, URLS, str(error)) from None
    return url


def check_depot(settings: GroupSettings, home: Path, *, ask: bool = True) -> str:
    """Return the URL of the depot that answered, empty for none; without `ask` it is not asked, and nothing is made.

    Raises
    ------
    BadInput
        When it does not answer, its driver is not installed, or it lies in the checkout, in LETHE_HOME or around it.
    """
    url = depot_url(settings)
    if not url:
        return ""
    folder = local_folder(url)
    if folder is not None:
        resolved, here = outside_checkout("depot", folder), home.resolve()
        if resolved.is_relative_to(here) or here.is_relative_to(resolved):
            raise BadInput("depot", url, f"a folder apart from LETHE_HOME ({here})", "a depot has files of its own")
    if ask:
        open_depot(url)
    else:
        check_driver(url)
    return url


def stage_depot(settings: GroupSettings, home: Path, say: Callable[[str], None]) -> StageDepot | None:
    """Return the depot of a group, which must be closed; None when there is none. Errors as in `check_depot`."""
    url = check_depot(settings, home)
    return StageDepot(open_depot(url), say) if url else None


class StageDepot:
    """Stages in a depot, taken at once and given in the background; used as a context manager.

    No error of the depot is one of the run: it is said, and the run goes on with what is here. What could not be given
    is given by the next run that uses the stage.

    Parameters
    ----------
    depot : Depot
        Where they lie.
    say : callable
        Gets what a person may want to know, in one line.
    """

    def __init__(self, depot: Depot, say: Callable[[str], None]) -> None:
        self._depot, self._say = depot, say
        self._taken, self._given, self._failures = 0, 0, 0
        self._queue: queue.Queue[Stage | None] = queue.Queue()
        self._seen: set[str] = set()
        self._stale: set[str] = set()
        self._stopped = threading.Event()
        self._giver: threading.Thread | None = None

    def take(self, kind: str, key: str, folder: Path, since: float) -> bool:
        """Copy a stage into `folder` and check all of it; tells whether it is there now.

        Parameters
        ----------
        kind, key : str
            Of the stage.
        folder : Path
            What an earlier try left there is used.
        since : float
            A stage that was computed before, in seconds since the epoch, is left; giving it again replaces it.
        """
        if self._failures >= PATIENCE:
            return False
        path = _path(kind, key)
        try:
            contents = self._depot.contents(path)
            if contents is None or contents.created < since:
                self._failures = 0
                if contents is not None:
                    self._stale.add(path)
                return False
            self._depot.pull(path, contents, folder)
            if problem := problem_of(folder, kind, key):
                raise self._depot.damaged(path, problem)
        except DepotDamaged as error:
            shutil.rmtree(folder, ignore_errors=True)
            self._say(f"{kind} {key[:8]} in the depot is not used: {error}")
            return False
        except DepotFailed as error:
            self._failed("take from", error)
            return False
        self._taken, self._failures = self._taken + 1, 0
        self._seen.add(path)
        return True

    def give(self, stage: Stage, *, now: bool) -> None:
        """Have a complete stage given where the depot lacks it.

        Parameters
        ----------
        stage : Stage
            Must not change any more; one that is gone by then is left out.
        now : bool
            Start at once, beside the work; else that waits for the next one that is to be given now, or for the end.
        """
        if (path := _path(str(stage.record["kind"]), stage.key)) not in self._seen:
            self._seen.add(path)
            self._queue.put(stage)
        if now and self._giver is None:
            self._giver = threading.Thread(target=self._give_all, name="depot", daemon=True)
            self._giver.start()

    def __enter__(self) -> StageDepot:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Wait until all is given; after an error nothing more is: the next run does it."""
        if kind is not None:
            self._stopped.set()
        self._queue.put(None)
        if kind is not None:
            return
        if self._giver is None:
            self._give_all()
        else:
            if waiting := self._queue.qsize() - 1:
                self._say(f"{waiting} stages are still to be given to the depot {self._depot.url}")
            self._giver.join()
        if self._taken or self._given:
            self._say(f"depot {self._depot.url}: {self._taken} stages taken, {self._given} given")

    def _give_all(self) -> None:
        while (stage := self._queue.get()) is not None and not self._stopped.is_set():
            if self._failures < PATIENCE:
                self._give(stage)

    def _give(self, stage: Stage) -> None:
        path = _path(str(stage.record["kind"]), stage.key)
        try:
            names, created = [*stage.record["files"], "stage.json"], float(stage.record["created"])
            stale = path in self._stale
            self._given += self._depot.push(path, stage.folder, names, created=created, replace=stale)
            self._failures = 0
        except (DepotFailed, OSError) as error:
            if (stage.folder / "stage.json").exists():  # else it was let go meanwhile
                self._failed("give to", error)

    def _failed(self, what: str, error: Exception) -> None:
        self._failures += 1
        then = "the run goes on without it" if self._failures == PATIENCE else "going on with what is here"
        self._say(f"could not {what} the depot {self._depot.url} ({error}); {then}")


def _path(kind: str, key: str) -> str:
    return f"stages/{kind}/{key}"
