"""`lethe plan`: what experiments need before anything starts, what of it is there, and whether the rest fits."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from evaluation.files import write_text
from flower_apps.cluster import Cluster
from flower_apps.control import usable_cores
from flower_apps.durations import in_words
from flower_apps.labels import labels_of
from flower_apps.lanes import Means
from flower_apps.manifest import Manifest
from flower_apps.planned import PlannedStage, Rehearsed
from flower_apps.rates import EVALUATED, START, Rates, rates_of, read_measured
from flower_apps.rehearsal import TooLong, rehearse
from flower_apps.runs import PLAN, group_id
from flower_apps.settings import GroupSettings
from partitions.errors import BadInput, Quantity, naming

FLOWER_BYTES = 2.0e9
"""Memory of a Flower run beside its workers: SuperLink, Ray, ServerApp; measured (docs/plan.md)."""
WORKER_BYTES = 0.55e9
"""Memory of a worker beside its models; measured (docs/plan.md)."""
WORKER_MODELS = 10
"""Models that a worker holds: weights, gradients, momentum, what came and what goes, a teacher."""
NOTHING = "nothing:"
"""Begins the layout of a data set that has no files."""


@dataclass(frozen=True)
class Step:
    """A stage of a plan.

    Attributes
    ----------
    stage : PlannedStage
        What it is.
    groups : tuple of str
        Ids of the groups that take it.
    seconds : float
        Predicted wall time; 0 where it is cached.
    """

    stage: PlannedStage
    groups: tuple[str, ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return what `lethe plan --json` and ``plan.json`` say of it."""
        stage, work = self.stage, self.stage.work
        return {
            "kind": stage.kind,
            "label": stage.label,
            "key": None if stage.is_planned else stage.key,
            "group": stage.group,
            "groups": list(self.groups),
            "cached": stage.cached,
            "seconds": round(self.seconds, 2),
            "rounds_left": len(work.left),
            "examples": work.examples,
            "records": work.records,
            "messages": work.messages,
            "disk_bytes": stage.kept,
        }


@dataclass(frozen=True)
class Needed:
    """What some groups need.

    Attributes
    ----------
    stages, cached, shared : int
        Stages, those in the cache, and those that several groups take; each counts once.
    computing : float
        Predicted seconds of all stages that are left, one after the other.
    wall : float
        Predicted seconds with the jobs and workers of the plan, starts and scoring included.
    runs : int
        Flower runs: groups that share an original are one; those with everything in the cache need none.
    models : int
        Shadow federations, references and what methods make of shadows, among the stages that are left.
    disk_kept, disk_peak : int
        Bytes that stay, and the most there is at once.
    memory : int
        Bytes at once.
    """

    stages: int
    cached: int
    shared: int
    computing: float
    wall: float
    runs: int
    models: int
    disk_kept: int
    disk_peak: int
    memory: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {
            "stages": self.stages,
            "cached": self.cached,
            "shared": self.shared,
            "seconds": round(self.computing, 1),
            "wall_seconds": round(self.wall, 1),
            "flower_runs": self.runs,
            "shadow_models": self.models,
            "disk_kept_bytes": self.disk_kept,
            "disk_peak_bytes": self.disk_peak,
            "memory_bytes": self.memory,
        }


