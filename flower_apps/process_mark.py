"""One process, told from every other: host, boot, id and start time. An id alone is soon another process's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class ProcessMark:
    """A process of some machine.

    Parameters
    ----------
    host, boot : str
        The machine's name, and an id that it gets at every start.
    pid : int
        The process's id.
    process_started : str
        When it began, in ticks since the boot where the system tells them (they do not move with the clock), else in
        Unix seconds.
    """

    host: str
    boot: str
    pid: int
    process_started: str

    @classmethod
    def here(cls) -> ProcessMark:
        """Return the mark of this process."""
        return cls(socket.gethostname(), boot_id(), os.getpid(), started(os.getpid()))

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> ProcessMark | None:
        """Read a mark from a run's ``command``; None where there is none."""
        if not record.get("pid") or not record.get("host"):
            return None
        names = ("host", "boot", "process_started")
        return cls(pid=int(record["pid"]), **{name: str(record.get(name, "")) for name in names})

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)

    def is_here(self) -> bool:
        """Tell whether it is a process of this machine."""
        return self.host == socket.gethostname()

    def lives(self) -> bool | None:
        """Tell whether the process lives; None for one of another machine, which cannot be asked."""
        if not self.is_here():
            return None
        return self.boot == boot_id() and self.process_started == started(self.pid) != ""


@cache
def boot_id() -> str:
    """Return what this machine calls the time since its last start; empty where it has no name for it."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        pass
    try:
        command = ["sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def started(pid: int) -> str:
    """Return when a process of this machine began, see `ProcessMark`; empty when it is none, or has ended."""
    try:
        if sys.platform == "linux":
            # the command's name may hold blanks and brackets; the fields follow its last bracket
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            return "" if fields[0] in "ZX" else fields[19]
        process = psutil.Process(pid)
        return "" if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.0f}"
    except (OSError, psutil.Error):
        return ""
