"""A token is needed for everything where there is one; without, only this machine by its own name gets in."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from fastapi import APIRouter
from fastapi.testclient import TestClient

from evaluation.service.access import is_loopback, read_token
from evaluation.service.app import make_app
from evaluation.service.store import Store
from partitions.errors import BadInput

TOKEN = "a-token-of-some-length"
PATHS = ["/api/health", "/api/runs", "/api/nothing", "/docs", "/openapi.json", "/page", "/"]
WRONG = [
    None,
    "",
    "Bearer",
    "Bearer wrong",
    f"bearer x{TOKEN}",
    f"Bearer {TOKEN[:-1]}",
    TOKEN,
    "Basic !",
    "Bearer \xff",
    "Basic \xff\xff",
    "Basic \xe9===",
    "Basic /w==",
]
pages = APIRouter()


@pages.get("/page")
def page() -> str:
    return "a page"


def basic(token: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"anybody:{token}".encode()).decode()}


@pytest.fixture
def guarded(store: Store) -> TestClient:
    app = make_app(store, token=TOKEN)
    app.include_router(pages)
    return TestClient(app, base_url="http://evaluator.hospital")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("header", WRONG)
def test_without_the_token_nothing_is_answered(guarded: TestClient, path: str, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    reply = guarded.get(path, headers=headers)  # type: ignore[arg-type]
    assert reply.status_code == 401
    assert reply.json()["field"] == "Authorization"
    assert reply.headers["www-authenticate"].startswith("Bearer" if path.startswith("/api/") else "Basic")


def test_with_the_token_everything_is(guarded: TestClient) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert guarded.get("/api/health", headers=headers).status_code == 200
    assert guarded.get("/page", headers=headers).json() == "a page"


def test_a_browser_may_send_it_as_a_password_for_pages_only(guarded: TestClient) -> None:
    assert guarded.get("/page", headers=basic(TOKEN)).status_code == 200
    assert guarded.get("/page", headers=basic("wrong")).status_code == 401
    assert guarded.get("/api/runs", headers=basic(TOKEN)).status_code == 401
    assert guarded.post("/page", headers=basic(TOKEN)).status_code == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:8799", 200),
        ("localhost:8799", 200),
        ("[::1]:8799", 200),
        ("[::1]", 200),
        ("rebound.example", 403),
        ("127.0.0.1.example", 403),
        ("", 403),
    ],
)
def test_without_a_token_only_a_loopback_name_is_answered(store: Store, host: str, status: int) -> None:
    client = TestClient(make_app(store))
    assert client.get("/api/health", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("10.0.0.1", False), ("example.org", False), ("", False)],
)  # fmt: skip
def test_what_is_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_the_token_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LETHE_EVALUATOR_TOKEN", "LETHE_EVALUATOR_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert read_token() == ""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}-in-file\n")
    assert read_token(file) == f"{TOKEN}-in-file"
    monkeypatch.setenv("LETHE_EVALUATOR_TOKEN_FILE", str(file))
    assert read_token() == f"{TOKEN}-in-file"
    monkeypatch.setenv("LETHE_EVALUATOR_TOKEN", TOKEN)
    assert read_token() == TOKEN


@pytest.mark.parametrize(
    "token", ["short", "with blanks in the middle of it", "ünïcödé-is-no-header-text", "a\x01" * 16]
)
def test_a_poor_token_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("LETHE_EVALUATOR_TOKEN", token)
    with pytest.raises(BadInput, match="LETHE_EVALUATOR_TOKEN") as caught:
        read_token()
    assert token not in str(caught.value)