@dataclass(frozen=True)
class Plan:
    """What experiments need.

    Attributes
    ----------
    steps : tuple of Step
        Every stage once, in order of first use.
    rehearsed : tuple of Rehearsed
        What was found for each group.
    names : mapping of str to str
        Experiment by group id.
    labels : mapping of str to str
        What a group is called where several are told apart, by its id.
    rates : mapping of str to Rates
        By group id.
    home : Path
        LETHE_HOME.
    jobs, workers : int
        Flower runs side by side; sites at work at once in each, at most.
    cores : int
        That the runs may use.
    disk_free, memory_there : int
        Bytes free below the home, and of the machine.
    at_work : mapping of str to int
        Sites at work at once by group id; `workers`, or all sites, for a group that is not there.
    cluster : str
        The Ray cluster that the sites work on, whose memory and cores are not judged; empty for this machine.
    """

    steps: tuple[Step, ...]
    rehearsed: tuple[Rehearsed, ...]
    names: Mapping[str, str]
    rates: Mapping[str, Rates]
    home: Path
    jobs: int
    workers: int
    cores: int
    disk_free: int
    memory_there: int
    at_work: Mapping[str, int] = field(default_factory=dict)
    cluster: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def group_seconds(self) -> list[float]:
        """Return the predicted seconds of each group, in order; a shared stage counts for the first that takes it."""
        own: dict[str, float] = defaultdict(float)
        for step in self.steps:
            own[step.stage.group] += step.seconds
        return [own[found.group] + found.submissions * EVALUATED for found in self.rehearsed]

    def needed(self, experiment: str | None = None) -> Needed:
        """Return what all groups need, or those of one experiment."""
        chosen = [found for found in self.rehearsed if experiment in (None, self.names[found.group])]
        ids = {found.group for found in chosen}
        steps = [step for step in self.steps if ids.intersection(step.groups)]
        left = [step for step in steps if not step.stage.cached]
        runs: dict[str, float] = defaultdict(float)
        read = 0.0
        seen: set[int] = set()
        for found in chosen:
            mine = [n for n, step in enumerate(steps) if not step.stage.cached and found.group in step.groups]
            spent = sum(steps[number].seconds for number in mine if number not in seen)
            seen.update(mine)
            if mine:
                runs[found.original] += spent + found.submissions * EVALUATED
            else:
                read += found.submissions * EVALUATED
        side_by_side = min(self.jobs, len(runs)) or 1
        return Needed(
            stages=len(steps),
            cached=len(steps) - len(left),
            shared=sum(len(step.groups) > 1 for step in steps),
            computing=sum(step.seconds for step in left),
            wall=read + packed([START + seconds for seconds in runs.values()], side_by_side) * self._crowding,
            runs=len(runs),
            models=sum(step.stage.for_attacks for step in left),
            disk_kept=sum(step.stage.kept for step in steps),
            disk_peak=sum(step.stage.kept for step in steps) + side_by_side * _passing([step.stage for step in left]),
            memory=side_by_side * max((self._memory(found) for found in chosen), default=0) if runs else 0,
        )

    @property
    def _crowding(self) -> float:
        """How much slower everything is where more threads want to work than there are cores."""
        if self.cluster:
            return 1.0
        busy = max((one.threads * self._workers(one) for one in self.rehearsed if one.device == "cpu"), default=0)
        return max(1.0, min(self.jobs, len(self.rehearsed)) * busy / self.cores)

    def _workers(self, found: Rehearsed) -> int:
        return self.at_work.get(found.group, min(self.workers, found.sites))

    def _memory(self, found: Rehearsed) -> int:
        workers = 0 if self.cluster else self._workers(found)
        server = (found.held_models + 3 * found.sites) * found.model_bytes
        return int(FLOWER_BYTES + server + workers * (WORKER_BYTES + WORKER_MODELS * found.model_bytes))

    @property
    def fails(self) -> list[str]:
        """One line for each group that would end early."""
        called = {**self.names, **self.labels}
        return [f"{called[found.group]}: {found.fails}" for found in self.rehearsed if found.fails]

    @property
    def doubts(self) -> list[str]:
        """What could not be planned exactly, without repeats."""
        return list(dict.fromkeys(doubt for found in self.rehearsed for doubt in found.doubts))

    @property
    def basis(self) -> list[str]:
        """What the predicted times stand on, by network and what it computes in, without repeats."""
        return list(dict.fromkeys(f"{found.network}: {self.rates[found.group].basis}" for found in self.rehearsed))

    def left(self) -> list[tuple[str, float]]:
        """Return label and predicted seconds of every stage that is to be computed and will be told of."""
        left = [step for step in self.steps if not step.stage.cached]
        silent = [step for step in left if step.stage.kind == "shadow" and not step.stage.work.rounds]
        return [(step.stage.label, step.seconds) for step in left if step not in silent]

    def line(self) -> str:
        """Say it in one line: "134 stages, 40 of them cached, about 12 min", and whether the time is a guess."""
        needed = self.needed()
        if needed.cached == needed.stages:
            return f"{needed.stages} stages, all of them cached"
        cached = f", {needed.cached} of them cached" if needed.cached else ""
        return f"{needed.stages} stages{cached}, about {in_words(needed.wall)}{self._guessed()}"

    def _guessed(self) -> str:
        """Say whether the time of what is left stands on guesses, in brackets; empty where all of it was measured."""
        groups = {step.stage.group for step in self.steps if not step.stage.cached}
        guessed = [rates for group in groups if not (rates := self.rates[group]).stages]
        if not guessed:
            return ""
        return f" ({guessed[0].basis})" if len(guessed) == len(groups) else " (partly a guess; see `lethe plan`)"

    def to_json(self) -> dict[str, Any]:
        """Return all of it; also the contents of ``plan.json``."""
        return {
            "created": time.time(),
            "jobs": self.jobs,
            "workers": self.workers,
            "ray_cluster": self.cluster,
            "totals": self.needed().to_json(),
            "experiments": {name: self.needed(name).to_json() for name in dict.fromkeys(self.names.values())},
            "disk_free_bytes": self.disk_free,
            "memory_there_bytes": self.memory_there,
            "basis": self.basis,
            "fails": self.fails,
            "doubts": self.doubts,
            "stages": [step.to_json() for step in self.steps],
        }

    def write(self, run: Path) -> None:
        """Write ``plan.json`` into a run folder, in one step."""
        write_text(run / PLAN, json.dumps(self.to_json(), indent=1))


