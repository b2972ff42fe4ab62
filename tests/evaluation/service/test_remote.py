"""A run that is scored by a server ends with the bytes of one that scores itself, and outlives the server's absence."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from bundles import Bundles
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from posting import RECORD
from servers import free_port, in_thread

from evaluation.evaluator import InProcess
from evaluation.service import remote as module
from evaluation.service.app import make_app
from evaluation.service.remote import Remote, run_id
from evaluation.service.store import Store
from evaluation.service.worker import new_owner, work
from flower_apps.settings import GroupSettings
from partitions.errors import BadInput, RunFailed

TOKEN = "a-token-of-some-length"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "20260101-run")


def run_folder(path: Path) -> Path:
    path.mkdir()
    (path / "run.json").write_text(json.dumps(RECORD))
    return path


@pytest.fixture
def url(store: Store) -> Iterator[str]:
    with in_thread(make_app(store), store) as address:
        yield address


def same_tables(left: Path, right: Path) -> None:
    for name in ("results.csv", "curves.csv"):
        assert (left / name).read_bytes() == (right / name).read_bytes(), name


def test_the_run_folder_is_that_of_in_process_scoring(url: str, folder: Path, bundles: Bundles, tmp_path: Path) -> None:
    told: list[str] = []
    here = InProcess(tmp_path / "here")
    with Remote(url, folder, on_progress=told.append) as remote:
        for submission in (bundles("ga"), bundles.of_gold(), bundles("fedquit", 2), bundles.unfit(), bundles("ga", 3)):
            here.submit(submission)
            remote.submit(submission)
        remote.finish()
    same_tables(folder, tmp_path / "here")
    assert told[-1].startswith("5 models scored at")
    answer = httpx.get(f"{url}/api/runs/{remote.run}/results.csv", trust_env=False)
    assert answer.content == (folder / "results.csv").read_bytes()
    assert remote.run.startswith("20260101-run-")
    assert httpx.get(f"{url}/api/runs/{remote.run}", trust_env=False).json()["record"] == RECORD


def test_gold_travels_once(store: Store, folder: Path, bundles: Bundles) -> None:
    sent: list[httpx.Request] = []
    with in_thread(make_app(store), store) as url:
        client = httpx.Client(base_url=url, trust_env=False, event_hooks={"request": [sent.append]})
        with Remote(url, folder, client=client) as remote:
            for seed in range(1, 6):
                remote.submit(bundles("ga", seed))
    uploads = [request.url.path for request in sent if request.method == "PUT" and "/blobs/" in request.url.path]
    assert len(uploads) == len(set(uploads))
    # of each model scorecard, weights, comparison; the probe, gold's four, and the shadows' two once
    assert len(uploads) == 5 * 3 + 1 + 4 + 2


def test_a_second_run_of_the_same_command_is_scored_from_what_is_there(
    url: str, store: Store, folder: Path, bundles: Bundles, tmp_path: Path
) -> None:
    other = run_folder(tmp_path / "again")
    for place in (folder, other):
        with Remote(url, place) as remote:
            remote.submit(bundles())
            remote.finish()
    same_tables(folder, other)
    assert store.counts() == {"done": 1}
    assert len(store.runs()) == 2


def test_a_server_that_comes_back_is_waited_for(store: Store, folder: Path, bundles: Bundles, tmp_path: Path) -> None:
    port, told = free_port(), list[str]()
    with in_thread(make_app(store), None, port) as url:
        remote = Remote(url, folder, on_progress=told.append)
        remote.submit(bundles("ga"))
    back = threading.Event()

    def come_back() -> None:
        time.sleep(1.0)
        with in_thread(make_app(store), store, port):
            back.wait(60)

    thread = threading.Thread(target=come_back)
    thread.start()
    try:
        remote.submit(bundles("fedquit", 2))
        remote.finish()
    finally:
        back.set()
        thread.join()
    assert any("trying again" in text for text in told)
    here = InProcess(tmp_path / "here")
    here.submit(bundles("ga")), here.submit(bundles("fedquit", 2))
    same_tables(folder, tmp_path / "here")


def test_a_server_that_stays_away_ends_the_run_in_one_line_and_the_next_try_goes_on(
    store: Store, folder: Path, bundles: Bundles
) -> None:
    with in_thread(make_app(store), None) as url:
        remote = Remote(url, folder, patience=0.5)
        remote.submit(bundles())
    with pytest.raises(RunFailed) as caught:
        remote.finish()
    text = str(caught.value)
    assert url in text and "the same command goes on from the cache" in text and "\n" not in text
    assert not (folder / "results.csv").exists()
    with in_thread(make_app(store), store) as url, Remote(url, folder) as remote:
        remote.submit(bundles())
        remote.finish()
    assert (folder / "results.csv").exists()
    assert store.counts() == {"done": 1}


def test_nobody_there_at_the_start_is_told_soon(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PATIENCE", 0.3)
    with pytest.raises(RunFailed, match=r"did not answer for 0.3 s"):
        Remote(f"http://127.0.0.1:{free_port()}", folder)


@pytest.mark.parametrize("given", ["", "another-token-of-length"])
def test_a_token_that_is_not_the_servers_is_named_with_the_remedy(store: Store, folder: Path, given: str) -> None:
    with (
        in_thread(make_app(store, token=TOKEN)) as url,
        pytest.raises(BadInput, match=r"evaluator=.*LETHE_EVALUATOR_TOKEN") as caught,
    ):
        Remote(url, folder, token=given)
    assert not given or given not in str(caught.value)


def test_with_its_token_a_run_is_scored(store: Store, folder: Path, bundles: Bundles) -> None:
    with in_thread(make_app(store, token=TOKEN), store) as url, Remote(url, folder, token=TOKEN) as remote:
        remote.submit(bundles())
        remote.finish()
    assert (folder / "results.csv").exists()


def test_something_else_that_answers_is_no_evaluator(folder: Path) -> None:
    app = FastAPI()
    app.get("/api/health")(lambda: {"hello": "world"})
    with in_thread(app) as url, pytest.raises(BadInput, match="something else answers"):
        Remote(url, folder)


@pytest.mark.parametrize(
    "url",
    [
        "http://evaluator..hospital:8799",
        f"http://{'a' * 64}.hospital:8799",
        "http://xn--",
        "http://a\0b",
        "http://h:99999",
        "http://[::1",
        "ftp://h",
    ],
)
def test_an_address_that_no_library_takes_is_refused(folder: Path, url: str) -> None:
    for refuse in (lambda: Remote(url, folder, patience=0.1), lambda: GroupSettings.parse({"evaluator": url})):
        with pytest.raises(BadInput, match="evaluator=") as caught:
            refuse()
        assert "\n" not in str(caught.value)


ANSWERS = [
    b"<html>Sign in</html>",
    b"{}",
    b"[]",
    b"[" * 200_000,
    b"\xff\xfe",
    b'{"status": "done"}',
    b'{"status": "done", "rows": [{"value": "x"}], "curves": []}',
]


@pytest.mark.parametrize("body", ANSWERS, ids=range(len(ANSWERS)))
def test_what_a_proxy_answers_ends_the_run_in_one_line(folder: Path, bundles: Bundles, body: bytes) -> None:
    healthy = True

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b'{"bundle_version": 1}' if healthy else body)

    client = httpx.Client(base_url="http://h", transport=httpx.MockTransport(answer))
    with pytest.raises(BadInput, match="something else answers"):
        healthy = False
        Remote("http://h", folder, client=client, patience=0.1)
    healthy = True
    remote = Remote("http://h", folder, client=client, patience=0.1)
    healthy = False
    remote._ids = {"a" * 64: "ga"}
    for ask in (lambda: remote.submit(bundles()), remote.finish):
        with pytest.raises(RunFailed, match="did not answer as an evaluator does") as caught:
            ask()
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
    assert not (folder / "results.csv").exists()


def test_another_version_is_refused_at_the_start(folder: Path) -> None:
    app = FastAPI()
    app.get("/api/health")(lambda: {"bundle_version": 99})
    with in_thread(app) as url, pytest.raises(BadInput, match="version 1, and this one takes 99"):
        Remote(url, folder)


def test_what_cannot_be_scored_ends_the_run_with_the_servers_reason(
    store: Store, folder: Path, bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("in a metric\nof somebody")

    monkeypatch.setattr("evaluation.submission.measure", broken)
    with in_thread(make_app(store), store) as url, Remote(url, folder) as remote:
        remote.submit(bundles())
        with pytest.raises(RunFailed, match=r"ga unlearned .*ZeroDivisionError: in a metric of somebody"):
            remote.finish()
        monkeypatch.undo()
        remote.submit(bundles())  # once mended, it is scored again
        remote.finish()
    assert (folder / "results.csv").exists()


def test_a_refused_bundle_ends_the_run_with_the_field(url: str, folder: Path, bundles: Bundles) -> None:
    card = bundles().model.scorecard.assign(extra=1.0)
    with Remote(url, folder) as remote, pytest.raises(RunFailed, match=r"model.scorecard.extra"):
        remote.submit(bundles(model=bundles.model(scorecard=card)))


def test_a_table_too_large_is_told_with_limit_and_setting(store: Store, folder: Path, bundles: Bundles) -> None:
    from evaluation.service.limits import Limits

    app = make_app(store, limits=Limits(upload_bytes=2000))
    with in_thread(app) as url, Remote(url, folder) as remote, pytest.raises(RunFailed, match=r"2000 .*--max-upload"):
        remote.submit(bundles())


def test_errors_of_the_server_are_tried_again(store: Store, folder: Path, bundles: Bundles) -> None:
    app, failures = make_app(store), iter([503, 500, 502])

    @app.middleware("http")
    async def failing(request: Request, go_on: Any) -> Response:
        if request.method == "POST" and (status := next(failures, None)):
            return JSONResponse({"message": "not now"}, status)
        return await go_on(request)

    with in_thread(app, store) as url, Remote(url, folder) as remote:
        remote.submit(bundles())
        remote.finish()
    assert (folder / "results.csv").exists()


def test_blobs_lost_by_the_server_are_sent_again(store: Store, folder: Path, bundles: Bundles) -> None:
    with in_thread(make_app(store), None) as url, Remote(url, folder) as remote:
        remote.submit(bundles("ga", 1))
        for path in store.blobs.folder.glob("blobs/??/*"):
            path.unlink()
        remote.submit(bundles("ga", 2))
    assert store.counts() == {"queued": 2}


def test_clients_that_post_at_once_get_each_its_own(url: str, bundles: Bundles, tmp_path: Path) -> None:
    failures: list[BaseException] = []
    submissions = [bundles(name, seed) for seed, name in enumerate(["ga", "fedquit", "prune", "not", "scrub"], start=1)]

    def client(number: int) -> None:
        try:
            place = run_folder(tmp_path / f"run{number}")
            (place / "run.json").write_text(json.dumps({**RECORD, "created": float(number)}))
            with Remote(url, place) as remote:
                for submission in submissions[number % 2 :]:  # some are the same as another's
                    remote.submit(submission)
                remote.finish()
            here = InProcess(tmp_path / f"here{number}")
            for submission in submissions[number % 2 :]:
                here.submit(submission)
            same_tables(place, tmp_path / f"here{number}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_many_workers_score_each_submission_once(
    store: Store, folder: Path, bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    from evaluation.submission import Submission

    original = Submission.rows
    monkeypatch.setattr(Submission, "rows", lambda self: seen.append(self.model.method) or original(self))
    names = [f"m{number}" for number in range(8)]
    with in_thread(make_app(store)) as url, Remote(url, folder) as remote:
        for name in names:
            remote.submit(bundles(name, 1))
        stop = threading.Event()
        threads = [threading.Thread(target=work, args=(store, stop, new_owner())) for _ in range(4)]
        for thread in threads:
            thread.start()
        remote.finish()
        stop.set()
        for thread in threads:
            thread.join()
    assert sorted(seen) == names


def test_the_name_of_a_run_is_that_of_its_folder_and_start(tmp_path: Path) -> None:
    one = run_id(tmp_path / "a b/ü", RECORD)
    assert one == run_id(tmp_path / "ü", RECORD) != run_id(tmp_path / "ü", {**RECORD, "created": 2.0})
    assert run_id(tmp_path / ("x" * 300), RECORD)[:150] == "x" * 150
