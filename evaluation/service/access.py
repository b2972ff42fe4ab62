"""Who may talk to a server: a token, or this machine alone; and how much anyone may send."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import os
from pathlib import Path
from typing import Any

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evaluation.service.limits import Limits
from partitions.errors import BadInput

TOKEN, TOKEN_FILE = "LETHE_EVALUATOR_TOKEN", "LETHE_EVALUATOR_TOKEN_FILE"
SHORTEST = 16
"""Characters of a token at least."""
MAKE_ONE = f"make one: export {TOKEN}=$(python -c 'import secrets; print(secrets.token_urlsafe(32))')"
API = "/api/"


def read_token(file: Path | None = None) -> str:
    """Return the token: of `file`, of the environment's LETHE_EVALUATOR_TOKEN, or of LETHE_EVALUATOR_TOKEN_FILE.

    Empty when there is none. A token on the command line could be read by everyone on the machine.

    Raises
    ------
    BadInput
        For a file that cannot be read, or a token that is too short or cannot stand in a header.
    """
    named = file or (Path(os.environ[TOKEN_FILE]) if os.environ.get(TOKEN_FILE) else None)
    if file is None and os.environ.get(TOKEN):
        where, token = TOKEN, os.environ[TOKEN].strip()
    elif named is not None:
        where = "token-file" if file else TOKEN_FILE
        try:
            token = named.expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(where, str(named), f"a file one can read ({getattr(error, 'strerror', error)})") from None
    else:
        return ""
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise BadInput(where, "(not shown)", f"{SHORTEST} or more ASCII characters without blanks", MAKE_ONE)
    return token


def is_loopback(host: str) -> bool:
    """Tell whether an address or name means this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Guard:
    """Lets through who has the token; without a token, who calls this machine by a loopback name.

    A browser may send the token as the password of its own dialogue, for pages; never for the API, which a page of
    another site could then make it call. Without a token the name in ``Host`` must be a loopback one, so that no web
    page reaches the server through a name of its own that points here.

    Parameters
    ----------
    app : ASGI application
        What is guarded, all of it.
    token : str
        Empty: none is needed.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, _digest(token) if token else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 or 403, or pass the request on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope.get("headers", ())}
        api = scope["path"].startswith(API)
        if not self._token:
            if _host(headers.get(b"host", "")):
                await self._app(scope, receive, send)
            else:
                message = "without a token the evaluator answers to 127.0.0.1, ::1 and localhost only"
                await _answer(send, 403, {"field": "Host", "message": message})
        elif hmac.compare_digest(
            _digest(_given(headers.get(b"authorization", ""), api, scope.get("method", ""))), self._token
        ):
            await self._app(scope, receive, send)
        else:
            message = f"a token is needed: Authorization: Bearer ..., from {TOKEN} or {TOKEN_FILE}"
            scheme = "Bearer" if api else 'Basic realm="Lethe: any name, and the token as password", charset="UTF-8"'
            await _answer(send, 401, {"field": "Authorization", "message": message}, {"www-authenticate": scheme})


class BodyLimit:
    """Ends a request whose body is larger than its path allows, with 413, the limit and the setting.

    Parameters
    ----------
    app : ASGI application
        What is guarded.
    limits : Limits
        ``upload_bytes`` for blobs, ``document_bytes`` for everything else.
    """

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting what comes."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_blob = scope["method"] == "PUT" and scope["path"].startswith(f"{API}blobs/")
        limit = self._limits.upload_bytes if is_blob else self._limits.document_bytes
        setting = "--max-upload of `lethe evaluator serve`" if is_blob else "fixed: tables and weights are blobs"
        told = {"field": "content", "message": f"at most {limit} bytes are taken ({setting})"}
        told |= {"limit": limit, "setting": setting}  # type: ignore[dict-item]
        declared = dict(scope["headers"]).get(b"content-length", b"")
        if declared.isdigit() and int(declared) > limit:
            await _answer(send, 413, told, {"connection": "close"})
            return
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > limit:
                raise HTTPException(413, detail=told, headers={"connection": "close"})
            return message

        await self._app(scope, counted, send)


class Head:
    """Answers HEAD as GET, without the body.

    Parameters
    ----------
    app : ASGI application
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, without_body)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _given(authorization: str, api: bool, method: str) -> str:
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() == "basic" and not api and method in ("GET", "HEAD"):
        try:
            return base64.b64decode(rest.strip(), validate=True).decode().partition(":")[2]
        except ValueError:
            return ""
    return ""


def _host(header: str) -> bool:
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdigit() and not header.endswith("]") else header
    return is_loopback(name)


async def _answer(send: Send, status: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> None:
    body = json.dumps(content).encode()
    sent = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    raw = [(name.encode(), value.encode()) for name, value in sent.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
