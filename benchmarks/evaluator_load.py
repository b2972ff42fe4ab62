"""``python -m benchmarks.evaluator_load``: what the evaluator's server does while clients post at once.

Beside it the same models scored in one process, before and after. Everything goes below a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx
import numpy as np
import pandas as pd
import torch
import uvicorn
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from evaluation.evaluator import InProcess
from evaluation.evidence import DIVERGENCES, ScoredModel
from evaluation.service.app import make_app
from evaluation.service.remote import Remote
from evaluation.service.store import Store, sqlite_url
from evaluation.service.worker import Workers
from evaluation.submission import Submission
from unlearning.state import State

RECORD: dict[str, Any] = {"created": 0.0, "environment": {"host": "load"}, "groups": {}, "cells": []}


@dataclass(frozen=True)
class Load:
    """What was measured.

    Attributes
    ----------
    clients, workers, submissions : int
        Posting at once; scoring; all of them together.
    records, parameters : int
        Of a scorecard, of a model.
    in_process : tuple of float
        Seconds a model, scored in one process, before and after.
    posting, all : float
        Seconds until everything was posted, and until every run folder was complete.
    requests : int
        Answered while clients posted.
    p50, p95, slowest : float
        Seconds that a request took meanwhile.
    health_p95 : float
        Seconds that ``GET /api/health`` took meanwhile.
    """

    clients: int
    workers: int
    submissions: int
    records: int
    parameters: int
    in_process: tuple[float, float]
    posting: float
    all: float
    requests: int
    p50: float
    p95: float
    slowest: float
    health_p95: float

    @property
    def alone(self) -> float:
        """Seconds a model in one process, the mean of both times."""
        return sum(self.in_process) / 2

    def ratios(self) -> dict[str, float]:
        """Return the figures that a machine's speed does not change."""
        return {
            "models scored a second, over one process": self.submissions / self.all * self.alone,
            "models posted a second, over scored in one process": self.submissions / self.posting * self.alone,
            "p50 of a request, over scoring a model": self.p50 / self.alone,
            "p95 of a request, over scoring a model": self.p95 / self.alone,
        }


def measure(clients: int, each: int, workers: int, records: int, parameters: int) -> Load:
    """Let `clients` post `each` models at once, and time every request."""
    with tempfile.TemporaryDirectory(prefix="lethe-load-") as name:
        folder = Path(name)
        submissions = [[*_submissions(client, each, records, parameters)] for client in range(clients)]
        before = _alone(submissions[0], folder / "before")
        seconds: list[float] = []
        health: list[float] = []
        with _serving(folder, workers) as url, ThreadPoolExecutor(clients) as pool:
            with _remote(url, folder / "run1000", []) as first:  # every process imports what it needs
                _post(first, submissions[0][:1])
                first.finish()
            stop = threading.Event()
            watch = threading.Thread(target=_watch, args=(url, health, stop))
            watch.start()
            begun = time.monotonic()
            remotes = [_remote(url, folder / f"run{number}", seconds) for number in range(clients)]
            list(pool.map(_post, remotes, submissions))
            posting = time.monotonic() - begun
            posted = sorted(seconds)
            list(pool.map(Remote.finish, remotes))
            total = time.monotonic() - begun
            stop.set()
            watch.join()
            for remote in remotes:
                remote.close()
        after = _alone(submissions[0], folder / "after")
    cuts = quantiles(posted, n=20)
    return Load(
        clients=clients,
        workers=workers,
        submissions=clients * each,
        records=records,
        parameters=parameters,
        in_process=(before, after),
        posting=posting,
        all=total,
        requests=len(posted),
        p50=cuts[9],
        p95=cuts[18],
        slowest=posted[-1],
        health_p95=quantiles(health, n=20)[18],
    )


def _submissions(client: int, count: int, records: int, parameters: int) -> Iterator[Submission]:
    """Make the models of one client's run, all read against the same two retrained ones."""
    golds = [_model(10_000 + 2 * client + number, "retrain", records, parameters) for number in range(2)]
    for number in range(count):
        model = _model(100 * client + number, "ga", records, parameters)
        card = model.scorecard
        assert card is not None
        compared = card[["record", "split", "selected", "retained"]].assign(**dict.fromkeys(DIVERGENCES, 0.25))
        texts = ("experiment", "task", "dataset", "partition", "model", "request", "preset")
        labels = dict.fromkeys(texts, "load") | {"cell": f"{client}-{number}", "granularity": "client", "method": "ga"}
        labels |= {"alpha": None, "checkpoint": "unlearned", "train_seed": 0, "unlearn_seed": 0}  # type: ignore[dict-item]
        yield Submission(
            labels=labels,
            model=model,
            gold=golds[0],
            other_gold=golds[1],
            comparison=compared,
            granularity="client",
            metric_name="accuracy",
            higher_is_better=True,
            has_reference=False,
        )


