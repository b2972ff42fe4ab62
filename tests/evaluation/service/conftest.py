"""A store, a server in the test's process, and submissions to post to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bundles import Bundles
from fastapi.testclient import TestClient

from evaluation.service.app import make_app
from evaluation.service.store import Store, sqlite_url

Maker = Callable[..., Any]
LOCAL = "http://127.0.0.1"


@pytest.fixture
def bundles(make_model: Maker, make_scorecard: Maker, make_comparison: Maker, make_state: Maker) -> Bundles:
    return Bundles(make_model, make_scorecard, make_comparison, make_state)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(sqlite_url(tmp_path / "evaluator" / "evaluator.sqlite"), tmp_path / "evaluator")
    yield opened
    opened.close()


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    with TestClient(make_app(store), base_url=LOCAL) as opened:
        yield opened
