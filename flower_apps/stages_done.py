"""Which stages of a run's plan are done by now, by the events of its groups since its command started."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRUSTED = 10.0
"""Seconds of finished stages after which their pace corrects what is left."""
Told = tuple[str, str]
"""Kind and label of a stage: all that is known of one whose key hangs on what is still to be computed."""


@dataclass(frozen=True)
class Planned:
    """A stage of ``plan.json``.

    Attributes
    ----------
    about : tuple of str
        Kind and label.
    key : str
        Empty where it hangs on what is still to be computed.
    groups : tuple of str
        Ids of the groups that take it.
    cached : bool
        Whether it was there when the plan was made.
    seconds : float
        Predicted wall time; 0 where it is cached.
    """

    about: Told
    key: str
    groups: tuple[str, ...]
    cached: bool
    seconds: float


class StagesDone:
    """The stages that a group has found or finished, fed with its events.

    Parameters
    ----------
    stages : Path
        The cache, which is asked for what no round tells of: an imported model, one that another stage made.
    """

    def __init__(self, stages: Path) -> None:
        self._stages = stages
        self._done: dict[Told, set[str]] = defaultdict(set)
        self._claimed: dict[Told, dict[str, float]] = defaultdict(dict)
        self._begun: dict[Told, float] = {}
        self.took: dict[Told, list[float]] = defaultdict(list)
        """Seconds from the beginning to the end of the stages that have had both."""

    def __len__(self) -> int:
        return len({(kind, key) for (kind, _), keys in self.keys().items() for key in keys})

    def take(self, event: Mapping[str, Any]) -> None:
        """Take one event."""
        kind, key = str(event.get("stage")), str(event.get("key") or "")
        if event["kind"] == "claimed":
            self._claimed[kind, str(event.get("name"))][key] = float(event.get("time", 0.0))
        elif event["kind"] == "stage-started":
            self._begun[kind, str(event.get("label"))] = float(event.get("time", 0.0))
        elif event["kind"] in ("stage-finished", "stage-cached"):
            about = kind, str(event.get("label"))
            if (begun := self._begun.pop(about, None)) is not None:
                self.took[about].append(float(event.get("time", begun)) - begun)
            claimed = {} if key else self._claimed.pop(about, {})  # several where one training makes several stages
            self._done[about] |= {key} if key else set(claimed) or (set() if self._done[about] else {about[1]})

    def keys(self) -> Mapping[Told, AbstractSet[str]]:
        """Return the keys of what is done, by kind and label."""
        for about, keys in self._claimed.items():
            self._done[about] |= {key for key, at in keys.items() if self._committed(about[0], key, at)}
        return self._done

    def _committed(self, kind: str, key: str, since: float) -> bool:
        try:
            return (self._stages / kind / key / "stage.json").stat().st_mtime >= since
        except OSError:
            return False


def planned_stages(path: Path, since: float) -> list[Planned]:
    """Return the stages of a plan; empty where there is none, it cannot be read, or it is of before `since`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if float(found["created"]) < since:
            return []
        return [
            Planned(
                about=(str(one["kind"]), str(one["label"])),
                key=str(one.get("key") or ""),
                groups=tuple(map(str, one["groups"])),
                cached=bool(one["cached"]),
                seconds=float(one["seconds"]),
            )
            for one in found["stages"]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def pace(planned: Sequence[Planned], groups: Mapping[str, StagesDone]) -> float:
    """Return how long finished stages took over what was predicted, see `pace_of`."""
    expected: dict[tuple[str, Told], list[float]] = defaultdict(list)
    for stage in planned:
        for group in stage.groups if not stage.cached else ():
            expected[group, stage.about].append(stage.seconds)
    pairs = [
        pair
        for group, told in groups.items()
        for about, took in told.took.items()
        for pair in zip(expected[group, about], took, strict=False)
    ]
    return pace_of(sum(predicted for predicted, _ in pairs), sum(took for _, took in pairs))


def pace_of(predicted: float, took: float) -> float:
    """Return the seconds that something took over those predicted; 1 below `TRUSTED`."""
    return took / predicted if min(predicted, took) > TRUSTED else 1.0


def mark_done(
    planned: Sequence[Planned], groups: Mapping[str, StagesDone], completed: AbstractSet[str] = frozenset()
) -> list[bool]:
    """Tell of each planned stage whether it is done.

    Parameters
    ----------
    planned : sequence of Planned
        Stages of one kind and label that a group takes count as done in their order.
    groups : mapping of str to StagesDone
        What each group has come to, by its id.
    completed : set of str
        Ids of the groups that have all their results, and so all their stages.
    """
    done = [stage.cached or not completed.isdisjoint(stage.groups) for stage in planned]
    for group, told in groups.items():
        own: dict[Told, list[int]] = defaultdict(list)
        for number, stage in enumerate(planned):
            if group in stage.groups:
                own[stage.about].append(number)
        for about, keys in told.keys().items():
            there = {planned[number].key for number in own[about] if planned[number].cached}
            left = [number for number in own[about] if not planned[number].cached]
            for number in left[: len(keys - there)]:
                done[number] = True
    return done
