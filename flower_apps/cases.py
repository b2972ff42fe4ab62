"""What a group computes and scores: a request under an unlearning seed, and the checkpoints of one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flower_apps.sites import Facts
from flower_apps.stages import Stage
from partitions.requests import parse_request
from strategies.base import RequestPlan

SEARCHED = "searched"
"""What stands in place of the preset where a method's settings were chosen by a search."""


@dataclass(frozen=True)
class Case:
    """One request under one unlearning seed.

    Attributes
    ----------
    plan : RequestPlan
        The request as the server sees it.
    selection : Facts
        How many records it means at each site, and hashes of which.
    seed : int
        Unlearning seed.
    difficulty : mapping
        What the request takes from whom, before anything is trained; empty where nobody asked.
    """

    plan: RequestPlan
    selection: Facts
    seed: int
    difficulty: Mapping[str, Any] = field(default_factory=dict)

    @property
    def earlier(self) -> tuple[str, ...]:
        """Granularities of the steps before the last, whose records every later model is scored on again."""
        return tuple(step.granularity for step in parse_request(self.plan.text).steps[:-1])


@dataclass(frozen=True)
class Arm:
    """One model of a case by its checkpoints.

    Attributes
    ----------
    method, preset : str
        ``original``, ``retrain`` (gold) or a method, and the method's preset, or `SEARCHED`.
    config : mapping
        The method's resolved settings.
    checkpoints : mapping of str to Stage or None
        ``trained`` for the original; ``unlearned`` and ``recovered`` for the others. There is no recovered model after
        a diverged unlearning step.
    search : mapping
        How the settings were chosen, for the record of the run; empty where they were given.
    """

    method: str
    preset: str
    config: Mapping[str, Any]
    checkpoints: Mapping[str, Stage | None]
    search: Mapping[str, Any] = field(default_factory=dict)

    @property
    def last(self) -> Stage:
        """The last checkpoint there is."""
        return [stage for stage in self.checkpoints.values() if stage is not None][-1]
