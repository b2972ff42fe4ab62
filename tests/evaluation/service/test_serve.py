"""The server as a process: started, refused in one line, ended by a person, and killed in mid-scoring."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from bundles import Bundles
from posting import post, put_run, upload
from servers import ROOT, Process, free_port, refusal_of, serve_command
from sqlalchemy.exc import OperationalError

from evaluation.evaluator import InProcess
from evaluation.service.serve import Server
from evaluation.service.store import Store, sqlite_url
from flower_apps import cli
from partitions.errors import RunFailed

TOKEN = "a-token-of-some-length"
HERE = Path(__file__).parent


@pytest.fixture
def started() -> Iterator[Callable[[Process], Process]]:
    running: list[Process] = []

    def start(process: Process) -> Process:
        running.append(process)
        return process.start()

    yield start
    for process in running:
        if process.popen is not None and process.popen.poll() is None:
            process.stop()


def slow(tmp_path: Path, seconds: float, workers: int = 1) -> Process:
    port = free_port()
    environment = {"MARK": str(tmp_path / "mark"), "SLOW": str(seconds)}
    return Process([str(HERE / "slow_server.py"), str(tmp_path / "store"), str(port), str(workers)], port, environment)


def begun(tmp_path: Path) -> list[tuple[int, str]]:
    mark = tmp_path / "mark"
    lines = mark.read_text().splitlines() if mark.exists() else []
    return [(int(line.split()[0]), line.split()[1]) for line in lines]


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Return what gives a command that should refuse, in this process: exit code, and all that it says on stderr."""

    def serve(*more: str, **environment: str) -> tuple[int, str]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        given = ["evaluator", "serve", "--home", str(tmp_path), "--port", str(free_port()), *more]
        return cli.main(given), capfd.readouterr().err

    monkeypatch.delenv("LETHE_EVALUATOR_TOKEN", raising=False)
    return serve


def test_killed_in_mid_scoring_it_loses_nothing_and_goes_on(
    started: Callable[[Process], Process], tmp_path: Path, bundles: Bundles
) -> None:
    first = started(slow(tmp_path, 60.0))
    here = InProcess(tmp_path / "here")
    with httpx.Client(base_url=first.url, trust_env=False, timeout=60.0) as client:
        put_run(client)
        for submission in (bundles("ga", 1), bundles("fedquit", 2)):
            here.submit(submission)
            assert post(client, upload(client, submission)).status_code == 202
    until(lambda: begun(tmp_path))
    worker = psutil.Process(begun(tmp_path)[0][0])
    first.kill()
    until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, 10)
    store = Store(sqlite_url(tmp_path / "store" / "evaluator.sqlite"), tmp_path / "store")
    assert sorted(store.counts()) == ["queued", "scoring"]
    again = started(slow(tmp_path, 0.0))
    until(lambda: store.counts() == {"done": 2})
    assert len(begun(tmp_path)) == 3, "what was interrupted began again, and nothing was scored twice"
    with httpx.Client(base_url=again.url, trust_env=False, timeout=60.0) as client:
        for name in ("results.csv", "curves.csv"):
            assert client.get(f"/api/runs/run/{name}").content == (tmp_path / "here" / name).read_bytes()
    store.close()


def test_a_worker_that_dies_is_replaced_and_requests_are_answered_meanwhile(
    started: Callable[[Process], Process], tmp_path: Path, bundles: Bundles
) -> None:
    process = started(slow(tmp_path, 2.0))
    with httpx.Client(base_url=process.url, trust_env=False, timeout=60.0) as client:
        put_run(client)
        id = post(client, upload(client, bundles("ga", 1))).json()["id"]
        until(lambda: begun(tmp_path))
        before = time.monotonic()
        assert client.get("/api/runs").status_code == 200
        assert time.monotonic() - before < 1.5, "scoring blocks no request"
        os.kill(begun(tmp_path)[0][0], signal.SIGKILL)
        until(lambda: client.get(f"/api/submissions/{id}").json()["status"] == "done")
        assert client.get(f"/api/submissions/{id}").json()["attempts"] == 2
        assert client.get("/api/health").json()["status"] == "ok"


def test_two_servers_share_a_store_and_score_each_model_once(
    started: Callable[[Process], Process], tmp_path: Path, bundles: Bundles
) -> None:
    servers = [started(slow(tmp_path, 0.2)), started(slow(tmp_path, 0.2))]
    names = [f"m{number}" for number in range(6)]
    clients = [httpx.Client(base_url=server.url, trust_env=False, timeout=60.0) for server in servers]
    put_run(clients[0])
    for number, name in enumerate(names):
        client = clients[number % 2]
        assert post(client, upload(client, bundles(name, 1))).status_code == 202
    until(lambda: clients[1].get("/api/health").json()["submissions"] == {"done": 6})
    assert sorted(name for _, name in begun(tmp_path)) == names
    assert clients[0].get("/api/runs/run/results.csv").content == clients[1].get("/api/runs/run/results.csv").content
    for client in clients:
        client.close()


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_cleanly_and_gives_back_what_it_was_at(
    started: Callable[[Process], Process], tmp_path: Path, bundles: Bundles, sign: signal.Signals
) -> None:
    process = started(slow(tmp_path, 60.0))
    with httpx.Client(base_url=process.url, trust_env=False, timeout=60.0) as client:
        put_run(client)
        post(client, upload(client, bundles()))
    until(lambda: begun(tmp_path))
    before = time.monotonic()
    code, output = process.stop(sign)
    assert code == 0, output
    assert time.monotonic() - before < 15
    assert "Traceback" not in output
    store = Store(sqlite_url(tmp_path / "store" / "evaluator.sqlite"), tmp_path / "store")
    assert store.counts() == {"queued": 1}
    store.close()


