"""The HTTP interface of a store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import asdict
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, FastAPI, Header, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi_offline import FastAPIOffline
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from evaluation.catalogue import METRICS
from evaluation.results import csv_text
from evaluation.service import wire
from evaluation.service.access import BodyLimit, Guard, Head
from evaluation.service.answers import (
    BlobNames,
    Health,
    Kept,
    Post,
    Posted,
    Refusal,
    RunAnswer,
    RunId,
    RunLine,
    RunRecord,
    Scored,
    Standing,
    TooLarge,
)
from evaluation.service.checks import Checker
from evaluation.service.formats import TABLE, TENSORS
from evaluation.service.inspector import INSPECTOR
from evaluation.service.limits import DEFAULT, Limits
from evaluation.service.records import check_record
from evaluation.service.store import Store
from evaluation.service.store_runs import run_status
from partitions.errors import BadInput, disk_full, shortened

LONGEST_WAIT = 30.0
"""Seconds for which a request may wait for a submission to be scored."""
LOOK = 0.1
"""Seconds between two looks meanwhile."""
PIECE = 2**20
"""Bytes of an upload that are written at once."""
DESCRIPTION = """
Scores unlearned models against a retrained one. A run posts **bundles**: one checkpoint of one model with its scores by
record, its weights and its costs, and the retrained models to read it against. No image ever travels.

1. `POST /api/blobs/missing` asks which tables (parquet) and weights (safetensors) the server lacks; they are named by
   their SHA-256.
2. `PUT /api/blobs/{sha256}` uploads those.
3. `PUT /api/runs/{run}` names the run.
4. `POST /api/submissions` posts a bundle, which refers to its blobs. It is checked at once and scored
   in the background. The same bundle twice is one result.
5. `GET /api/submissions/{id}?wait=30` waits for its rows; `GET /api/runs/{run}/results.csv` has the whole run's.

Whatever is refused is refused with the field at fault and a line that says what is allowed; nothing of it is kept.
"""
TAGS = [
    {"name": "blobs", "description": "Tables and weights by their hashes: each travels once."},
    {"name": "submissions", "description": "Bundles, and where they stand."},
    {"name": "runs", "description": "What belongs together, and its results."},
    {"name": "server", "description": "How the server is."},
]
Responses = dict[int | str, dict[str, Any]]
UNKNOWN: Responses = {404: {"model": Refusal, "description": "There is none of that name"}}
REFUSED: Responses = {422: {"model": Refusal, "description": "Refused; nothing was kept"}}
LARGE: Responses = {413: {"model": TooLarge, "description": "Too large; nothing was kept"}}
_BYTES = {"schema": {"type": "string", "format": "binary"}}
BLOB_BODY = {"requestBody": {"required": True, "content": {TABLE: _BYTES, TENSORS: _BYTES}}}
CSV: Responses = {200: {"content": {"text/csv": {}}, "description": "The table"}}

ShaInPath = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="SHA-256 in hex")]


def make_app(
    store: Store,
    *,
    token: str = "",
    limits: Limits = DEFAULT,
    workers: int = 0,
    alive: Callable[[], int] = lambda: 0,
    background: AbstractContextManager[Any] | None = None,
) -> FastAPI:
    """Return the application.

    Parameters
    ----------
    store : Store
        Where everything is kept.
    token : str
        What callers must present; empty: nothing, and they must call by a loopback name.
    limits : Limits
        On what they send.
    workers : int
        How many workers there should be.
    alive : callable
        Returns how many there are.
    background : context manager, optional
        Entered when the server starts and left when it ends, such as its workers.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        INSPECTOR.warm_up()
        await run_in_threadpool(store.take_away_leftovers)
        around = background or nullcontext()
        await run_in_threadpool(around.__enter__)
        try:
            yield
        finally:
            await run_in_threadpool(around.__exit__, None, None, None)

    app = FastAPIOffline(  # its pages load nothing from elsewhere
        redoc_url=None,
        title="Lethe evaluator",
        summary="Scores unlearned models against a retrained one",
        description=DESCRIPTION,
        version=f"{wire.VERSION}",
        openapi_tags=TAGS,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        responses={401: {"model": Refusal, "description": "The server wants a token"}},
        lifespan=lifespan,
    )
    app.state.stopping = False
    _tell_errors(app)
    for router in (_blobs(store, limits), _submissions(app, store, limits), _runs(store)):
        app.include_router(router)

    @app.get("/api/health", tags=["server"], summary="How the server is")
    def health() -> Health:
        living = alive()
        return Health(
            status="ok" if living >= workers else "degraded",
            bundle_version=wire.VERSION,
            workers=living,
            submissions=store.counts(),  # type: ignore[arg-type]
            metrics=METRICS.names(),
            max_upload=limits.upload_bytes,
        )

    app.add_middleware(Head)
    app.add_middleware(BodyLimit, limits=limits)
    app.add_middleware(Guard, token=token)
    return app