def make_plan(
    groups: Sequence[GroupSettings],
    home: Path,
    *,
    means: Means | None = None,
    join: Callable[[], Cluster] | None = None,
    fresh_since: float = 0.0,
    limit: float = math.inf,
) -> Plan | None:
    """Walk groups through and predict what they take.

    Parameters
    ----------
    groups : sequence of GroupSettings
        Their data sets must be there; see `check_fetched`.
    home : Path
        LETHE_HOME.
    means : Means, optional
        Jobs, workers and GPUs of the command; by default one job with one worker.
    join : callable, optional
        Looks at the Ray cluster that the sites are to work on; called only when something is left to be computed.
    fresh_since : float
        Stages older than this (seconds since the epoch) count as absent; 0 uses everything.
    limit : float
        Seconds after which it gives up and returns None.
    """
    means = (means or Means(workers=1)).sharing(groups)
    deadline = time.monotonic() + limit
    measured = read_measured(home / "stages")
    rehearsed: list[Rehearsed] = []
    names: dict[str, str] = {}
    rates: dict[str, Rates] = {}
    stages: dict[tuple[str, str], PlannedStage] = {}
    takers: dict[tuple[str, str], list[str]] = defaultdict(list)
    for group in groups:
        try:
            with naming(group.name):
                found = rehearse(group, home, fresh_since=fresh_since, deadline=deadline)
        except TooLong:
            return None
        rehearsed.append(found)
        names[found.group] = group.name
        rates[found.group] = rates_of(
            group,
            precision=found.precision,
            device=found.device,
            parameters=found.parameters,
            model_bytes=found.model_bytes,
            measured=measured,
        )
        for stage in found.stages:
            stages.setdefault((stage.kind, stage.key), stage)
            takers[stage.kind, stage.key].append(found.group)
    if join is not None and not all(stage.cached for stage in stages.values()):
        means = means.on(join())
    at_work = {
        found.group: means.workers_of(group, found.sites) for found, group in zip(rehearsed, groups, strict=True)
    }
    # a guessed rate is of a GPU that nobody shares
    gpus = 0 if means.cluster else means.gpus
    at_once = {one: min(n, n if rates[one].stages else gpus or n) for one, n in at_work.items()}
    steps = [
        Step(stage, tuple(takers[about]), rates[stage.group].seconds(stage, at_once[stage.group]))
        for about, stage in stages.items()
    ]
    return Plan(
        steps=tuple(steps),
        rehearsed=tuple(rehearsed),
        names=names,
        rates=rates,
        home=home,
        jobs=means.share,
        workers=max(at_work.values(), default=1),
        cores=usable_cores(),
        disk_free=shutil.disk_usage(_nearest(home)).free,
        memory_there=psutil.virtual_memory().total,
        at_work=at_work,
        cluster=means.cluster.address if means.cluster else "",
        labels=labels_of({group_id(group): group.to_run_config() for group in groups}),
    )


def check_plan(plan: Plan, budgets: Mapping[str, Mapping[str, float]] | None = None) -> None:
    """Refuse what cannot fit; raises `BadInput` with the numbers and what to change.

    All that is too much is told of in one line.

    Parameters
    ----------
    plan : Plan
        What is to be done.
    budgets : mapping of str to mapping of str to float
        By experiment: ``hours``, ``disk-gb`` and ``memory-gb``, each at most; what is absent has no limit.
    """
    refusals = list(_beyond_machine(plan))
    for name, budget in (budgets or {}).items():
        refusals += _beyond(plan, name, budget)
    if refusals:
        first, *others = refusals
        keys = [".".join(one.key.split(".")[-2:]) for one in others]  # whose budget it is, is said behind
        parts = [f"{key}={one.value!r}, allowed is {one.allowed}" for key, one in zip(keys, others, strict=True)]
        also = "".join(f"; also too much: {part}" for part in parts)
        remedies = "; ".join(dict.fromkeys(one.remedy for one in refusals))
        raise BadInput(first.key, first.value, f"{first.allowed}{also}", remedies)


