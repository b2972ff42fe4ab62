"""A federation whose models a server scores: the run folder is, byte for byte, that of one that scores itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pandas as pd
import pytest
import uvicorn
from in_process import Killed, read_group, run_group

from evaluation.runs import Run
from evaluation.service import remote
from evaluation.service.app import make_app
from evaluation.service.store import Store, sqlite_url
from evaluation.service.store_runs import StoreRuns
from evaluation.service.worker import new_owner, work
from flower_apps.settings import GroupSettings
from partitions.errors import RunFailed

SETTINGS = GroupSettings.parse(
    {
        "name": "small",
        "dataset": "digits",
        "cap": 20,
        "split": "dirichlet",
        "sites": 3,
        "alpha": 1.0,
        "rounds": 2,
        "local-epochs": 1,
        "batch-size": 16,
        "lr": 0.05,
        "requests": "client:site-1 > class:3",
        "methods": "ga",
        "preset": "safe",
        "unlearn-epochs": 1,
        "recovery-rounds": 1,
        "recovery-epochs": 1,
        "device": "cpu",
    }
)
TABLES = ("results.csv", "curves.csv")


@contextmanager
def serving(store: Store) -> Iterator[str]:
    app = make_app(store)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    stop = threading.Event()
    threads = [
        threading.Thread(target=server.run, daemon=True),
        threading.Thread(target=work, args=(store, stop, new_owner()), daemon=True),
    ]
    for thread in threads:
        thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        stop.set()
        app.state.stopping = server.should_exit = True
        for thread in threads:
            thread.join(10)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Run once, scoring in process; gives home and run folder."""
    home, out = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("run")
    run_group(SETTINGS, home, out)
    return home, out


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(sqlite_url(tmp_path / "evaluator.sqlite"), tmp_path / "evaluator")
    yield opened
    opened.close()


def test_results_and_curves_are_the_same_bytes(done: tuple[Path, Path], store: Store, tmp_path: Path) -> None:
    home, here = done
    with serving(store) as url:
        grid = run_group(SETTINGS.model_copy(update={"evaluator": url}), home, tmp_path / "there")
        assert not [kind for kind in grid.sent if kind.startswith("train.")], "who scores is no part of a result"
        (run,) = httpx.get(f"{url}/api/runs", trust_env=False).json()
        for name in TABLES:
            assert (tmp_path / "there" / name).read_bytes() == (here / name).read_bytes()
            answer = httpx.get(f"{url}/api/runs/{run['id']}/{name}", trust_env=False)
            assert answer.content == (here / name).read_bytes()
    opened = StoreRuns(store).open(run["id"])
    pd.testing.assert_frame_equal(opened.results, Run(here).results)
    assert opened.manifest["cells"] == Run(tmp_path / "there").manifest["cells"]
    rounds = Run(tmp_path / "there").rounds
    assert len(rounds) and len(opened.rounds) == len(rounds)
    assert list(opened.rounds.columns) == list(rounds.columns)


def test_without_its_evaluator_a_run_ends_in_one_line_and_goes_on_from_the_cache(
    done: tuple[Path, Path], store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, here = done
    out = tmp_path / "run"
    monkeypatch.setattr(remote, "FIRST_PATIENCE", 0.2)
    with serving(store) as url:
        pass
    with pytest.raises(RunFailed, match=r"goes on from the cache") as caught:
        read_group(SETTINGS.model_copy(update={"evaluator": url}), home, out)
    assert "\n" not in str(caught.value)
    assert not (out / "results.csv").exists()
    with serving(store) as url:
        for _ in range(2):  # the second time everything is there already
            read_group(SETTINGS.model_copy(update={"evaluator": url}), home, out)
            for name in TABLES:
                assert (out / name).read_bytes() == (here / name).read_bytes()
    assert set(store.counts()) == {"done"}


def test_a_run_killed_while_it_posts_goes_on_to_the_same_bytes(
    done: tuple[Path, Path], store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, here = done
    ask, posts = remote.Remote._ask, [0]

    def killed(self: remote.Remote, method: str, path: str, **parts: object) -> httpx.Response:
        reply = ask(self, method, path, **parts)
        posts[0] += path == "/api/submissions"
        if posts[0] == 3:
            raise Killed  # the server has it, and nobody here knows
        return reply

    with serving(store) as url:
        settings = SETTINGS.model_copy(update={"evaluator": url})
        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(remote.Remote, "_ask", killed)
            read_group(settings, home, tmp_path / "run")
        read_group(settings, home, tmp_path / "run")
    for name in TABLES:
        assert (tmp_path / "run" / name).read_bytes() == (here / name).read_bytes()
