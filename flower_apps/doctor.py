"""Looks at the machine: versions, devices, memory, disk, leftovers of killed runs, one copy of the code."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flower_apps.control import usable_cores
from flower_apps.places import ROOT

if TYPE_CHECKING:
    from rich.table import Table

ROOMS = ("clients", "evaluation", "flower_apps", "partitions", "strategies", "unlearning")
DISK_NEEDED = 2e9
"""Bytes that the quickstart's data, history and stages take, with room to spare."""
MEMORY_PER_WORKER = 1.2e9
"""Bytes of a worker process with torch and a small model."""

Level = Literal["ok", "note", "stop"]


@dataclass(frozen=True)
class Check:
    """One finding: `stop` means that a run cannot work, `note` that someone should know."""

    name: str
    level: Level
    found: str
    remedy: str = ""

    def to_row(self) -> dict[str, str]:
        """Return the finding as a flat mapping of texts."""
        return {"check": self.name, "level": self.level, "found": self.found, "remedy": self.remedy}


def examine(home: Path) -> list[Check]:
    """Return every finding about this machine, and change nothing; the LETHE_HOME `home` need not exist."""
    found: list[Check] = []
    for check in (check_python, check_packages, check_rooms, check_devices, check_processor, check_memory):
        found += _guarded(check.__name__, check)
    found += _guarded("disk", lambda: check_disk(home))
    found += _guarded("leftovers", lambda: check_leftovers(home))
    found += _guarded("check_cluster", check_cluster)
    return found


def check_python() -> Iterator[Check]:
    """Report the interpreter and the platform."""
    text = f"{platform.python_version()} at {sys.prefix}"
    good = sys.version_info >= (3, 11)
    yield Check("python", "ok" if good else "stop", text, "" if good else "use Python 3.11 or newer")
    if sys.platform == "win32":
        yield Check(
            "platform", "stop", "Windows", "use Linux, macOS or WSL: Flower's simulation needs Ray's Unix sockets"
        )
    else:
        yield Check("platform", "ok", f"{platform.system()} {platform.release()} {platform.machine()}")


def check_packages() -> Iterator[Check]:
    """Report the versions that identify results, and any requirement of Lethe that is not met."""
    from packaging.requirements import Requirement

    yield Check("lethe", "ok", f"{_version('lethe') or 'not installed'} from {ROOT}")
    needed = [Requirement(text) for text in requires("lethe") or []] if _version("lethe") else []
    unmet = []
    for requirement in needed:
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        have = _version(requirement.name)
        if have is None or not requirement.specifier.contains(have, prereleases=True):
            unmet.append(f"{requirement.name}{requirement.specifier} (here: {have or 'none'})")
    shown = ("flwr", "ray", "torch", "torchvision", "lightning-fabric", "monai")
    yield Check("packages", "ok", ", ".join(f"{name} {_version(name) or 'missing'}" for name in shown))
    if unmet:
        yield Check("requirements", "stop", "not met: " + ", ".join(unmet), "pip install -e .")


def check_rooms() -> Iterator[Check]:
    """Report whether every room comes from one folder: a package of the same name elsewhere would win silently."""
    roots = {room: _root_of(room) for room in ROOMS}
    strays = {room: root for room, root in roots.items() if root != ROOT}
    if strays:
        where = ", ".join(f"{room} from {root}" for room, root in strays.items())
        yield Check("rooms", "stop", f"{where}; the others from {ROOT}", "uninstall the package of that name")
    else:
        yield Check("rooms", "ok", f"all {len(ROOMS)} from {ROOT}")


def check_devices() -> Iterator[Check]:
    """Report the accelerators that torch sees, and its own CUDA version where a driver is there but no device."""
    import torch

    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        bf16 = "bf16" if torch.cuda.is_bf16_supported() else "no bf16"
        yield Check(f"cuda:{index}", "ok", f"{properties.name}, {properties.total_memory / 1e9:.0f} GB, {bf16}")
    if torch.backends.mps.is_available():
        yield Check("mps", "ok", "Apple GPU")
    if not torch.cuda.is_available() and shutil.which("nvidia-smi"):
        built = torch.version.cuda or "no CUDA"
        yield Check("cuda", "note", f"a driver is here, but torch ({built}) sees no device", "device: cuda would fail")
    elif not torch.cuda.is_available() and not torch.backends.mps.is_available():
        yield Check("devices", "ok", "cpu only (no CUDA or MPS device)")


