"""Posts submissions to a server step by step, as a client does, and scores what waits, in the test's process."""

from __future__ import annotations

from typing import Any

import httpx
from fastapi.testclient import TestClient

from evaluation.service.store import Store
from evaluation.service.wire import Bundle, Encoder
from evaluation.service.worker import new_owner, score_next
from evaluation.submission import Submission

Client = TestClient | httpx.Client
RECORD: dict[str, Any] = {
    "created": 1.5e9,
    "environment": {"host": "h"},
    "groups": {"g": {"name": "small"}},
    "cells": [],
}


def put_run(client: Client, run: str = "run", record: dict[str, Any] = RECORD) -> None:
    client.put(f"/api/runs/{run}", json={"name": run.upper(), "record": record}).raise_for_status()


def upload(client: Client, submission: Submission) -> Bundle:
    """Upload every blob of a submission that the server lacks."""
    bundle, blobs = Encoder().encode(submission)
    missing = client.post("/api/blobs/missing", json={"sha256": list(blobs)}).json()["sha256"]
    for sha in missing:
        put_blob(client, sha, blobs[sha].kind, blobs[sha].make()).raise_for_status()
    return bundle


def put_blob(client: Client, sha: str, kind: str, data: bytes) -> Any:
    return client.put(f"/api/blobs/{sha}", content=data, headers={"Content-Type": kind})


def post(client: Client, bundle: Bundle | dict[str, Any], run: str = "run") -> Any:
    sent = bundle if isinstance(bundle, dict) else bundle.model_dump()
    return client.post("/api/submissions", json={"run": run, "bundle": sent})


def score_all(store: Store) -> int:
    """Score whatever waits; return how many."""
    count = 0
    while score_next(store, new_owner()):
        count += 1
    return count
