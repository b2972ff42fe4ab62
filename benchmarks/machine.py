"""On what the numbers were measured."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from clients.worker import has_native_bf16
from flower_apps.control import usable_cores
from flower_apps.runs import environment


def describe_machine() -> dict[str, Any]:
    """Return CPU, cores, bf16 instructions, memory, load, commit and library versions."""
    known = environment()
    return {
        "cpu": _cpu_line("model name") or platform.processor() or platform.machine(),
        "cores": usable_cores(),
        "native_bf16": has_native_bf16(),
        "memory_bytes": known["memory_bytes"],
        "load_average": round(psutil.getloadavg()[0], 2),
        "platform": known["platform"],
        "python": known["python"],
        "libraries": {name: version(name) for name in ("flwr", "ray", "torch", "lightning-fabric")},
        "commit": known["commit"],
    }


def _cpu_line(key: str) -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
