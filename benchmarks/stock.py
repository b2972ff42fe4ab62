"""The stock Flower app in stock_app/ on the same records, through the same launcher, for the same rounds."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.plain import middle
from benchmarks.work import Work
from flower_apps.launcher import Launcher

APP = Path(__file__).resolve().parent / "stock_app"


@dataclass(frozen=True)
class StockRun:
    """What the stock app took, in seconds.

    Attributes
    ----------
    to_first_message : float
        From the launcher's start to the start of round 1.
    rounds : tuple of float
        Each round.
    """

    to_first_message: float
    rounds: tuple[float, ...]

    @property
    def stage(self) -> float:
        """All rounds."""
        return sum(self.rounds)

    @property
    def round(self) -> float:
        """Seconds a round, the median."""
        return middle(self.rounds)


def run_stock(work: Work) -> StockRun:
    """Run the stock app; raises `RunFailed` when it does not complete."""
    folder = work.folder / "stock"
    write_records(work, folder / "records")
    events = folder / "events.jsonl"
    started = time.time()
    with Launcher(folder / "home", app_dir=APP) as launcher:
        result = launcher.run(
            {
                "events": str(events),
                "records": str(folder / "records"),
                "rounds": work.rounds,
                "local-epochs": work.epochs,
                "batch-size": work.batch_size,
                "lr": work.lr,
                "sites": work.sites,
                "classes": work.classes,
            },
            {"num-supernodes": work.sites, "client-resources-num-cpus": 1, "init-args-num-cpus": work.workers},
            events,
        )
    result.raise_for_status()
    return read_rounds(events, started)


def read_rounds(events: Path, started: float) -> StockRun:
    """Return the times in an event file of the stock app: one ``round`` event a round, round 0 before the first."""
    found = [json.loads(line) for line in events.read_text().splitlines()]
    times = [event["time"] for event in found if event["kind"] == "round"]
    return StockRun(times[0] - started, tuple(float(seconds) for seconds in np.diff(times)))


def write_records(work: Work, folder: Path) -> None:
    """Write each site's records as RGB images (n, H, W, 3) uint8 and labels, as image folders hold them."""
    folder.mkdir(parents=True)
    for number, site in enumerate(work.partition.sites):
        images, labels = work.arrays(site)
        rgb = images if images.ndim == 4 else np.repeat(images[..., None], 3, axis=3)
        np.savez(folder / f"{number}.npz", images=rgb, labels=labels)
