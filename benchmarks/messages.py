"""``python -m benchmarks.messages``: what a message costs whose site does nothing, by size of the model and its way."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from benchmarks.plain import middle
from flower_apps.launcher import Launcher
from flower_apps.places import resolve_home
from partitions.errors import BadInput, RunFailed

APP = Path(__file__).resolve().parent / "messages_app"
SIZES = (1_000, 880_000, 11_200_000)
"""Numbers in a model: next to nothing, the two-block CNN, and a ResNet-18."""
WAYS = ("messages", "files")


def measure(folder: Path, sites: int, workers: int, turns: int, sizes: Sequence[int]) -> dict[tuple[int, str], float]:
    """Return the seconds of an exchange with all sites, the median, by size and way."""
    events = folder / "events.jsonl"
    config = {"events": str(events), "sites": sites, "sizes": ",".join(map(str, sizes)), "turns": turns}
    federation = {"num-supernodes": sites, "client-resources-num-cpus": 1, "init-args-num-cpus": workers}
    with Launcher(folder / "home", app_dir=APP) as launcher:
        launcher.run(config, federation, events).raise_for_status()
    found: dict[tuple[int, str], list[float]] = {}
    for line in events.read_text().splitlines():
        event = json.loads(line)
        if event["kind"] == "exchange":
            found.setdefault((event["size"], event["way"]), []).append(float(event["seconds"]))
    return {key: middle(seconds) for key, seconds in found.items()}


def costs_table(found: dict[tuple[int, str], float], sites: int) -> Table:
    """Return milliseconds a message, the model in it and in a file, and their ratio."""
    table = Table(caption=f"an exchange with {sites} sites that do nothing, the median, over the sites")
    for name in ("model MB", "in messages, ms", "in files, ms", "files over messages"):
        table.add_column(name, justify="right")
    for size in sorted({size for size, _ in found}):
        sent, handed = (found[size, way] / sites * 1e3 for way in WAYS)
        table.add_row(f"{size * 4e-6:.3g}", f"{sent:.1f}", f"{handed:.1f}", f"{handed / sent:.2f}")
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns 0, 2 for bad input and 1 for a failed run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.messages", description=__doc__)
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1, help="sites at work at once; default: 1")
    parser.add_argument("--turns", type=int, default=10, help="exchanges each way; default: 10")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N", help="numbers in a model")
    parser.add_argument("--home", help="default: LETHE_HOME, else ~/.lethe")
    options = parser.parse_args(arguments)
    folder = resolve_home(options.home) / "benchmarks" / str(os.getpid())
    folder.mkdir(parents=True)
    try:
        found = measure(folder, options.sites, options.workers, options.turns, options.sizes)
    except (BadInput, RunFailed) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(costs_table(found, options.sites), describe_machine())
    return 0


if __name__ == "__main__":
    sys.exit(main())
