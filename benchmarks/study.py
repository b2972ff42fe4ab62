"""``python -m benchmarks.study``: a study run one group after the other and side by side, and what of it was overhead.

Each way gets a home of its own below ``LETHE_HOME/benchmarks/``, so that nothing is found in a cache.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from flower_apps.places import resolve_home
from partitions.errors import BadInput, RunFailed

EXPERIMENTS = ("lethe-client-small", "lethe-class-small")


@dataclass(frozen=True)
class Way:
    """One way to run the study, and what it took.

    Attributes
    ----------
    jobs, workers : int
        Flower runs at once; sites at work at once in each.
    seconds : float
        From the command to its end.
    computed : dict of str to float
        Seconds of local computation by kind of stage, as the sites counted them, scoring included.
    stages : dict of str to int
        Stages computed, by kind.
    load : float
        Load average at the start.
    """

    jobs: int
    workers: int
    seconds: float
    computed: dict[str, float]
    stages: dict[str, int]
    load: float

    @property
    def overhead(self) -> float:
        """Wall time x sites at work at once, over the seconds of local computation; 1 is a federation for free."""
        return self.seconds * self.jobs * self.workers / sum(self.computed.values())


def run_way(home: Path, folder: Path, experiments: Sequence[str], jobs: int, workers: int, more: Sequence[str]) -> Way:
    """Run the study in a new home that shares nothing but the data; raises `RunFailed` with its output."""
    own, out, log = folder / "home", folder / "run", folder / "output.txt"
    own.mkdir(parents=True)
    (home / "data").mkdir(parents=True, exist_ok=True)
    (own / "data").symlink_to(home / "data")
    command = [sys.executable, "-m", "flower_apps.cli", "run", *experiments, "--home", str(own), "--out", str(out)]
    command += ["--jobs", str(jobs), "--workers", str(workers), "--gpus", "0", "--no-report", *more]
    load, started = psutil.getloadavg()[0], time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = process.wait()
        finally:
            _end(process)
    seconds = time.monotonic() - started
    if code:
        raise RunFailed(f"`lethe run` ended with code {code}: {log.read_text(errors='replace')[-2000:]}")
    return Way(jobs, workers, seconds, computed_seconds(_events(out)), _stages(own), load)


def computed_seconds(events: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Return what the sites say that their own work took, by kind of stage; an answer without a stage is scoring."""
    found: dict[str, float] = defaultdict(float)
    for event in events:
        if event["kind"] == "reply" and event.get("seconds") is not None:
            found[str(event.get("stage") or "score")] += float(event["seconds"])
    return dict(found)


def _events(out: Path) -> Iterable[dict[str, Any]]:
    for path in sorted((out / "events").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


def _stages(home: Path) -> dict[str, int]:
    return dict(Counter(path.parts[-3] for path in (home / "stages").glob("[!.]*/*/stage.json")))


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)


def ways_table(ways: Sequence[Way]) -> Table:
    """Return the ways side by side, the first being what the others are compared with."""
    table = Table(caption="overhead: wall time x sites at work at once, over the sites' own seconds")
    for name in ("jobs", "workers", "wall s", "speed-up", "sites' own s", "overhead", "stages", "load"):
        table.add_column(name, justify="right")
    for way in ways:
        own, stages = sum(way.computed.values()), sum(way.stages.values())
        figures = (f"{way.seconds:.0f}", f"{ways[0].seconds / way.seconds:.2f}", f"{own:.0f}", f"{way.overhead:.2f}")
        table.add_row(str(way.jobs), str(way.workers), *figures, str(stages), f"{way.load:.1f}")
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study in every way asked for; returns 0, or 2 for bad input and 1 for a failed run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study", description=__doc__)
    parser.add_argument("experiments", nargs="*", default=EXPERIMENTS)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2], help="one run for each")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--home", help="LETHE_HOME whose data is used")
    parser.add_argument("--keep", action="store_true", help="leave homes and run folders")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    home = resolve_home(options.home)
    folder = home / "benchmarks" / f"study-{os.getpid()}"
    more = list(itertools.chain.from_iterable(("--set", text) for text in options.set))
    ways: list[Way] = []
    try:
        for jobs in options.jobs:
            print(f"study: --jobs {jobs} --workers {options.workers}", file=sys.stderr)
            ways.append(run_way(home, folder / f"jobs-{jobs}", options.experiments, jobs, options.workers, more))
    except (BadInput, RunFailed) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1
    finally:
        if options.keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        found = {"machine": describe_machine(), "ways": [{**asdict(w), "overhead": w.overhead} for w in ways]}
        print(json.dumps(found, indent=1))
    else:
        Console(width=None if sys.stdout.isatty() else 120).print(ways_table(ways))
    return 0


if __name__ == "__main__":
    sys.exit(main())
