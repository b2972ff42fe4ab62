"""MLflow: one run a Lethe run, below it one a cell; at MLFLOW_TRACKING_URI, else an SQLite store in the run folder."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from flower_apps.tracking.base import CellPoint, RoundPoint, RunFacts

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run
    from mlflow.tracking import MlflowClient

FOLDER = "mlruns"
EXPERIMENT = "lethe"
T = TypeVar("T")
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
"""A server that does not answer must not hold a run up; who sets them otherwise has it so."""
MOST_METRICS, MOST_PARAMS, MOST_TEXT = 1000, 100, 6000
"""What MLflow takes in one request, and in one parameter."""


class MLflow:
    """See `flower_apps.tracking.base.Writer`."""

    name = "mlflow"
    packages = ("mlflow", "alembic")
    requirement = "mlflow-skinny alembic"

    def open(self, run: RunFacts) -> MLflowSession:
        """See `Writer.open`."""
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        for name in ("mlflow", "alembic"):  # which set their own levels when they are imported
            logging.getLogger(name).setLevel(logging.WARNING)  # they would tell of every table that they make
        uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        place = run.path / FOLDER
        if not uri:
            place.mkdir(exist_ok=True)
            uri = f"sqlite:///{place / 'mlflow.db'}"
        client = MlflowClient(tracking_uri=uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        known = client.get_experiment_by_name(name)
        own = str(place / "artifacts") if "MLFLOW_TRACKING_URI" not in os.environ else None
        experiment = known.experiment_id if known else client.create_experiment(name, artifact_location=own)
        return MLflowSession(client, experiment, run)


class MLflowSession:
    """Writes a parent run and its children; each is found again by its tags.

    Parameters
    ----------
    client : MlflowClient
        Of the tracking server or store.
    experiment : str
        Its id.
    run : RunFacts
        The Lethe run.
    """

    def __init__(self, client: MlflowClient, experiment: str, run: RunFacts) -> None:
        self._client, self._experiment, self._run = client, experiment, run
        found = self._find(f"tags.`lethe.run` = '{run.id}' and tags.`lethe.kind` = 'run'")
        if found is None:
            tags = {**run.tags, "lethe.run": run.id, "lethe.kind": "run"}
            found = client.create_run(experiment, _milliseconds(run.created), tags, run.path.name)
        else:
            client.update_run(found.info.run_id, status="RUNNING")
        self._parent = found.info.run_id
        self._written: dict[str, set[int]] = {}

    def rounds(self, points: Sequence[RoundPoint]) -> None:
        """See `Session.rounds`: metrics of the parent run, ``stage/loss`` by round."""
        from mlflow.entities import Metric

        new: list[Metric] = []
        for point in points:
            if point.name not in self._written:
                told = self._client.get_metric_history(self._parent, f"{point.name}/seconds")
                self._written[point.name] = {metric.step for metric in told}
            if point.round in self._written[point.name]:
                continue
            self._written[point.name].add(point.round)
            for name, value in sorted(point.values.items()):
                new.append(Metric(_metric_name(f"{point.name}/{name}"), value, _milliseconds(point.time), point.round))
        self._log(self._parent, new)

    def cell(self, point: CellPoint) -> None:
        """See `Session.cell`: parameters, tags, and ``checkpoint/metric`` with the evaluation seed as step."""
        from mlflow.entities import Metric, Param

        digest = hashlib.sha256(repr(point).encode()).hexdigest()[:16]
        which = f"tags.`lethe.run` = '{self._run.id}' and tags.`lethe.cell` = '{point.cell}'"
        if (found := self._find(which)) is not None:
            if found.data.tags.get("lethe.digest") == digest:
                return
            self._client.delete_run(found.info.run_id)  # half written, or of a computation that another has replaced
        tags = {
            **point.tags,
            "lethe.run": self._run.id,
            "lethe.cell": point.cell,
            "lethe.kind": "cell",
            "lethe.method": point.method,
            "lethe.request": point.request,
            "lethe.status": point.status,
            "mlflow.parentRunId": self._parent,
        }
        name, when = f"{point.method} {point.request}", _milliseconds(self._run.created)
        child = self._client.create_run(self._experiment, when, tags, name).info.run_id
        given = {**point.settings, **{f"{point.method}.{key}": value for key, value in point.config.items()}}
        params = [Param(key, str(value)[:MOST_TEXT]) for key, value in sorted(given.items())]
        for part in _parts(params, MOST_PARAMS):
            self._client.log_batch(child, params=part)
        values = sorted(point.values.items())
        self._log(child, [Metric(_metric_name(tag), value, when, seed) for (tag, seed), value in values])
        self._client.set_tag(child, "lethe.digest", digest)  # last: without it the run counts as half written
        self._client.set_terminated(child, "FINISHED")

    def close(self) -> None:
        """See `Session.close`: mark the parent run as finished."""
        self._client.set_terminated(self._parent, "FINISHED")

    def _find(self, condition: str) -> Run | None:
        found = self._client.search_runs([self._experiment], condition, max_results=1)
        return found[0] if found else None

    def _log(self, run: str, metrics: Iterable[Metric]) -> None:
        for part in _parts(metrics, MOST_METRICS):
            self._client.log_batch(run, metrics=part)


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def _metric_name(name: str) -> str:
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)


def _parts(items: Iterable[T], most: int) -> Iterator[list[T]]:
    found = list(items)
    return (found[start : start + most] for start in range(0, len(found), most))


WRITER = MLflow()
