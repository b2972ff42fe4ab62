"""What is new in a run folder since the last look: finished rounds from its events, cells from its results."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evaluation.files import is_file
from evaluation.results import FILE as RESULTS
from evaluation.results import read_results
from evaluation.runs import read_record
from flower_apps.tracking.base import CellPoint, RoundPoint, RunFacts
from flower_apps.watch import Event, EventTail
from strategies.history import History

FOLLOWED = ("train", "retrain", "unlearn", "recover")
"""Kinds of stages whose rounds are followed; shadows and scores are too many and tell nothing by round."""
VALUES = ("loss", "metric", "seconds", "client_seconds", "examples", "bytes_down", "bytes_up")


class Feed:
    """Tells each round and each state of a cell once.

    Rounds come from the events, and those of a stage that the cache had from its kept history.

    Parameters
    ----------
    path : Path
        The run folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tails: dict[Path, EventTail] = {}
        self._keys: dict[tuple[Path, str, str], str] = {}
        self._told: set[tuple[str, int]] = set()
        self._cells: dict[str, str] = {}
        self._seen: tuple[int, ...] = ()

    def facts(self) -> RunFacts:
        """Return what the run is."""
        return facts_of(self._path, read_record(self._path))

    def rounds(self) -> list[RoundPoint]:
        """Return the rounds that ended since the last call."""
        points = []
        for path in sorted((self._path / "events").glob("*.jsonl")):
            tail = self._tails.setdefault(path, EventTail(path, from_start=True))
            for event in tail.new():
                if (point := self._take(path, event)) is not None:
                    points.append(point)
        return points

    def cells(self) -> tuple[list[RoundPoint], list[CellPoint]]:
        """Return the cells that are new or changed since the last call, and kept rounds that no event has told of."""
        files = [path for path in (self._path / "run.json", self._path / RESULTS) if path.exists()]
        stamp = tuple(path.stat().st_mtime_ns for path in files)
        if stamp == self._seen or not is_file(self._path / RESULTS):
            return [], []
        self._seen = stamp
        record, results = read_record(self._path), read_results(self._path)
        facts = facts_of(self._path, record)
        rows_of = dict(tuple(results.groupby("cell")))
        rounds: list[RoundPoint] = []
        cells: list[CellPoint] = []
        for cell in record["cells"]:
            rounds += self._kept(cell)
            if (rows := rows_of.get(cell["cell"])) is None:
                continue
            point = cell_point(cell, rows.to_dict("records"), facts.tags)
            digest = hashlib.sha256(repr(point).encode()).hexdigest()
            if self._cells.get(point.cell) != digest:
                self._cells[point.cell] = digest
                cells.append(point)
        return rounds, cells

    def _take(self, path: Path, event: Event) -> RoundPoint | None:
        kind, stage = event["kind"], str(event.get("stage", ""))
        if kind == "claimed":
            self._keys[path, stage, str(event["name"])] = str(event["key"])
        if kind != "round-finished" or stage not in FOLLOWED:
            return None
        label, round_ = str(event["label"]), int(event["round"])
        key = self._keys.get((path, stage, label), "")
        values = {name: event[name] for name in VALUES if event.get(name) is not None}
        return self._once(RoundPoint(stage, label, key, round_, float(event["time"]), values))

    def _once(self, point: RoundPoint) -> RoundPoint | None:
        about = (point.key or f"{point.stage} {point.label}", point.round)
        if about in self._told:
            return None
        self._told.add(about)
        return point

    def _kept(self, cell: Mapping[str, Any]) -> Iterator[RoundPoint]:
        """Yield the rounds that the cache keeps of a cell's stages and that were not told yet."""
        for checkpoint, model in cell["checkpoints"].items():
            folder = Path(model).parent
            stage, key = folder.parent.name, folder.name
            if stage not in FOLLOWED or not (folder / "history").is_dir():
                continue
            history = History(folder / "history")
            for round_ in history.rounds:
                found = history.record(round_)
                cost = found.cost
                measured = {
                    "loss": found.loss,
                    "metric": found.metric,
                    "seconds": found.seconds,
                    "client_seconds": cost.client_seconds,
                    "examples": cost.client_examples,
                    "bytes_down": cost.bytes_down,
                    "bytes_up": cost.bytes_up,
                }
                values = {name: float(value) for name, value in measured.items() if math.isfinite(value)}
                ended = history.path(round_).stat().st_mtime
                label = stage_label(cell["method"], checkpoint, cell["request"])
                if (point := self._once(RoundPoint(stage, label, key, round_, ended, values))) is not None:
                    yield point


def stage_label(method: str, checkpoint: str, request: str) -> str:
    """Return how progress names the stage that made a checkpoint."""
    if checkpoint == "trained":
        return "original"
    return f"recover {method} {request}" if checkpoint == "recovered" else f"{method} {request}"


def facts_of(path: Path, record: Mapping[str, Any]) -> RunFacts:
    """Return what a run is, from its record."""
    environment = record["environment"]
    names = dict.fromkeys(str(settings.get("name", "")) for settings in record["groups"].values())
    tags = {
        "lethe.experiment": ", ".join(name for name in names if name),
        "lethe.run_folder": str(path),
        "lethe.commit": str(environment.get("commit", "")),
        "lethe.host": str(environment.get("host", "")),
        "lethe.platform": str(environment.get("platform", "")),
        **{f"lethe.version.{name}": str(version) for name, version in environment.get("libraries", {}).items()},
    }
    identity = hashlib.sha256(f"{record['created']!r} {path.name}".encode()).hexdigest()[:16]
    return RunFacts(identity, path, float(record["created"]), {name: text for name, text in tags.items() if text})


def cell_point(cell: Mapping[str, Any], rows: list[dict[Any, Any]], tags: Mapping[str, str]) -> CellPoint:
    """Return a cell of the record with its rows of the results."""
    values = {}
    for row in rows:
        seed = row["evaluate_seed"]
        if math.isfinite(row["value"]):
            values[f"{row['checkpoint']}/{row['metric']}", 0 if seed is None or seed != seed else int(seed)] = float(
                row["value"]
            )
    own = {name: str(cell[name]) for name in ("preset", "train_seed", "unlearn_seed") if str(cell[name])}
    return CellPoint(
        cell=str(cell["cell"]),
        method=str(cell["method"]),
        request=str(cell["request"]),
        status=str(cell["status"]),
        settings=plain(cell["settings"]),
        config=plain(cell["config"]),
        values=values,
        tags={**tags, **{f"lethe.{name}": text for name, text in own.items()}},
    )


def plain(settings: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """Return settings as scalars; what is none becomes text."""
    scalar = str | int | float | bool
    return {key: value if isinstance(value, scalar) else str(value) for key, value in settings.items()}
