"""The addresses of the pages, for any server that has runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from html import escape
from typing import Annotated, Any, Literal, cast

import pandas as pd
from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evaluation.pages.about_page import about_page
from evaluation.pages.compare_page import compare_page
from evaluation.pages.comparison import pairs_of, table
from evaluation.pages.frame import page
from evaluation.pages.paper_page import paper_page
from evaluation.pages.run_page import TABLES, run_page
from evaluation.pages.runs_page import runs_page
from evaluation.pages.shelf import KINDS, Missing, Shelf
from evaluation.pages.style import ICON, SHEET
from evaluation.published.join import join_published
from evaluation.report.grid import Grid
from evaluation.report.latex import latex
from evaluation.report.markdown import markdown
from evaluation.report.values import values
from evaluation.service.sources import Runs
from partitions.errors import BadInput

POLICY = (
    "default-src 'none'; img-src 'self'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""A page may show this server's images and style sheet, and nothing else; no script runs."""
ALONE = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
"""What an SVG may do when it is opened by itself."""
GUARDS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": POLICY,
}
FOR_EVER = "private, max-age=31536000, immutable"
"""Of an address that has the content's hash in it. Private, since a server may ask for a token."""
ASK_AGAIN = "private, no-cache"
REFUSALS = {
    401: ("A token is needed", "This server answers those who have its token: give it as the password, with any name."),
    403: (
        "Not by this name",
        "Without a token this server answers only calls from its own machine, at 127.0.0.1 or localhost.",
    ),
    405: ("That cannot be done here", "This address can be read, and nothing can be sent to it."),
}
"""Titles and words of the pages of what is refused to browsers."""
KEPT = {"www-authenticate", "allow", "retry-after"}
"""Headers of such an answer that its page has too."""
WRITERS: dict[str, Callable[[Sequence[Grid]], str]] = {"csv": values, "md": markdown, "tex": latex}
LOG = logging.getLogger(__name__)

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Words = Annotated[str, Query(max_length=200)]
Ids = Annotated[list[str], Query(default_factory=list, max_length=100)]


class _Route(APIRoute):
    """Answers with a page whatever happens, never with a traceback, and guards every answer."""

    def get_route_handler(self) -> Handler:
        answer = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            try:
                response = await answer(request)
            except Missing as error:
                response = not_found(str(error))
            except BadInput as error:
                response = refused(error)
            except RequestValidationError:
                response = failure(400, "That address is not right", "Something in the address cannot be read.")
            except Exception:  # a fault of ours: the log has it, the reader has a page
                LOG.exception("the page %s could not be made", request.url.path)
                response = broken()
            for name, value in GUARDS.items():
                response.headers.setdefault(name, value)
            return response

        return guarded


def pages_router(source: Runs) -> APIRouter:
    """Return the pages of a source of runs: ``/``, ``/run/...``, ``/compare`` and ``/about``.

    Parameters
    ----------
    source : Runs
        Whatever has runs: run folders, a server's store.
    """
    router = APIRouter(route_class=_Route, include_in_schema=False, default_response_class=HTMLResponse)
    shelf = Shelf(source)

    @router.get("/")
    def runs(run: Ids, q: Words = "", page: int = 1) -> HTMLResponse:
        return _html(runs_page(source.runs(), q, run, page))

    @router.get("/about")
    def about() -> HTMLResponse:
        return _html(about_page())

    @router.get("/run/{id}")
    def one(id: str) -> HTMLResponse:
        return _html(run_page(shelf.ready(id)))

    @router.get("/run/{id}/paper")
    def paper(id: str, other: bool = False) -> HTMLResponse:
        return _html(paper_page(shelf.ready(id), other_datasets=other))

    @router.get("/run/{id}/paper.csv")
    def paper_csv(id: str, other: bool = False) -> Response:
        return _csv(join_published(shelf.ready(id).run.results, other_datasets=other))

    @router.get("/run/{id}/results.csv")
    def results(id: str) -> Response:
        return _csv(shelf.open(id).results)

    @router.get("/run/{id}/curves.csv")
    def curves(id: str) -> Response:
        return _csv(shelf.open(id).curves)

    @router.get("/run/{id}/tables.{kind}")
    def tables(id: str, kind: str) -> Response:
        return _tables(shelf.ready(id).grids, kind)

    @router.get("/run/{id}/tables/{name}.{kind}")
    def one_table(id: str, name: str, kind: str) -> Response:
        return _tables([grid for grid in shelf.ready(id).grids if grid.slug == name], kind)

    @router.get("/run/{id}/figures/{name}.{kind}")
    def figure(request: Request, id: str, name: str, kind: str, v: str = "") -> Response:
        ready = shelf.ready(id)
        plot = ready.plots.get(name)
        if plot is None or kind not in KINDS:
            raise Missing(f"figure {name}.{kind}")
        mark = ready.marks[name]
        headers = {"ETag": f'"{mark}-{kind}"', "Cache-Control": FOR_EVER if v == mark else ASK_AGAIN}
        if f'"{mark}-{kind}"' in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        content = plot.csv if kind == "csv" else shelf.drawn(plot, mark, cast(Literal["png", "svg"], kind))
        return Response(content, media_type=KINDS[kind], headers=headers | {"Content-Security-Policy": ALONE})

    @router.get("/compare")
    def compare(run: Ids) -> HTMLResponse:
        return _html(compare_page(*(shelf.ready(id) for id in _two(run))))

    @router.get("/compare.csv")
    def compare_csv(run: Ids) -> Response:
        first, second = (shelf.ready(id).sections for id in _two(run))
        return _csv(table(pairs_of(first, second)))

    @router.get("/style.css")
    def style() -> Response:
        return Response(SHEET, media_type="text/css", headers={"Cache-Control": FOR_EVER})

    @router.get("/icon.svg")
    def icon() -> Response:
        headers = {"Cache-Control": "private, max-age=86400"}
        return Response(ICON, media_type="image/svg+xml", headers=headers)

    return router


