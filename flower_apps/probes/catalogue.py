"""The probes: this package's own and those of the entry-point group ``lethe.probes``."""

from __future__ import annotations

from flower_apps.probes.base import Probe
from partitions.registry import Registry

PROBES: Registry[Probe] = Registry("probe", "flower_apps.probes", "PROBE", "lethe.probes")