def check_processor() -> Iterator[Check]:
    """Report the usable cores and whether the CPU computes bf16 itself, where bf16-mixed is faster and not slower."""
    usable = usable_cores()
    yield Check("cores", "ok", f"{usable} usable of {os.cpu_count()}")
    from clients.worker import has_native_bf16

    native = has_native_bf16()
    if native is None:
        yield Check("cpu bf16", "note", "cannot tell", "measure before choosing precision bf16-mixed")
    elif native:
        yield Check("cpu bf16", "ok", "native: precision bf16-mixed is the fast one here")
    else:
        yield Check("cpu bf16", "ok", "emulated: precision 32-true is the fast one here")


def check_memory() -> Iterator[Check]:
    """Report memory, and shared memory, in which Ray keeps its objects."""
    import psutil

    memory = psutil.virtual_memory()
    workers = int(memory.available / MEMORY_PER_WORKER)
    text = f"{memory.available / 1e9:.1f} GB free of {memory.total / 1e9:.1f} GB: up to {workers} workers"
    yield Check("memory", "ok" if workers else "stop", text, "" if workers else "close other programs")
    shared = Path("/dev/shm")
    if shared.is_dir():
        size = shutil.disk_usage(shared).total
        small = size < 1e9
        remedy = "Ray will use the disk: start the container with --shm-size=2g" if small else ""
        yield Check("shared memory", "note" if small else "ok", f"{size / 1e9:.1f} GB in {shared}", remedy)


def check_disk(home: Path) -> Iterator[Check]:
    """Report the free disk where `home` is or will be, and whether one may write there."""
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if not os.access(there, os.W_OK):
        yield Check("LETHE_HOME", "stop", f"{home}: not writable", "set LETHE_HOME to a folder of yours")
    else:
        yield Check("LETHE_HOME", "ok", f"{home}" + ("" if there == home else " (not made yet)"))
    remedy = "" if free > DISK_NEEDED else "set LETHE_HOME to a larger disk"
    yield Check("disk", "ok" if free > DISK_NEEDED else "note", f"{free / 1e9:.0f} GB free there", remedy)


def check_leftovers(home: Path) -> Iterator[Check]:
    """Report processes of runs whose command is gone."""
    from flower_apps.leftovers import stale_processes

    stale = stale_processes(home)
    if not stale:
        yield Check("leftovers", "ok", "no process of an ended run")
    for process in stale:
        yield Check("leftovers", "note", f"{process.name} ({process.pid})", process.why)


def check_cluster() -> Iterator[Check]:
    """Report the Ray cluster that RAY_ADDRESS names, and where a node's versions differ from those here."""
    from flower_apps import cluster, cluster_probe
    from partitions.errors import BadInput, RunFailed

    try:
        address = cluster.ray_address()
        if not address:
            return
        found = cluster.look(address)
    except (BadInput, RunFailed) as error:
        yield Check("ray cluster", "stop", str(error), "unset RAY_ADDRESS to run on this machine")
        return
    free = f"{found.free_cpus:g} CPUs free"
    busy = "Flower takes all of it: wait, or see `ray status`" if found.free_cpus < found.cpus else ""
    yield Check("ray cluster", "note" if busy else "ok", f"{found.address}: {found.in_words()}, {free}", busy)
    here = cluster_probe.look({})
    for node in found.nodes:
        wrong = cluster.other_software(node.found, here)
        what = f"{node.cpus:g} CPUs, {node.gpus:g} GPUs" + (f": {wrong}" if wrong else "")
        yield Check(f"node {node.name}", "stop" if wrong else "ok", what)


def checks_table(checks: list[Check]) -> Table:
    """Return the findings as a table of three columns."""
    from rich.markup import escape
    from rich.table import Table

    marks: Mapping[Level, str] = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "stop": "[red]stop[/]"}
    table = Table(title="lethe doctor", title_justify="left", box=None, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("found", overflow="fold")
    for check in checks:
        remedy = f"\n[bold]{escape(check.remedy)}[/]" if check.remedy else ""
        table.add_row(check.name, marks[check.level], escape(check.found) + remedy)
    return table


def _guarded(name: str, check: Callable[[], Iterator[Check]]) -> list[Check]:
    """Run one check; a check that cannot even run is a finding, not the end of the examination."""
    try:
        return list(check())
    except Exception as error:
        return [Check(name.removeprefix("check_"), "stop", f"{type(error).__name__}: {error}", "pip install -e .")]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _root_of(room: str) -> Path:
    return Path(str(importlib.import_module(room).__file__)).resolve().parent.parent
