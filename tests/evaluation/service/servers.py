"""Servers that listen: in a thread of the test, or as the process that a person starts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import uvicorn
from fastapi import FastAPI

from evaluation.service.store import Store
from evaluation.service.worker import new_owner, work

ROOT = Path(__file__).resolve().parents[3]
SLOW_START = 90.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def in_thread(app: FastAPI, store: Store | None = None, port: int = 0) -> Iterator[str]:
    """Serve in a thread, with a worker in another when there is a store; gives the URL."""
    port = port or free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", timeout_graceful_shutdown=1))
    stop = threading.Event()
    threads = [threading.Thread(target=server.run, daemon=True)]
    if store is not None:
        threads.append(threading.Thread(target=work, args=(store, stop, new_owner()), daemon=True))
    for thread in threads:
        thread.start()
    try:
        while not server.started:
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop.set()
        app.state.stopping = server.should_exit = True
        for thread in threads:
            thread.join(10)


@dataclass
class Process:
    """A server process.

    Attributes
    ----------
    command : list of str
        After the interpreter.
    port : int
        Where it listens.
    environment : mapping
        Added to this one's.
    """

    command: list[str]
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    popen: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, headers: Mapping[str, str] = {}) -> Process:
        env = {**os.environ, "PYTHONPATH": str(ROOT), **self.environment}
        env = {key: value for key, value in env.items() if value}
        self.popen = subprocess.Popen(
            [sys.executable, *self.command],
            env=env,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        until = time.monotonic() + SLOW_START
        while time.monotonic() < until:
            if self.popen.poll() is not None:
                raise AssertionError(f"it ended: {self.popen.stdout and self.popen.stdout.read()}")
            try:
                httpx.get(f"{self.url}/api/health", headers=headers, trust_env=False).raise_for_status()
                return self
            except httpx.HTTPError:
                time.sleep(0.1)
        raise AssertionError("it did not start")

    def kill(self) -> None:
        """End it as the kernel does when memory is short."""
        assert self.popen is not None
        self.popen.kill()
        self.popen.wait()

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """End it as a person does; returns its exit code and what it printed."""
        assert self.popen is not None
        if self.popen.poll() is None:
            self.popen.send_signal(sign)
        output, _ = self.popen.communicate(timeout=30)
        return self.popen.returncode, output


def serve_command(home: Path, port: int, *more: str) -> list[str]:
    return ["-m", "flower_apps.cli", "evaluator", "serve", "--home", str(home), "--port", str(port), *more]


def refusal_of(command: list[str], environment: Mapping[str, str] = {}) -> tuple[int, str]:
    """Run a command that should refuse; returns exit code and standard error."""
    env = {key: value for key, value in {**os.environ, "PYTHONPATH": str(ROOT), **environment}.items() if value}
    done = subprocess.run([sys.executable, *command], env=env, cwd=ROOT, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr
