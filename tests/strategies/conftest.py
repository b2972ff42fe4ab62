import pytest
from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture(autouse=True)
def _as_in_a_server_app(monkeypatch):
    """Flower's Message takes its run and sender from the process, which only a started app has."""
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch):
    monkeypatch.setattr("strategies.exchange._FIRST_PAUSE", 0.001)
