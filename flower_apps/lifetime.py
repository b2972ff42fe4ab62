"""A command's hold on a run folder: one at a time, and whatever ends it, the record says how; KILL leaves it open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from flower_apps.interrupts import INTERRUPTED, Interrupts
from flower_apps.process_mark import ProcessMark
from flower_apps.run_state import busy, refuse_if_running
from flower_apps.runs import RunFolder, group_id, name_run
from flower_apps.settings import GroupSettings
from partitions.errors import BadInput

LOCK = ".command.lock"


class Lifetime:
    """Holds a run folder while a command works on it; a context manager.

    Parameters
    ----------
    run : RunFolder
        The folder.
    command : mapping
        What was asked, see `evaluation.record`; the process adds itself.
    groups : sequence of GroupSettings
        What is to be run; all are recorded before anything starts.
    resumed : bool
        Whether it goes on with the command before it.

    Raises
    ------
    Busy
        On entering, when another command works on the folder; nothing is written then.
    """

    def __init__(
        self, run: RunFolder, command: Mapping[str, Any], groups: Sequence[GroupSettings], *, resumed: bool = False
    ) -> None:
        self._run, self._command, self._groups, self._resumed = run, command, groups, resumed
        self._lock = command_lock(run.path)
        self._signals = Interrupts()
        self.failures: list[str] = []

    @property
    def exit_code(self) -> int:
        """0 when every group finished, else 1."""
        return 1 if self.failures else 0

    def __enter__(self) -> Lifetime:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise busy(self._run.path, self._run.record()) from None
        try:
            refuse_if_running(self._run.path, self._run.record())
            self._signals.take()
            groups = {group_id(group): group.to_run_config() for group in self._groups}
            for home in {group.home for group in self._groups if group.home}:
                name_run(Path(home), self._run.path)
            self._run.begin({**self._command, **ProcessMark.here().to_json()}, groups, resumed=self._resumed)
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        status, code = self._ending(error)
        said = "" if error is None or isinstance(error, KeyboardInterrupt) else " ".join(str(error).split())
        failures = [*self.failures, *([said] if said else [])]
        try:
            self._run.end(status, code, failures)
        except OSError:
            if error is None:  # on a full disk the first error says what is wrong
                raise
        finally:
            self._release()

    def failed(self, group: GroupSettings, label: str, reason: str, log: Path | None = None) -> None:
        """Keep that a group failed; `label` tells it from the others, and is empty where there are none."""
        where = f"; log: {log}" if log else ""
        self.failures.append(f"{label}: {reason}{where}" if label else f"{reason}{where}")
        self._run.end_group(group_id(group), "failed", reason, str(log or ""))

    def completed(self, group: GroupSettings) -> None:
        """Keep that a group has all its results."""
        self._run.end_group(group_id(group), "completed")

    def doing(self, what: str) -> None:
        """Keep what the command is doing, now that it is none of the groups."""
        self._run.doing(what)

    def _ending(self, error: BaseException | None) -> tuple[str, int]:
        if error is None:
            return ("failed" if self.failures else "completed"), self.exit_code
        if isinstance(error, KeyboardInterrupt):
            return "stopped", INTERRUPTED
        if isinstance(error, BadInput):
            return "refused", 2
        return "failed", 1

    def _release(self) -> None:
        self._signals.give_back()
        self._lock.release()


@contextmanager
def flower_run(run: RunFolder, group: GroupSettings, run_id: int) -> Iterator[None]:
    """Hold a run folder for a group that `flwr run` submitted; raises `Busy` when a command works on it."""
    asked = {"via": "flwr run", "run_id": str(run_id), "experiments": [group.name], "evaluator": group.evaluator}
    with Lifetime(run, {**asked, "fresh": group.fresh}, [group]) as lifetime:
        yield
        lifetime.completed(group)


def command_lock(folder: Path) -> FileLock:
    """Return the lock that a command holds while it works on a run folder; it goes with the process."""
    return FileLock(folder / LOCK)
