"""What travels to the sites: built by Flower's own code, without starting anything."""

import io
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

ROOT = Path(__file__).parents[2]
ROOMS = ("clients", "evaluation", "flower_apps", "partitions", "strategies", "unlearning")


@pytest.fixture(scope="module")
def bundled():
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(ROOT))) as bundle:
        return set(bundle.namelist())


def test_every_module_of_every_room_travels(bundled):
    modules = {path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert modules <= bundled


def test_nothing_else_travels_but_the_front_page_licence_and_manifest(bundled):
    others = {name for name in bundled if name.split("/")[0] not in ROOMS}
    assert others == {"pyproject.toml", "README.md", "LICENSE", "experiments.yaml", ".info/CONTENT"}
