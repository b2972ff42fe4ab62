"""How long work takes: measured where the cache has stages of the same kind, else a guess that says that it is one."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flower_apps.planned import PlannedStage
from flower_apps.settings import GroupSettings

GUESSES = {("cnn", "cpu"): 8e-4, ("resnet18", "cpu"): 2e-2, ("cnn", "cuda"): 4e-5, ("resnet18", "cuda"): 2e-4}
"""Seconds of training an image of 28 x 28 pixels on one thread, or on a GPU, by network and device."""
GUESS_A_PARAMETER = {"cpu": 1e-9, "cuda": 2e-11}
"""The same for a network that nobody has measured, for each of its parameters."""
MESSAGE = 0.05
"""Seconds of a message there and back, beside the work and the model that it carries."""
CARRIED = 3e7
"""Bytes of model that a message carries in a second, there and back, recording included."""
FORWARD = 0.25
"""Of training a record, what scoring it takes."""
SCORED = 0.2
"""Seconds of a stage of scores beside the records."""
START = 12.0
"""Seconds from a submitted run to its first message: Ray, workers, data."""
EVALUATED = 0.5
"""Seconds to read one checkpoint against gold."""
NEWEST = 100
"""Stages of a kind that a rate is taken from at most."""


@dataclass(frozen=True)
class Measured:
    """One stage of the cache as a measurement.

    Attributes
    ----------
    about : tuple
        Task, network, threads, device kind; and of a model precision and channels_last too.
    method : str
        The unlearning method; empty for plain training.
    dataset, host : str
        Of what and where; empty where the stage does not tell.
    workers, rounds : int
        Sites at work at once, and rounds.
    seconds, work : float
        Wall time; seconds of work at the sites.
    amount : float
        Records processed, or scored.
    bytes_down : float
        Sent to the sites.
    created : float
        Seconds since the epoch.
    """

    about: tuple[Any, ...]
    method: str
    dataset: str
    host: str
    workers: int
    rounds: int
    seconds: float
    work: float
    amount: float
    bytes_down: float
    created: float


@dataclass(frozen=True)
class Rates:
    """How long the work of one group takes.

    Attributes
    ----------
    train : float
        Seconds a record at a site.
    methods : mapping of str to float
        The same of methods that were measured.
    message : float
        Seconds a message.
    scored, record : float
        Seconds of a stage of scores, and of each record in it.
    stages : int
        From how many stages `train` was measured; 0: it is a guess.
    age : float
        Seconds since the newest of them.
    here : bool
        Whether they were measured on this host.
    """

    train: float
    methods: Mapping[str, float] = field(default_factory=dict)
    message: float = MESSAGE
    scored: float = SCORED
    record: float = 0.0
    stages: int = 0
    age: float = 0.0
    here: bool = True

    def seconds(self, stage: PlannedStage, workers: int) -> float:
        """Return the wall time of a stage with so many sites at work at once; 0 for one in the cache."""
        work = stage.work
        if stage.cached:
            return 0.0
        if work.records:
            return self.scored + work.records * self.record / workers
        rate = self.methods.get(stage.method, self.train)
        longest = (
            max(sum(asked.values()) / workers, *asked.values()) * rounds for asked, rounds in work.alike if asked
        )
        return sum(longest) * rate + work.messages * self.message

    @property
    def basis(self) -> str:
        """Say in a few words what the rates stand on."""
        if not self.stages:
            return "a guess: no stage like these was measured yet"
        age = "today" if self.age < 86400 else f"{self.age / 86400:.0f} days ago"
        where = "" if self.here else ", on another host"
        return f"{self.stages} stage{'s' * (self.stages > 1)} measured, the last {age}{where}"


def read_measured(store: Path) -> list[Measured]:
    """Return what the stages below a cache folder measured, newest first; those that cannot be read are left out."""
    found = []
    for path in store.glob("*/*/stage.json"):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            found.append(_read(json.loads(path.read_text())))
    return sorted((one for one in found if one.seconds > 0), key=lambda one: -one.created)


def _read(record: Mapping[str, Any]) -> Measured:
    parts, cost, conditions = record["parts"], record["cost"], record["conditions"]
    about: tuple[Any, ...] = (parts["task"], parts["model"], parts["threads"], parts["device"])
    if record["kind"] != "score":
        about += (parts["precision"], parts["channels-last"])
    return Measured(
        about=about,
        method=str(parts.get("method", "")),
        dataset=str(record.get("dataset", "")),
        host=str(conditions.get("host", "")),
        workers=int(conditions.get("workers", 0)),
        rounds=int(record.get("rounds", 0)),
        seconds=float(cost.get("seconds", 0.0)),
        work=float(cost.get("client_seconds", 0.0)),
        amount=float(cost.get("records", 0.0) or cost.get("client_examples", 0.0)),
        bytes_down=float(cost.get("bytes_down", 0.0)),
        created=float(record["created"]),
    )


def rates_of(
    settings: GroupSettings,
    *,
    precision: str,
    device: str,
    parameters: int,
    model_bytes: int,
    measured: Sequence[Measured],
) -> Rates:
    """Return the rates of a group.

    Parameters
    ----------
    settings : GroupSettings
        The group.
    precision, device : str
        What the sites compute in and on; see `flower_apps.sites.agreed`.
    parameters, model_bytes : int
        Of the network.
    measured : sequence of Measured
        Newest first. Those of the same task, network, threads, device, precision and memory format count; of them those
        of this data set where there are any, and of those the ones of this host.
    """
    about = (settings.task, settings.model, settings.threads, device)
    known = _nearest([one for one in measured if one.about == (*about, precision, settings.channels_last)], settings)
    trained = [one for one in known if not one.method and one.amount][:NEWEST]
    guess = GUESSES.get((settings.model, device), parameters * GUESS_A_PARAMETER.get(device, 1e-9))
    train = _rate(trained) if trained else guess
    methods = {
        name: _rate(same)
        for name in settings.method_names()
        if (same := [one for one in known if one.method == name and one.amount][:NEWEST])
    }
    messages = [one for one in known if one.bytes_down][:NEWEST]
    scores = _nearest([one for one in measured if one.about == about and one.amount and one.rounds == 0], settings)
    here = socket.gethostname()
    return Rates(
        train=train,
        methods=methods,
        message=_overhead(messages, model_bytes) if messages else MESSAGE + model_bytes / CARRIED,
        record=_score_rate(scores[:NEWEST]) if scores else train * FORWARD,
        stages=len(trained),
        age=max(time.time() - trained[0].created, 0.0) if trained else 0.0,
        here=all(one.host == here for one in trained),
    )


def _nearest(found: Sequence[Measured], settings: GroupSettings) -> list[Measured]:
    """Keep those of the same data set where there are any, else those that do not tell theirs; then this host's."""
    host = socket.gethostname()
    tests: list[Callable[[Measured], bool]] = [
        lambda one: one.dataset == settings.dataset,
        lambda one: not one.dataset,
    ]
    chosen = next((same for test in tests if (same := [one for one in found if test(one)])), list(found))
    return [one for one in chosen if one.host == host] or chosen


def _rate(found: Sequence[Measured]) -> float:
    return sum(one.work for one in found) / sum(one.amount for one in found)


def _score_rate(found: Sequence[Measured]) -> float:
    """Return the seconds a record of stages of scores, what each takes anyhow taken off."""
    spent = [max(one.seconds - SCORED, 0.1 * one.seconds) * max(one.workers, 1) for one in found]
    return sum(spent) / sum(one.amount for one in found)


def _overhead(found: Sequence[Measured], model_bytes: int) -> float:
    """Return what a message took beside the work: what the wall time has that the sites' seconds do not explain."""
    messages = beside = 0.0
    for one in found:
        sent = max(one.bytes_down / model_bytes, 1.0)
        side_by_side = min(max(one.workers, 1), max(sent / max(one.rounds, 1), 1.0))
        messages += sent
        beside += max(one.seconds - one.work / side_by_side, 0.0)
    return beside / messages