def _blobs(store: Store, limits: Limits) -> APIRouter:
    router = APIRouter(prefix="/api/blobs", tags=["blobs"])

    @router.post("/missing", summary="Which of these blobs the server lacks", responses=REFUSED)
    def missing(names: BlobNames) -> BlobNames:
        return BlobNames(sha256=[sha for sha in dict.fromkeys(names.sha256) if not store.blobs.kinds(sha)])

    @router.put(
        "/{sha256}",
        summary="Upload a table or tensors",
        description="The bytes as they are; kept once they are complete, on the disk, and of that hash and kind.",
        responses={**REFUSED, **LARGE, 415: {"model": Refusal, "description": "Neither parquet nor safetensors"}},
        openapi_extra=BLOB_BODY,
        status_code=201,
    )
    async def put(sha256: ShaInPath, request: Request, content_type: Annotated[str, Header()] = "") -> Kept:
        if content_type not in (TABLE, TENSORS):
            raise HTTPException(
                415, _refusal("Content-Type", f"{shortened(content_type)!r}: allowed is {TABLE} or {TENSORS}")
            )
        upload = await run_in_threadpool(store.blobs.upload, sha256, content_type, limits)
        with upload:
            waiting = bytearray()
            async for piece in request.stream():
                waiting += piece
                if len(waiting) >= PIECE:
                    await run_in_threadpool(upload.write, bytes(waiting))
                    waiting.clear()
            await run_in_threadpool(upload.write, bytes(waiting))
            await run_in_threadpool(upload.finish)
        return Kept(sha256=sha256, size=upload.size)

    return router


def _submissions(app: FastAPI, store: Store, limits: Limits) -> APIRouter:
    router = APIRouter(prefix="/api/submissions", tags=["submissions"])
    checker = Checker(store.blobs.read, limits)

    @router.post(
        "",
        summary="Post a bundle to be scored",
        description="Idempotent: the same bundle again is the same submission, in whichever run; one that failed is "
        "scored again.",
        responses={**UNKNOWN, **REFUSED, **LARGE, 200: {"model": Posted, "description": "It was here already"}},
        status_code=202,
    )
    def post(posted: Post, response: Response) -> Posted:
        for field, sha, kind in posted.bundle.references():
            _need(store, f"bundle.{field}", sha, kind)
        try:
            checker.check(posted.bundle)
        except BadInput as error:
            raise BadInput(f"bundle.{error.key}", error.value, error.allowed, error.remedy) from None
        try:
            standing, is_new = store.post(posted.run, posted.bundle)
        except KeyError:
            raise _unknown("run", posted.run, "a run that PUT /api/runs/{run} named") from None
        response.status_code = 202 if is_new else 200
        return Posted(**asdict(standing), new=is_new)

    @router.get(
        "/{id}",
        summary="Where a submission stands, and its rows once it is done",
        responses={**UNKNOWN, **REFUSED},
    )
    async def get(
        id: ShaInPath,
        wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT, description="seconds to wait for it")] = 0.0,
    ) -> Scored:
        until = time.monotonic() + wait
        while True:
            try:
                standing = await run_in_threadpool(store.standing, id)
            except KeyError:
                raise _unknown("id", id, "a submission that was posted") from None
            if standing.status in ("done", "failed") or time.monotonic() >= until or app.state.stopping:
                break
            await anyio.sleep(LOOK)
        rows, points = await run_in_threadpool(store.scored, id) if standing.status == "done" else ([], [])
        return Scored(**asdict(standing), rows=rows, curves=points)  # type: ignore[arg-type]

    return router


