"""Makes the helpers in this folder importable from the tests below it: pytest puts a conftest's folder on the path."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from small_run import SmallRun
LONGEST = (
    "end_to_end/test_flower_runs.py",
    "evaluation/service/test_serve.py",
    "end_to_end/test_group.py",
    "end_to_end/test_shadows.py",
    "evaluation/test_report_odd.py",
    "flower_apps/test_launcher.py",
    "end_to_end",
    "pages",
    "strategies/test_memory.py",
    "evaluation/service",
)
"""Files and folders that take long, the longest first: whichever a worker begins last, the others wait for."""
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long; xdist by itself begins with the files of most tests, which are the quickest ones."""

    def place(item: pytest.Item) -> int:
        name = item.path.relative_to(HERE).as_posix()
        return next((n for n, long in enumerate(LONGEST) if name == long or name.startswith(f"{long}/")), len(LONGEST))

    items.sort(key=place)


@pytest.fixture
def forbid(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Return what makes a folder's contents, or one file, unreadable; for the superuser too, who may read all."""

    def close(closed: Path) -> None:
        stat, opened = Path.stat, Path.open

        def refuse(path: Path) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

        def no_stat(path: Path, **how: Any) -> os.stat_result:
            if closed in path.parents:
                refuse(path)
            return stat(path, **how)

        def no_open(path: Path, *how: Any, **more: Any) -> Any:
            if closed in (path, *path.parents):
                refuse(path)
            return opened(path, *how, **more)

        monkeypatch.setattr(Path, "stat", no_stat)
        monkeypatch.setattr(Path, "open", no_open)

    return close


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """Return a finished run, one for all processes of the tests; nobody changes it or its home."""
    from small_run import shared_small_run

    alone = "PYTEST_XDIST_WORKER" not in os.environ
    base = tmp_path_factory.getbasetemp()
    return shared_small_run((base if alone else base.parent) / "small-home")
