from types import SimpleNamespace

import pytest

from partitions import registry
from partitions.errors import BadInput
from partitions.registry import Registry


def splits(monkeypatch: pytest.MonkeyPatch, *names: str) -> Registry[SimpleNamespace]:
    """Return the registry of splits with components of another package under these names."""
    points = [SimpleNamespace(load=lambda name=name: SimpleNamespace(name=name)) for name in names]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "lethe.splits" else [])
    return Registry("split", "partitions.splits", "SPLIT", "lethe.splits")


def test_a_component_of_another_package_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    found = splits(monkeypatch, "theirs")
    assert found.get("theirs").name == "theirs" and {"iid", "theirs"} <= set(found.names())


def test_another_package_does_not_replace_a_component(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(splits(monkeypatch, "iid").get("iid")).__name__ == "Iid"


def test_an_unknown_name_gets_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="did you mean 'dirichlet'"):
        splits(monkeypatch).get("dirichlett")
