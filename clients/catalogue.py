"""Names to tasks, models and operations: the package's own and those of third-party distributions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitions.registry import Registry

if TYPE_CHECKING:
    from clients.models.base import Model
    from clients.ops import Op
    from clients.tasks.base import Task

MODELS: Registry[Model] = Registry("model", "clients.models", "MODEL", "lethe.models")
TASKS: Registry[Task] = Registry("task", "clients.tasks", "TASK", "lethe.tasks")
OPERATIONS: Registry[Op] = Registry("operation", "clients", "OPS", "lethe.operations")
