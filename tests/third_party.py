"""Distributions of other people for the length of a test: what `pip install -e` writes, without an installation."""

from __future__ import annotations

import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clients.catalogue import MODELS, OPERATIONS, TASKS
from partitions.catalogue import DATASETS
from strategies.registry import METHODS

REGISTRIES = (METHODS, OPERATIONS, MODELS, TASKS, DATASETS)


@contextmanager
def third_party(project: Path) -> Iterator[None]:
    """Let the registries find the project in `project`, and forget it afterwards."""
    kept = [registry.__dict__.pop("_components", None) for registry in REGISTRIES]
    with tempfile.TemporaryDirectory() as metadata:
        _write_metadata(project, Path(metadata))
        added = [metadata, str(project)]
        sys.path[:0] = added
        try:
            yield
        finally:
            for entry in added:
                sys.path.remove(entry)
            for registry, components in zip(REGISTRIES, kept, strict=True):
                registry.__dict__.pop("_components", None)
                if components is not None:
                    registry.__dict__["_components"] = components


def _write_metadata(project: Path, into: Path) -> None:
    table = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, version = table["name"], table["version"]
    folder = into / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    lines = [
        line
        for group, points in table["entry-points"].items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in points.items()))
    ]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