def _runs(store: Store) -> APIRouter:
    router = APIRouter(prefix="/api/runs", tags=["runs"])

    def found(run: str) -> dict[str, Any]:
        try:
            return store.run(run)
        except KeyError:
            raise _unknown("run", run, "a run that was posted") from None

    @router.get("", summary="All runs, newest first")
    def runs() -> list[RunLine]:
        return [RunLine(**_line(one)) for one in store.runs()]

    @router.put("/{run}", summary="Name a run and keep its run.json", responses={**REFUSED, **LARGE}, status_code=204)
    def put(run: Annotated[RunId, Path()], record: RunRecord) -> Response:
        check_record(record.record)
        if record.rounds is not None:
            _need(store, "rounds", record.rounds, TABLE)
        store.put_run(run, record.name, record.record, record.rounds)
        return Response(status_code=204)

    @router.get("/{run}", summary="One run: its record, and where its submissions stand", responses=UNKNOWN)
    def get(run: Annotated[RunId, Path()]) -> RunAnswer:
        one = found(run)
        counts: dict[str, int] = {}
        for standing in one["submissions"]:
            counts[standing.status] = counts.get(standing.status, 0) + 1
        experiments = {str(group.get("name", "")) for group in one["record"]["groups"].values()}
        line = _line({**one, "counts": counts, "experiments": sorted(experiments)})
        standings = [Standing.model_validate(standing) for standing in one["submissions"]]
        return RunAnswer(**line, record=one["record"], submissions=standings)

    @router.get(
        "/{run}/results.csv",
        summary="The results table",
        description="The bytes that scoring in the run's own process would have written. What waits is not in it yet.",
        response_class=Response,
        responses={**UNKNOWN, **CSV},
    )
    def results(run: Annotated[RunId, Path()]) -> Response:
        found(run)
        return _csv(csv_text(store.results(run)), f"{run}-results.csv")

    @router.get(
        "/{run}/curves.csv",
        summary="The points of the figures",
        response_class=Response,
        responses={**UNKNOWN, **CSV},
    )
    def curves(run: Annotated[RunId, Path()]) -> Response:
        found(run)
        return _csv(csv_text(store.curves(run)), f"{run}-curves.csv")

    return router


def _need(store: Store, field: str, sha: str, kind: str) -> None:
    """Raise `BadInput` unless the store has a blob that was checked as this kind."""
    if store.blobs.has(sha, kind):
        return
    if store.blobs.kinds(sha):
        raise BadInput(field, sha, f"bytes of {kind}, and it was uploaded as another kind", "upload it as this kind")
    raise BadInput(field, sha, "a blob that the server has", "upload it (PUT /api/blobs/{sha256}) and post again")


def _line(one: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: one[name] for name in ("id", "name", "created", "experiments")}
    return {**kept, "models": sum(one["counts"].values()), "status": run_status(one["counts"])}


def _csv(text: str, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text.encode(), media_type="text/csv; charset=utf-8", headers=headers)


_JSON_WANTED = "send one JSON object in UTF-8, as /docs describes it, with Content-Type: application/json"


def _refusal(field: str, message: str) -> Any:
    return {"field": field, "message": message}


def _unknown(key: str, value: str, allowed: str) -> HTTPException:
    return HTTPException(404, _refusal(key, str(BadInput(key, value, allowed))))


def _tell_errors(app: FastAPI) -> None:
    """Answer every error as a `Refusal`."""

    @app.exception_handler(BadInput)
    async def bad_input(request: Request, error: BadInput) -> JSONResponse:
        return JSONResponse(_refusal(shortened(error.key), str(error)), 422)

    @app.exception_handler(RequestValidationError)
    async def bad_request(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = [str(part) for part in first["loc"]]
        if first["type"] == "json_invalid":
            where = f"{first['ctx']['error']}, at character {place[-1]}"
            return JSONResponse(_refusal("body", f"no JSON ({where}): {_JSON_WANTED}"), 422)
        field = shortened(".".join(place[1:] if len(place) > 1 else place))
        more = len(error.errors()) - 1
        message = f"{field}: {first['msg']}" + (f" (and {more} more)" if more else "")
        return JSONResponse(_refusal(field, message.replace("\n", " ")), 422)

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error.__cause__, UnicodeDecodeError | RecursionError):
            problem = "no UTF-8" if isinstance(error.__cause__, UnicodeDecodeError) else "nested too deep"
            return JSONResponse(_refusal("body", f"{problem}: {_JSON_WANTED}"), 422)
        path = shortened(request.url.path)
        told = error.detail if isinstance(error.detail, dict) else _refusal(path, str(error.detail))
        return JSONResponse(told, error.status_code, headers=error.headers)

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> JSONResponse:
        return JSONResponse(_refusal("content", "the client went away before all of it had come"), 400)

    @app.exception_handler(SQLAlchemyError)
    async def database(request: Request, error: SQLAlchemyError) -> JSONResponse:
        text = str(getattr(error, "orig", None) or error).splitlines()[0]
        return JSONResponse(_refusal("store", f"the database does not answer ({text}); try again"), 503)

    @app.exception_handler(OSError)
    async def disk(request: Request, error: OSError) -> JSONResponse:
        if disk_full(error):
            return JSONResponse(_refusal("store", "no space left on the server's disk"), 507)
        return JSONResponse(_refusal("store", f"the server cannot write: {error.strerror or error}"), 503)
