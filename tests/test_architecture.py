"""The rooms import one way, and Flower is known in two of them only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "partitions": set(),
    "unlearning": set(),
    "clients": {"partitions", "unlearning"},
    "strategies": {"partitions", "unlearning"},
    "evaluation": {"partitions", "unlearning", "strategies"},
    "flower_apps": {"partitions", "unlearning", "clients", "strategies", "evaluation"},
}
KNOW_FLOWER = {"strategies", "flower_apps"}


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    allowed = MAY_IMPORT[room] | {room}
    wrong = [
        (path.name, name)
        for path in (ROOT / room).rglob("*.py")
        for name in imports_of(path)
        if name.split(".")[0] in MAY_IMPORT and name.split(".")[0] not in allowed
    ]
    assert not wrong


def test_evaluation_reads_only_the_history_of_the_strategies() -> None:
    names = {n for path in (ROOT / "evaluation").rglob("*.py") for n in imports_of(path) if n.startswith("strategies")}
    assert names <= {"strategies.history"}


@pytest.mark.parametrize("room", sorted(set(MAY_IMPORT) - KNOW_FLOWER))
def test_flower_is_unknown_below(room: str) -> None:
    wrong = [
        path.name
        for path in (ROOT / room).rglob("*.py")
        for name in imports_of(path)
        if name.split(".")[0] in ("flwr", "ray")
    ]
    assert not wrong


def test_every_folder_of_a_room_is_a_package() -> None:
    folders = {path.parent for room in MAY_IMPORT for path in (ROOT / room).rglob("*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]