def _beyond_machine(plan: Plan) -> Iterator[BadInput]:
    """Make an error for each of disk and memory that the machine has too little of."""
    needed = plan.needed()
    if needed.disk_peak > plan.disk_free:
        yield BadInput(
            "disk",
            Quantity(in_bytes(needed.disk_peak)),
            f"what fits: {in_bytes(plan.disk_free)} are free at {plan.home}",
            f"{_smaller(plan)}, free some, or use another LETHE_HOME",
        )
    if needed.memory > plan.memory_there and not plan.cluster:
        yield BadInput(
            "memory",
            Quantity(in_bytes(needed.memory)),
            f"what fits: this machine has {in_bytes(plan.memory_there)}",
            f"use fewer workers (--workers, now {plan.workers}) or jobs (--jobs, now {plan.jobs})",
        )


def _beyond(plan: Plan, name: str, budget: Mapping[str, float]) -> Iterator[BadInput]:
    """Make an error for each limit of an experiment's budget that it would pass."""
    own = plan.needed(name)
    for key, value, remedy in (
        ("hours", own.wall / 3600, "use fewer methods, requests, seeds or shadows, a smaller cap, or more workers"),
        ("disk-gb", own.disk_peak / 1e9, _smaller(plan)),
        ("memory-gb", own.memory / 1e9, "use fewer workers or jobs"),
    ):
        if key in budget and value > float(budget[key]):
            text = f"at most {budget[key]:g}, the budget of {name}"
            number = Quantity(_beside(value, float(budget[key])))
            yield BadInput(f"{name}.budget.{key}", number, text, f"{remedy}, or raise the budget")


def _beside(value: float, limit: float) -> str:
    """Return a number with as many digits as tell it from its limit, at least two."""
    return next((text for n in range(2, 9) if float(text := f"{value:.{n}f}") > limit), str(value))


def check_fetched(groups: Sequence[GroupSettings], home: Path) -> None:
    """Refuse data sets that are not here: a plan fetches nothing. Raises `BadInput`."""
    from flower_apps.explain import is_fetched
    from partitions.catalogue import DATASETS

    for name, group in {group.dataset: group for group in reversed(groups)}.items():
        nothing_to_fetch = DATASETS.get(name).layout.startswith(NOTHING)
        if not nothing_to_fetch and not is_fetched(name, home):
            allowed = f"a data set that is at {home / 'data'}: a plan counts its records"
            with naming(group.name):
                raise BadInput("dataset", name, allowed, f"fetch it with `lethe data fetch {name}`")


def packed(seconds: Sequence[float], side_by_side: int) -> float:
    """Return how long tasks take that are started longest first, so many at once."""
    ends = [0.0] * max(side_by_side, 1)
    for one in sorted(seconds, reverse=True):
        first = ends.index(min(ends))
        ends[first] += one
    return max(ends)


def in_bytes(size: float) -> str:
    """Return a size: "3.2 GB", "410 MB"."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _smaller(plan: Plan) -> str:
    """Say what of the settings takes the disk."""
    histories = sum(step.stage.kept for step in plan.steps if step.stage.kind == "train")
    shadows = any(step.stage.kind == "shadow" for step in plan.steps)
    kept = "keep less of the histories (history-half: true, history-every: 2)" if histories else "use fewer methods"
    return f"{kept}{', fewer shadows' if shadows else ''}, a smaller model, fewer rounds"


def _passing(stages: Sequence[PlannedStage]) -> int:
    """Return what one run has on the disk for a while: the rounds of a shadow, and those of the stage at work."""
    shadows = [stage.passing for stage in stages if stage.kind == "shadow"]
    others = [stage.passing for stage in stages if stage.kind != "shadow"]
    return max(shadows, default=0) + max(others, default=0)


def _nearest(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def budgets_of(manifest: Manifest, names: Sequence[str]) -> dict[str, Mapping[str, float]]:
    """Return the budget of each experiment that has one."""
    found = {name: manifest.get(name).budget.to_json() for name in names}
    return {name: budget for name, budget in found.items() if budget}
