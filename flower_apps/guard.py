"""The guard: a small process that starts one command and, whatever happens to its owner, ends all that came of it.

Runs as a script of the standard library alone (``python -I -S guard.py``); `Guard` is the owner's handle on it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

GRACE = 2.0
"""Seconds between TERM and KILL."""
POLL = 0.25
"""Seconds between two looks at owner and command."""
HURRY = b"!"
"""What the owner writes to have no grace given."""
PR_SET_CHILD_SUBREAPER = 36
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Guard:
    """Run `command` under a guard process.

    The guard ends every descendant of the command, those that changed their parent or session too, when this process
    closes the guard, exits, or is killed; when the guard gets TERM, INT or HUP; and when the command itself ends.

    Parameters
    ----------
    command : sequence of str
        What to run.
    env : mapping
        Its whole environment.
    log : file object
        Where its output goes.
    remove : sequence of Path
        Folders that the guard removes once every process is gone.
    grace : float
        Seconds between TERM and KILL.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        log: IO[Any],
        remove: Sequence[Path] = (),
        grace: float = GRACE,
    ) -> None:
        options = ["--owner", str(os.getpid()), "--grace", str(grace)]
        options += [part for folder in remove for part in ("--remove", str(folder))]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *options, "--", *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(env),
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Return the process id of the guard, an ancestor of everything that the command starts."""
        return self._process.pid

    def alive(self) -> bool:
        """Return whether the command still runs."""
        return self._process.poll() is None

    def close(self, *, hurry: bool = False, timeout: float = 15.0) -> None:
        """End everything: TERM, the grace, KILL; to `hurry`, or a KeyboardInterrupt meanwhile, goes to KILL at once."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            # a byte, because a fork of this process may hold the pipe open
            self._process.stdin.write(HURRY if hurry else b"\n")
            self._process.stdin.close()
        try:
            self._wait(timeout)
        except KeyboardInterrupt:
            self._process.send_signal(signal.SIGTERM)
            self._wait(timeout)
            raise

    def _wait(self, timeout: float) -> None:
        # a guard that takes longer goes on by itself: without it nobody would
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the guard; returns the command's exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--owner", type=int, required=True, help="process whose end ends the command")
    parser.add_argument("--grace", type=float, default=GRACE, help="seconds between TERM and KILL")
    parser.add_argument("--remove", action="append", default=[], help="folder to remove afterwards")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args(argv)
    return _guard(args.command, args.owner, args.grace, args.remove)


def _guard(command: Sequence[str], owner: int, grace: float, folders: Sequence[str]) -> int:
    asked: list[int] = []
    for number in SIGNALS:
        signal.signal(number, lambda received, frame: asked.append(received))
    _become_subreaper()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    family = _Family(os.getpid())
    try:
        while not asked and child.poll() is None and not _owner_gone(owner):
            family.look()
            _reap(child.pid)
    finally:
        before = len(asked)
        hurry = _owner_hurries()
        family.end(child, grace, hurry=lambda: hurry or len(asked) > before)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    return child.returncode if child.returncode is not None and child.returncode >= 0 else 1


def _become_subreaper() -> None:
    """Make orphans below this process its own children (Linux); elsewhere `_Family` remembers whom it saw."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _owner_gone(owner: int) -> bool:
    """Wait up to `POLL` seconds for a byte or the end of stdin; a fork may hold that open, so ask for the parent."""
    readable, _, _ = select.select([0], [], [], POLL)
    return bool(readable) or os.getppid() != owner


def _owner_hurries() -> bool:
    return bool(select.select([0], [], [], 0)[0]) and os.read(0, 1) == HURRY


def _reap(child: int) -> None:
    """Collect dead orphans; the command itself is collected by its own `Popen`."""
    with contextlib.suppress(ChildProcessError):
        while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if dead.si_pid == child:
                return
            os.waitpid(dead.si_pid, os.WNOHANG)


class _Family:
    """All descendants of `root`: found through their parents, and remembered where orphans change theirs."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._known: dict[int, str] = {}

    def look(self) -> None:
        """Remember the present descendants where the kernel does not keep them in the family."""
        if sys.platform != "linux":
            self._members()

    def end(self, child: subprocess.Popen[bytes], grace: float, hurry: Callable[[], bool]) -> None:
        """TERM every member, then KILL what is left after `grace` seconds or as soon as `hurry()`."""
        deadline = time.monotonic() + grace
        number = signal.SIGTERM
        told: set[int] = set()
        while members := self._members():
            if number is signal.SIGTERM and (time.monotonic() > deadline or hurry()):
                number, told = signal.SIGKILL, set()
            for pid in members - told:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
            told |= members
            time.sleep(0.02)
            child.poll()
            _reap(child.pid)

    def _members(self) -> set[int]:
        """Return the living descendants; a process id that was reused is none."""
        processes = {pid: (parent, start) for pid, parent, start in _processes()}
        members = {pid for pid, start in self._known.items() if processes.get(pid, (0, ""))[1] == start}
        grown = True
        while grown:
            more = {
                pid
                for pid, (parent, _) in processes.items()
                if (parent == self._root or parent in members) and pid != self._root
            }
            grown = not more <= members
            members |= more
        self._known = {pid: processes[pid][1] for pid in members}
        return members


def _processes() -> Iterator[tuple[int, int, str]]:
    """Yield process id, parent and start time of every process that is not a zombie."""
    if sys.platform != "linux":
        yield from _processes_by_ps()
        return
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                # the command's name may hold blanks and brackets; the fields follow its last bracket
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    yield int(folder.name), int(fields[1]), fields[19]


def _processes_by_ps() -> Iterator[tuple[int, int, str]]:
    listing = subprocess.Popen(["ps", "-axo", "pid=,ppid=,stat=,lstart="], stdout=subprocess.PIPE, text=True)
    for line in listing.communicate()[0].splitlines():
        pid, parent, state, start = line.split(maxsplit=3)
        if int(pid) != listing.pid and not state.startswith("Z"):
            yield int(pid), int(parent), start


if __name__ == "__main__":
    sys.exit(main())