def _model(seed: int, method: str, records: int, parameters: int) -> ScoredModel:
    rng = np.random.default_rng(seed)
    places = np.arange(records)
    hit = (rng.random(records) < 0.7).astype(float)
    selected = places % 4 == 0
    card = pd.DataFrame(
        {
            "record": [f"r{place:06d}" for place in places],
            "site": [f"site-{place % 4}" for place in places],
            "patient": [f"p{place % 40}" for place in places],
            "split": np.where(places % 10 < 8, "train", "holdout"),
            "stratum": [str(place % 3) for place in places],
            "selected": selected,
            "retained": ~selected,
            "step": selected.astype(np.int16),
            "metric": hit,
            "loss": rng.exponential(np.where(hit, 0.2, 2.0)),
            "phi": rng.normal(size=records),
            "entropy": rng.random(records),
            "hinge": rng.normal(size=records),
        }
    )
    state = State({"weight": torch.from_numpy(rng.standard_normal(parameters, dtype=np.float32))}, {}, {})
    return ScoredModel(method, "load", "unlearned", "ok", "", card, state, {"seconds": 1.0, "host": "load"})


def _alone(submissions: Sequence[Submission], folder: Path) -> float:
    evaluator = InProcess(folder)
    begun = time.monotonic()
    for submission in submissions:
        evaluator.submit(submission)
    return (time.monotonic() - begun) / len(submissions)


@contextmanager
def _serving(folder: Path, workers: int) -> Iterator[str]:
    store = Store(sqlite_url(folder / "evaluator.sqlite"), folder / "evaluator")
    with Workers(store, workers) as processes:
        app = make_app(store, workers=workers, alive=lambda: processes.alive)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        app.state.stopping = server.should_exit = True
        thread.join()
    store.close()


def _remote(url: str, folder: Path, seconds: list[float]) -> Remote:
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({**RECORD, "created": float(folder.name[3:])}))

    def answered(reply: httpx.Response) -> None:
        reply.read()
        seconds.append(time.monotonic() - reply.request.extensions["begun"])

    def asked(request: httpx.Request) -> None:
        request.extensions["begun"] = time.monotonic()

    hooks = {"request": [asked], "response": [answered]}
    client = httpx.Client(base_url=url, trust_env=False, timeout=120.0, event_hooks=hooks)
    return Remote(url, folder, client=client)


def _post(remote: Remote, submissions: Sequence[Submission]) -> None:
    for submission in submissions:
        remote.submit(submission)


def _watch(url: str, seconds: list[float], stop: threading.Event) -> None:
    with httpx.Client(base_url=url, trust_env=False, timeout=60.0) as client:
        while not stop.wait(0.1):
            begun = time.monotonic()
            client.get("/api/health").raise_for_status()
            seconds.append(time.monotonic() - begun)


def show(load: Load, console: Console) -> None:
    """Print the figures, ratios beside the seconds they come from."""
    table = Table(title=f"{load.clients} clients post {load.submissions} models at once, {load.workers} workers")
    table.add_column("figure")
    table.add_column("value", justify="right")
    milli = {"p50": load.p50, "p95": load.p95, "slowest": load.slowest, "p95 of GET /api/health": load.health_p95}
    rows = {
        "records of a model, parameters": f"{load.records:,}, {load.parameters:,}",
        "scoring a model in one process, before and after": ", ".join(f"{one:.2f} s" for one in load.in_process),
        "models posted a second": f"{load.submissions / load.posting:.2f}",
        "models scored a second, from the first post to the last run folder": f"{load.submissions / load.all:.2f}",
        "requests a second while posting": f"{load.requests / load.posting:.0f}",
        **{f"a request while posting: {name}": f"{value * 1e3:.0f} ms" for name, value in milli.items()},
        **{name: f"{value:.2f}" for name, value in load.ratios().items()},
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evaluator_load", description=__doc__)
    parser.add_argument("--clients", type=int, default=8, help="posting at once; default: 8")
    parser.add_argument("--each", type=int, default=6, help="models of a client; default: 6")
    parser.add_argument("--workers", type=int, default=2, help="processes that score; default: 2")
    parser.add_argument("--records", type=int, default=2000, help="of a scorecard; default: 2000")
    parser.add_argument("--parameters", type=int, default=100_000, help="of a model; default: 100000")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    load = measure(options.clients, options.each, options.workers, options.records, options.parameters)
    if options.json:
        print(json.dumps({"machine": describe_machine(), **asdict(load), "ratios": load.ratios()}, indent=1))
    else:
        show(load, Console(width=None if sys.stdout.isatty() else 120))
    return 0


if __name__ == "__main__":
    sys.exit(main())
