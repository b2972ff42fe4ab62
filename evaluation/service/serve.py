"""Runs a server until it is told to end."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from sqlalchemy.engine import URL
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evaluation.service.access import MAKE_ONE, is_loopback
from evaluation.service.app import make_app
from evaluation.service.formats import first_line
from evaluation.service.limits import DEFAULT, MIB
from evaluation.service.store import LEASE, Store
from evaluation.service.worker import Workers
from partitions.errors import BadInput, RunFailed

GRACE = 5
"""Seconds that requests have to end in once the server is told to."""


@dataclass(frozen=True)
class Server:
    """How to serve.

    Attributes
    ----------
    host, port : str, int
        Where to listen; port 0 takes a free one.
    url : str or URL
        Of the database.
    folder : Path
        Of the blobs.
    token : str
        What callers must present; must be there unless `host` is a loopback address.
    max_upload : int
        MiB of one table or one set of weights.
    workers : int
        Processes that score.
    lease : float
        Seconds after which what a dead worker was at is scored again.
    """

    host: str
    port: int
    url: str | URL
    folder: Path
    token: str
    max_upload: int
    workers: int
    lease: float = LEASE

    def run(
        self, say: Callable[[str], None], add_to: Callable[[FastAPI, Store], None] = lambda app, store: None
    ) -> None:
        """Serve until INT or TERM.

        Parameters
        ----------
        say : callable
            Gets the line that tells where the server listens.
        add_to : callable
            Adds further routes to the application, such as the pages of the store's runs.

        Raises
        ------
        BadInput
            When it cannot listen there, must not without a token, or the store cannot be opened.
        """
        if not self.token and not is_loopback(self.host):
            raise BadInput("host", self.host, "a loopback address such as 127.0.0.1 unless there is a token", MAKE_ONE)
        limits = replace(DEFAULT, upload_bytes=self.max_upload * MIB)
        with contextlib.closing(_listen(self.host, self.port)) as listener:
            store = Store(self.url, self.folder)
            logging.basicConfig(level=logging.INFO, format="evaluator: %(message)s")
            workers = Workers(store, self.workers, limits, self.lease)
            app = make_app(
                store,
                token=self.token,
                limits=limits,
                workers=self.workers,
                alive=lambda: workers.alive,
                background=workers,
            )
            add_to(app, store)
            told = _Told(app)
            config = uvicorn.Config(
                told,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=GRACE,
                ws="none",
            )
            who = "token required" if self.token else "no token: this machine only"
            address = f"http://{self._shown_host}:{listener.getsockname()[1]}"
            server = _Uvicorn(config, app)
            with server.capture_signals():  # from the line on that says it listens
                say(f"evaluator: {address} ({who}); its API: {address}/docs; store {store.shown}")
                server.run(sockets=[listener])
            store.close()
            if not server.started:
                raise RunFailed(f"the evaluator could not start: {told.problem or 'the lines above say why'}")

    @property
    def _shown_host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


class _Told:
    """The application, whose failure to start is one line for a person instead of a traceback.

    Attributes
    ----------
    problem : str
        Why it could not start; else empty.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app, self.problem = app, ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on but the traceback of a failed start."""
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return

        async def shortened(message: Message) -> None:
            await send({**message, "message": ""} if message["type"].endswith(".failed") else message)

        try:
            await self._app(scope, receive, shortened)
        except Exception as error:
            self.problem = first_line(getattr(error, "orig", None) or error)
            raise


class _Uvicorn(uvicorn.Server):
    """Uvicorn that ends well on INT and TERM, instead of raising the signal once more."""

    def __init__(self, config: uvicorn.Config, app: Any) -> None:
        super().__init__(config)
        self._app = app

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take INT and TERM for as long as it serves."""
        known = {sign: signal.signal(sign, self.handle_exit) for sign in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sign, handler in known.items():
                signal.signal(sign, handler)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begin to end: requests that wait for a submission are answered now."""
        self._app.state.stopping = True
        super().handle_exit(sig, frame)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
        listener.listen(1024)
    except (OSError, OverflowError) as error:
        listener.close()
        if getattr(error, "strerror", None) and "in use" in str(error):
            raise BadInput("port", port, "a port that nobody listens on yet", "name another with --port") from None
        allowed = f"an address of this machine that one may listen on ({getattr(error, 'strerror', None) or error})"
        raise BadInput("host", f"{host}:{port}", allowed, "see --host and --port") from None
    return listener
