"""On what the numbers were measured."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from flower_apps.runs import environment

BF16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")
"""As /proc/cpuinfo has them: x86 with AVX512-BF16 or AMX, and ARM."""


def describe_machine() -> dict[str, Any]:
    """Return CPU, cores, bf16 instructions, memory, load, commit and library versions."""
    known = environment()
    return {
        "cpu": _cpu_line("model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "bf16_instructions": [flag for flag in BF16_FLAGS if flag in _flags()],
        "memory_bytes": known["memory_bytes"],
        "load_average": round(psutil.getloadavg()[0], 2),
        "platform": known["platform"],
        "python": known["python"],
        "libraries": {name: version(name) for name in ("flwr", "ray", "torch", "lightning-fabric")},
        "commit": known["commit"],
    }


def has_bf16() -> bool:
    """Tell whether the CPU computes in bfloat16 itself."""
    return any(flag in _flags() for flag in BF16_FLAGS)


def _flags() -> set[str]:
    return set((_cpu_line("flags") or _cpu_line("Features")).split())


def _cpu_line(key: str) -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