def add_pages(app: FastAPI, source: Runs) -> None:
    """Add the pages to a server, the one for an unknown address among them."""
    app.include_router(pages_router(source))
    be_friendly(app)


class _Refusals:
    """Gives a browser a page where a server refuses it with a few words for programs; status and headers stay."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and put a page in the place of what is refused."""
        if scope["type"] != "http" or b"text/html" not in dict(scope["headers"]).get(b"accept", b""):
            await self._app(scope, receive, send)
            return
        refused = False

        async def answer(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                told = REFUSALS.get(message["status"])
                refused = told is not None and "text/html" not in headers.get("content-type", "")
                if told is not None and refused:
                    page = failure(message["status"], *told)
                    page.headers.update({name: value for name, value in headers.items() if name in KEPT} | GUARDS)
                    await page(scope, receive, send)
                    return
            if not refused:
                await send(message)

        await self._app(scope, receive, answer)


def be_friendly(app: FastAPI) -> None:
    """Answer a browser with a page where it is refused or asks for what there is not; programs get what they got."""
    app.add_middleware(_Refusals)
    other = app.exception_handlers[HTTPException]

    async def unknown(request: Request, error: Exception) -> Response:
        nowhere = isinstance(error, HTTPException) and (error.status_code, error.detail) == (404, "Not Found")
        if not nowhere or "text/html" not in request.headers.get("accept", ""):
            return cast(Response, await other(request, error))  # type: ignore[misc]
        response = not_found(request.url.path)
        response.headers.update(GUARDS)
        return response

    app.add_exception_handler(HTTPException, unknown)


# ---------------------------------------------------------------------- what went wrong
def not_found(what: str) -> HTMLResponse:
    """Return the page that says there is none."""
    return failure(404, "There is no such page", f"There is no {what} here: it may have been removed or renamed.")


def refused(error: BadInput) -> HTMLResponse:
    """Return the page of a mistake or of a damaged run: what is expected, and the remedy; no path of this machine."""
    remedy = f": {error.remedy}" if error.remedy else ""
    return failure(
        400 if error.key == "compare" else 409, "That cannot be shown", f"Expected is {error.allowed}{remedy}."
    )


def broken() -> HTMLResponse:
    """Return the page of a fault of the server's own."""
    words = "The fault is the server's, and its log has the details. The other runs can still be read."
    return failure(500, "This page could not be made", words)


def failure(status: int, title: str, words: str) -> HTMLResponse:
    """Return a page that says in a sentence what is wrong, and where to go on."""
    told = f'<p class="lead">{escape(words)}</p><p><a href="/">All runs</a></p>'
    return _html(page(title, told), status)


def _two(ids: Sequence[str]) -> tuple[str, str]:
    if len(ids) != 2:
        raise BadInput("compare", f"{len(ids)} ticked", "two runs", "go back and tick two")
    return ids[0], ids[1]


# ---------------------------------------------------------------------- answers
def _html(text: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(text, status, headers={"Cache-Control": ASK_AGAIN})


def _csv(rows: pd.DataFrame) -> Response:
    text = rows.to_csv(index=False, lineterminator="\n")
    return Response(text, media_type="text/csv; charset=utf-8", headers={"Cache-Control": ASK_AGAIN})


def _tables(grids: Sequence[Grid], kind: str) -> Response:
    if not grids or kind not in WRITERS:
        raise Missing("such table")
    headers: Mapping[str, str] = {"Cache-Control": ASK_AGAIN}
    return Response(WRITERS[kind](grids), media_type=TABLES[kind], headers=headers)
