"""The methods by name: every module of this package that binds METHOD, and the entry points of ``lethe.methods``."""

from __future__ import annotations

from partitions.registry import Registry
from strategies.base import UnlearningStrategy

METHODS: Registry[type[UnlearningStrategy]] = Registry("method", "strategies", "METHOD", "lethe.methods")
