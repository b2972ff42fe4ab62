"""Names to components: a package's own modules plus third-party entry points, loaded when first asked for."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cached_property
from importlib.metadata import entry_points
from types import ModuleType
from typing import Generic, TypeVar

from partitions.errors import unknown_name

T = TypeVar("T")


class Registry(Generic[T]):
    """Components of one kind by name.

    A module of `package` takes part by binding ``attribute`` (for example ``DATASET = LungCT()``) to one component or a
    list of them; a third-party distribution takes part through the entry-point `group`, whose object is one component.

    Parameters
    ----------
    kind : str
        The key named in errors, for example ``"dataset"``.
    package : str
        Package whose modules are scanned, not recursively.
    attribute : str
        Module attribute that holds the component or a list of components.
    group : str
        Entry-point group, for example ``"lethe.datasets"``.
    """

    def __init__(self, kind: str, package: str, attribute: str, group: str) -> None:
        self.kind, self.package, self.attribute, self.group = kind, package, attribute, group

    def _modules(self) -> Iterator[ModuleType]:
        package = importlib.import_module(self.package)
        for found in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
            yield importlib.import_module(f"{self.package}.{found.name}")

    @cached_property
    def _components(self) -> dict[str, T]:
        found: dict[str, T] = {}
        for module in self._modules():
            bound = getattr(module, self.attribute, None)
            for component in bound if isinstance(bound, list) else [bound] if bound is not None else []:
                found[str(component.name)] = component
        for point in entry_points(group=self.group):
            component = point.load()
            found.setdefault(str(component.name), component)
        return found

    def names(self) -> list[str]:
        """Return every registered name, sorted."""
        return sorted(self._components)

    def get(self, name: str) -> T:
        """Return the component called `name`; raises `BadInput` with the nearest name when there is none."""
        if name not in self._components:
            raise unknown_name(self.kind, name, self._components)
        return self._components[name]