def test_the_command_serves_with_a_token_and_keeps_everything_below_its_home(tmp_path: Path, bundles: Bundles) -> None:
    port, home = free_port(), tmp_path / "a home, ü"
    process = Process(serve_command(home, port), port, {"LETHE_EVALUATOR_TOKEN": TOKEN})
    process.start({"Authorization": f"Bearer {TOKEN}"})
    assert httpx.get(f"{process.url}/api/health", trust_env=False).status_code == 401
    code, output = process.stop()
    assert code == 0, output
    assert f"evaluator: {process.url} (token required); its API: {process.url}/docs; store sqlite:///" in output
    assert TOKEN not in output
    assert {path.name for path in (home / "evaluator").iterdir()} >= {"evaluator.sqlite", "uploads", "store-id"}


def test_a_store_id_that_is_no_text_is_told_in_one_line(
    tmp_path: Path, refused: Callable[..., tuple[int, str]]
) -> None:
    folder = tmp_path / "evaluator"
    Store(sqlite_url(folder / "evaluator.sqlite"), folder).close()
    (folder / "store-id").write_bytes(b"\xff\xfe")
    code, told = refused()
    assert (code, told.count("\n")) == (2, 1), told
    assert "--folder" in told


def test_a_start_that_fails_is_told_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(self: Store) -> int:
        raise OperationalError("select", {}, Exception("no such column: runs.rounds"))

    monkeypatch.setattr(Store, "take_away_leftovers", broken)
    server = Server("127.0.0.1", 0, sqlite_url(tmp_path / "e.sqlite"), tmp_path, "", 64, 1)
    with pytest.raises(RunFailed, match="could not start: no such column"):
        server.run(print)
    assert "Traceback" not in "".join(capfd.readouterr())


def test_a_client_that_goes_away_leaves_no_traceback(started: Callable[[Process], Process], tmp_path: Path) -> None:
    process = started(slow(tmp_path, 0.0))
    with socket.create_connection(("127.0.0.1", process.port)) as sender:
        head = f"PUT /api/blobs/{'0' * 64} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
        sender.sendall(f"{head}Content-Type: application/vnd.safetensors\r\n\r\nabc".encode())
        time.sleep(1)
    time.sleep(1)
    assert httpx.get(f"{process.url}/api/health", trust_env=False).status_code == 200
    code, output = process.stop()
    assert code == 0 and "Traceback" not in output and "Disconnect" not in output, output
    assert list((tmp_path / "store" / "uploads").iterdir()) == []


@pytest.mark.parametrize("after", [0.0, 2.0])
def test_a_ctrl_c_to_all_of_its_processes_is_quiet(tmp_path: Path, after: float) -> None:
    process = slow(tmp_path, 0.0)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **process.environment, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, *process.command]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True, **streams) as popen:
        assert popen.stdout is not None
        first = popen.stdout.readline()
        time.sleep(after)
        os.killpg(popen.pid, signal.SIGINT)
        output = first + popen.stdout.read()
        assert popen.wait(30) == 0, output
    assert "Traceback" not in output and "KeyboardInterrupt" not in output, output


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_another_address_than_loopback_needs_a_token(refused: Callable[..., tuple[int, str]], host: str) -> None:
    code, told = refused("--host", host)
    assert code == 2
    assert re.fullmatch(rf"lethe: host='{re.escape(host)}': allowed is a loopback .*LETHE_EVALUATOR_TOKEN=.*\n", told)


def test_a_port_in_use_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, told = refusal_of(serve_command(tmp_path, port))
    assert (code, told.count("\n")) == (2, 1)
    assert f"port={port}" in told and "--port" in told


@pytest.mark.parametrize(
    ("more", "environment", "words"),
    [
        (["--store", "nonsense"], {}, ["store='nonsense'", "sqlite:///"]),
        (["--store", "sqlite://"], {}, ["store=", "a file"]),
        (["--store", "oracle://u:hunter2@h/d"], {}, ["store=", "driver"]),
        (["--store", "postgresql://u:hunter2@127.0.0.1:1/d?connect_timeout=2"], {}, ["store=", "refused"]),
        (["--store", "sqlite:////proc/none/x.sqlite"], {}, ["store="]),
        (["--store", "sqlite:////tmp/x.db?timeout=abc"], {}, ["store=", "options", "abc"]),
        (["--store", "sqlite:////tmp/x.db?nonsense=1"], {}, ["store=", "nonsense"]),
        (["--folder", "/proc/none"], {}, ["store='/proc/none'", "write"]),
        (["--token-file", "/nowhere/token"], {}, ["token-file=", "/nowhere/token"]),
        ([], {"LETHE_EVALUATOR_TOKEN": "hunter2"}, ["LETHE_EVALUATOR_TOKEN", "16"]),
        (["--host", "no.such.host.invalid"], {"LETHE_EVALUATOR_TOKEN": TOKEN}, ["host=", "--host"]),
    ],
)
def test_what_cannot_be_served_is_told_in_one_line(
    refused: Callable[..., tuple[int, str]], more: list[str], environment: dict[str, str], words: list[str]
) -> None:
    code, told = refused(*more, **environment)
    assert (code, told.count("\n")) == (2, 1), told
    assert "hunter2" not in told
    for word in words:
        assert word in told, told
