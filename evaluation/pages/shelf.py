"""Runs made ready to be shown: their chapters, and every figure drawn once, until the content of either changes."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import matplotlib
import pandas as pd

from evaluation.report.chapters import Chapter, chapters_of, trainings_of
from evaluation.report.drawing import Plot
from evaluation.report.grid import Grid
from evaluation.report.judgements import ranking_grids
from evaluation.report.sections import Section
from evaluation.service.sources import OpenRun, Runs
from partitions.errors import BadInput

READY = 8
"""Runs kept ready."""
DRAWN = 64 * 2**20
"""Bytes of drawn figures kept."""
KINDS: dict[str, str] = {"png": "image/png", "svg": "image/svg+xml", "csv": "text/csv; charset=utf-8"}
"""Files of a figure, with their media types."""
CODE = hashlib.sha256(
    matplotlib.__version__.encode()
    + b"".join(path.read_bytes() for path in sorted(Path(__file__).parents[1].glob("report/*.py")))
).hexdigest()
"""What changes when figures are drawn otherwise: Matplotlib, and the code of the report."""


@dataclass(frozen=True)
class Ready:
    """A run as its pages need it.

    Attributes
    ----------
    id : str
    run : OpenRun
    digest : str
        Of everything in it.
    chapters : list of Chapter
    trainings : list of Plot
    """

    id: str
    run: OpenRun
    digest: str
    chapters: Sequence[Chapter]
    trainings: Sequence[Plot]

    @property
    def sections(self) -> list[Section]:
        """Its requests."""
        return [chapter.section for chapter in self.chapters]

    @property
    def grids(self) -> list[Grid]:
        """All its tables."""
        return [*(grid for chapter in self.chapters for grid in chapter.grids), *self.rankings]

    @cached_property
    def rankings(self) -> list[Grid]:
        """Its methods ranked over data sets; none for a single one."""
        return ranking_grids(self.sections)

    @cached_property
    def plots(self) -> dict[str, Plot]:
        """All its figures, by name."""
        own = [plot for chapter in self.chapters for plot in chapter.plots]
        return {plot.name: plot for plot in (*own, *self.trainings)}

    @cached_property
    def marks(self) -> dict[str, str]:
        """Of every figure, by name, a hash of all that determines its looks: numbers, words, colours and code."""
        methods = sorted({method for section in self.sections for method in section.results["method"].unique()})
        found = {}
        for plot in self.plots.values():
            about = (plot.name, plot.title, plot.caption, plot.alt, repr(plot.height), *methods, CODE)
            found[plot.name] = hashlib.sha256("\0".join(about).encode() + plot.csv).hexdigest()[:24]
        return found


class Missing(LookupError):
    """There is no such thing; its text says what there is none of."""


class Shelf:
    """Runs of a source, made ready once; safe for many threads."""

    def __init__(self, source: Runs) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}
        self._ready: OrderedDict[str, Ready] = OrderedDict()
        self._drawn: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def open(self, id: str) -> OpenRun:
        """Return a run as its source has it; raises `Missing` when there is none of that id."""
        try:
            return self._source.open(id)
        except BadInput:
            raise Missing(f"run {id}") from None

    def ready(self, id: str) -> Ready:
        """Return a run made ready.

        Raises
        ------
        Missing
            When there is none of that id.
        BadInput
            When it is damaged, or without results.
        """
        run = self.open(id)
        with self._lock:
            found = self._ready.get(id)
            making = self._making.setdefault(id, threading.Lock())
        if found is not None and found.run is run:
            return found
        with making:
            digest = _digest(run)
            with self._lock:
                found = self._ready.get(id)
            if found is None or found.digest != digest:
                chapters = chapters_of(run)
                trainings = trainings_of([chapter.section for chapter in chapters], run.rounds)
                found = Ready(id, run, digest, chapters, trainings)
            with self._lock:
                self._ready[id] = found
                self._ready.move_to_end(id)
                while len(self._ready) > READY:
                    self._making.pop(self._ready.popitem(last=False)[0], None)
        return found

    def drawn(self, plot: Plot, mark: str, kind: Literal["png", "svg"]) -> bytes:
        """Return a figure's image; drawn when nobody asked for it before.

        Parameters
        ----------
        plot : Plot
        mark : str
            As `Ready.marks` has it.
        kind : {"png", "svg"}
        """
        key = (mark, kind)
        with self._lock:
            if key in self._drawn:
                self._drawn.move_to_end(key)
                return self._drawn[key]
        image = plot.drawn(kind)
        with self._lock:
            self._drawn[key] = image
            while sum(map(len, self._drawn.values())) > DRAWN and len(self._drawn) > 1:
                self._drawn.popitem(last=False)
        return image


def _digest(run: OpenRun) -> str:
    found = hashlib.sha256(repr((run.name, run.manifest)).encode())
    for frame in (run.results, run.curves, run.trials, run.rounds):
        found.update(repr(list(frame.columns)).encode())
        found.update(pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes())
    return found.hexdigest()[:24]
