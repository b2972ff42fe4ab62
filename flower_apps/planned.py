"""What a rehearsal tells of a group: its stages, which of them are there, and what work the rest means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

PLANNED = "planned "
"""Begins what stands for a hash that is known only when the stage has been computed."""


@dataclass(frozen=True)
class Work:
    """What computing a stage asks of the sites.

    Attributes
    ----------
    rounds : tuple of mapping of str to int
        For each round the records that every asked site processes, a record counting once an epoch. Rounds that ask
        the same share one mapping: there may be a hundred thousand.
    done : int
        Rounds that an interrupted run has committed already.
    records : int
        Records scored, twice where two models are compared; 0 for a model.
    scored_at : int
        Messages that ask for scores.
    """

    rounds: tuple[Mapping[str, int], ...] = ()
    done: int = 0
    records: int = 0
    scored_at: int = 0

    @property
    def left(self) -> tuple[Mapping[str, int], ...]:
        """The rounds that are not committed yet."""
        return self.rounds[self.done :]

    @cached_property
    def alike(self) -> list[tuple[Mapping[str, int], int]]:
        """What the rounds that are left ask for, each with how many of them do."""
        return counted(self.left)

    @property
    def examples(self) -> int:
        """Records that the sites still have to process by gradient steps."""
        return sum(sum(asked.values()) * rounds for asked, rounds in self.alike)

    @property
    def messages(self) -> int:
        """Questions that are still to be sent."""
        return sum(len(asked) * rounds for asked, rounds in self.alike) + self.scored_at


def counted(rounds: Sequence[Mapping[str, int]]) -> list[tuple[Mapping[str, int], int]]:
    """Return what rounds ask for, each with how many of them share that mapping, in order of first use."""
    found = {id(asked): asked for asked in rounds}
    return [(found[place], times) for place, times in Counter(map(id, rounds)).items()]


@dataclass(frozen=True)
class PlannedStage:
    """A stage that a group takes.

    Attributes
    ----------
    kind, label : str
        Of the stage.
    key : str
        Its key; of scores of a model that is still to be computed a stand-in that begins with `PLANNED`.
    group : str
        Id of the first group that takes it.
    cached : bool
        Whether it is in the cache.
    method : str
        The unlearning method; empty where the work is plain training.
    work : Work
        Nothing where it is cached.
    kept, passing : int
        Bytes that come to the disk, and beyond those while it is computed; where it is cached, those of the depot's.
    """

    kind: str
    label: str
    key: str
    group: str
    cached: bool
    method: str = ""
    work: Work = field(default_factory=Work)
    kept: int = 0
    passing: int = 0

    @property
    def for_attacks(self) -> bool:
        """Whether it is a model that only the membership attacks need: a shadow, what becomes of it, a reference."""
        return self.kind == "shadow" or (self.kind != "score" and ("shadow:" in self.label or ", seed " in self.label))

    @property
    def is_planned(self) -> bool:
        """Whether its key depends on what is still to be computed."""
        return self.key.startswith(PLANNED)


@dataclass(frozen=True)
class Rehearsed:
    """What walking one group through found.

    Attributes
    ----------
    group : str
        The group's id.
    stages : tuple of PlannedStage
        All that it takes, each once, in order of first use.
    original : str
        Key of the training that its cells share.
    submissions : int
        Checkpoints that the evaluator reads.
    parameters, model_bytes : int
        Of the network.
    sites, threads : int
        How many there are, and torch threads of each at work.
    network, precision, device : str
        The network in a few words, and what the sites compute in and on.
    held_models : int
        Models that the ServerApp holds at once beside the sites' updates, about.
    fails : str
        Why the run would end before its last stage, as far as can be known; empty otherwise.
    doubts : tuple of str
        What could not be walked through, and how its work was estimated.
    """

    group: str
    stages: tuple[PlannedStage, ...]
    original: str
    submissions: int
    parameters: int
    model_bytes: int
    sites: int
    threads: int
    network: str
    precision: str
    device: str
    held_models: int
    fails: str = ""
    doubts: tuple[str, ...] = ()
