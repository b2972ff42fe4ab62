"""A group walked through without computing: which stages it takes, which are there, and what work the rest means."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, cast

import pandas as pd
import torch
from flwr.serverapp import Grid

from clients.catalogue import TASKS
from clients.challenge import design_table
from clients.site import Site, open_site, reference_view
from evaluation.submission import Submission
from flower_apps.depot import depot_url
from flower_apps.depot_plan import StagesThere
from flower_apps.executor import GroupExecutor
from flower_apps.planned import PLANNED, PlannedStage, Rehearsed, Work, counted
from flower_apps.runs import RunFolder, group_id
from flower_apps.settings import GroupSettings
from flower_apps.sites import Facts, LocalSites, agreed, site_settings
from flower_apps.stages import Stage, StageStore, StageWork, stage_key
from flower_apps.workshop import Workshop
from partitions.errors import BadInput, RunFailed
from strategies.base import Outcome
from strategies.events import EventSink
from strategies.federation import Federation
from strategies.history import History, RoundRecord, SiteRecord, predict_bytes
from strategies.roster import Roster
from strategies.rounds import Ask
from strategies.wire import SiteReply
from unlearning.state import State, Tensors, Update, update_of

RECORD_BYTES = 45.0
"""Of one record in a score table on the disk, about."""


class TooLong(Exception):
    """A rehearsal went on after its deadline."""


def rehearse(settings: GroupSettings, home: Path, *, fresh_since: float = 0.0, deadline: float = math.inf) -> Rehearsed:
    """Walk one group through as `GroupExecutor` does.

    Parameters
    ----------
    settings : GroupSettings
        The group. Its data set must be there.
    home : Path
        ``LETHE_HOME``; nothing is written to it.
    fresh_since : float
        Stages older than this (seconds since the epoch) count as absent; 0 uses everything.
    deadline : float
        On the monotonic clock.

    Raises
    ------
    BadInput
        For what the run would refuse: an impossible split, a request that means nobody.
    TooLong
        At the first stage after the deadline.
    """
    sites = LocalSites(settings, home)
    facts = sites.describe()
    precision, device = agreed(facts, "precision"), agreed(facts, "device-kind")
    federation = RehearsedFederation(settings, home, facts)
    url = depot_url(settings)
    shared = StagesThere(url, deadline) if url else None
    workshop = RehearsedWorkshop(settings, StageStore(home / "stages", fresh_since), federation, shared, fresh_since)
    workshop.deadline = deadline
    evaluator = _Counting()
    fails = ""
    walked = GroupExecutor(settings, home, _NoFolder(home), sites, None, EventSink(None), evaluator, workshop=workshop)
    try:
        walked.execute()
    except RunFailed as error:
        fails = str(error)
    stages = tuple(workshop.drawn.values())
    return Rehearsed(
        group=group_id(settings),
        stages=stages,
        original=next((stage.key for stage in stages if stage.kind == "train"), ""),
        submissions=evaluator.count,
        parameters=sum(t.numel() for t in federation.shape.params.values()),
        model_bytes=_size(federation.shape),
        sites=len(facts),
        threads=settings.threads,
        network=f"{settings.model} in {precision} on {device}",
        precision=precision,
        device=device,
        held_models=8 + 2 * settings.shadows,
        fails=fails,
        doubts=tuple(dict.fromkeys([*federation.doubts, *([shared.problem] if shared and shared.problem else [])])),
    )


class RehearsedFederation(Federation):
    """Sites that are asked for nothing but their numbers: every round is counted, and none is run.

    Parameters
    ----------
    settings : GroupSettings
        The group.
    home : Path
        ``LETHE_HOME``.
    facts : Facts
        What every site says of itself.
    """

    def __init__(self, settings: GroupSettings, home: Path, facts: Facts) -> None:
        roster = Roster({name: number for number, name in enumerate(facts)}, facts)
        super().__init__(cast(Grid, None), roster, EventSink(None), failure_policy=settings.failure_policy)
        self._site_settings = site_settings(settings, home)
        self._settings = settings
        self._counted: list[list[Mapping[str, int]]] = []
        self._made: dict[int, tuple[State, bool]] = {}
        self._alike: dict[tuple[tuple[str, int], ...], Mapping[str, int]] = {}
        self.doubts: list[str] = []
        self.meant = cache(self._meant)
        self.challenge = cache(self._challenge)

    @contextmanager
    def counting(self) -> Iterator[list[Mapping[str, int]]]:
        """Collect the rounds that are rehearsed inside, those of stages within a stage apart."""
        rounds: list[Mapping[str, int]] = []
        self._counted.append(rounds)
        try:
            yield rounds
        finally:
            self._counted.pop()

    def rehearse(self, ask_for: Callable[[int], Ask], state: State, rounds: int) -> State:
        """Count what the rounds ask of whom; see `Federation.rehearse`."""
        asked: Mapping[str, int] = {}
        for round_ in range(1, rounds + 1):
            try:
                asked = self._examples(ask_for(round_))
            except (RunFailed, BadInput):
                raise
            except Exception as error:
                asked = asked or {name: self._all(name) * self._settings.local_epochs for name in self.sites}
                self.doubts.append(f"a round that cannot be planned ({error!r}) is taken to be as the one before")
            self._counted[-1].append(self._alike.setdefault(tuple(asked.items()), asked))
        return self.other(state) if rounds else state

    def ask(self, category: Any, op: str, sites: Sequence[str], **more: Any) -> list[SiteReply]:
        """Answer which records are challenged; nothing else can be asked without a model."""
        if op != "challenge":
            raise RuntimeError(f"{category}.{op} cannot be planned")
        config = more["config"]
        about = str(config["request"]), int(config["request-seed"]), int(config["shadows"])
        return [SiteReply(site, tables={"challenge": self.challenge(site, *about)}) for site in sorted(set(sites))]

    @cached_property
    def shape(self) -> State:
        """A model of the network."""
        described = next(iter(self.roster.described.values()))
        settings = self._settings
        about = settings.task, settings.model, tuple(described["data-shape"]), described["num-classes"]
        return _built(*about, settings.precision == "64-true")

    @cached_property
    def _stand_ins(self) -> tuple[State, State]:
        """Two models with the network's names and ranks, one entry a tensor, that differ in every parameter."""

        def filled(tensors: Tensors, value: float) -> Tensors:
            return {name: torch.full((1,) * t.dim(), value, dtype=t.dtype) for name, t in tensors.items()}

        shape = self.shape
        buffers = filled(shape.float_buffers, 1.0), filled(shape.int_buffers, 0)
        return State(filled(shape.params, 1.0), *buffers), State(filled(shape.params, 2.0), *buffers)

    def model(self, *, moved: bool = False) -> State:
        """Return a stand-in that is nobody else's, so that a stage that leaves its model alone can be told."""
        made = copy.copy(self._stand_ins[moved])
        self._made[id(made)] = (made, moved)
        return made

    def other(self, state: State) -> State:
        """Return a stand-in that differs from `state`: training changes every parameter."""
        moved = self._made.get(id(state), (state, False))[1]
        return self.model(moved=not moved)

    def site(self, name: str) -> Site:
        """Return a site, opened in this process."""
        return open_site(self._site_settings, None, name)

    def made(self, state: State) -> bool:
        """Tell whether a model is one of the stand-ins."""
        return id(state) in self._made

    @cached_property
    def reference(self) -> int:
        """Records of the reference set."""
        found = reference_view(self._site_settings)
        return 0 if found is None else sum(map(len, found.views))

    def _meant(self, name: str, which: Any, request: str, seed: int) -> int:
        return len(self.site(name).records(which, request, seed))

    def _all(self, name: str) -> int:
        return int(self.roster.described[name]["num-train"])

    def _examples(self, ask: Ask) -> dict[str, int]:
        config = ask.config
        which, request = str(config.get("records", "all")), str(config.get("request", ""))
        seed, epochs = int(str(config.get("request-seed", 0))), int(str(config.get("epochs", 1)))
        return {site: epochs * self.meant(site, which, request, seed) for site in sorted(ask.sites)}

    def _challenge(self, name: str, request: str, seed: int, shadows: int) -> pd.DataFrame:
        return design_table(self.site(name), request, seed, shadows)[0].assign(phi=0.0)


class RehearsedWorkshop(Workshop):
    """Notes every stage that is asked for, and computes none.

    Parameters
    ----------
    settings : GroupSettings
        The group.
    store : StageStore
        The cache, which is only read.
    federation : RehearsedFederation
        Counts rounds.
    shared : StagesThere, optional
        What a depot has.
    since : float
        Stages of the depot older than this (seconds since the epoch) count as absent.
    """

    deadline = math.inf

    def __init__(
        self,
        settings: GroupSettings,
        store: StageStore,
        federation: RehearsedFederation,
        shared: StagesThere | None = None,
        since: float = 0.0,
    ) -> None:
        super().__init__(settings, store, federation, EventSink(None))
        self._shared, self._since = shared, since
        self._rehearsed, self._group = federation, group_id(settings)
        self._models: dict[tuple[str, str], Stage] = {}
        self._hashes: dict[int, str] = {}
        self._histories: dict[tuple[str, str], History] = {}
        self.drawn: dict[tuple[str, str], PlannedStage] = {}

    @property
    def is_rehearsal(self) -> bool:
        """See `Workshop.is_rehearsal`."""
        return True

    def stage(
        self,
        kind: str,
        label: str,
        parts: Mapping[str, Any],
        compute: Callable[[StageWork], Outcome],
        *,
        keep_history: bool = False,
        needs_sites: bool = True,
        shared: bool = True,
    ) -> Stage:
        """Note a model; see `Workshop.stage`."""
        key = _key(parts)
        if (kind, key) in self._models:
            return self._models[kind, key]
        folder = self._store.folder(kind, key)
        found, comes = self._there(kind, key, shared=shared)
        if found is not None:
            work = Work()
            if comes and keep_history:  # whose rounds are not here to be read
                with self._rehearsed.counting() as rounds:
                    compute(StageWork(folder, folder, kind, key, parts))
                work = Work(tuple(rounds), len(rounds))
            drawn = PlannedStage(kind, label, key, self._group, cached=True, work=work, kept=comes)
            record, state = dict(found), self._rehearsed.model()
        else:
            with self._rehearsed.counting() as rounds:
                outcome = compute(StageWork(folder, folder, kind, key, parts))
            work = Work(tuple(rounds), self._committed(kind, key))
            kept, passing = self._bytes(kind, work, keep_history)
            method = str(parts.get("method", ""))
            drawn = PlannedStage(kind, label, key, self._group, False, method, work, kept, passing)
            state = outcome.state
            record = {"kind": kind, "key": key, "status": outcome.status, "reason": outcome.reason, "cost": {}}
            record |= {"conditions": {}, "sha256": self._hash(state, key)}
        self.drawn[kind, key] = drawn
        self._hashes[id(state)] = str(record["sha256"])
        self._models[kind, key] = _Sketch(folder, record, state)
        return self._models[kind, key]

    def tables(
        self, kind: str, label: str, parts: Mapping[str, Any], ask: Callable[[], list[dict[str, pd.DataFrame]]]
    ) -> dict[str, pd.DataFrame]:
        """Note a stage that is tables; only which records are challenged is told, on which it hangs what is trained."""
        tables: dict[str, pd.DataFrame] = _Blank()
        if "challenge" in parts:
            tables["challenge"] = pd.concat([piece["challenge"] for piece in ask()], ignore_index=True)
        key = _key(parts)
        if (kind, key) not in self.drawn:
            found, comes = self._there(kind, key)
            cached = found is not None
            work = Work() if cached else self._scored(parts, tables)
            size = comes if cached else int(work.records * RECORD_BYTES)
            self.drawn[kind, key] = PlannedStage(kind, label, key, self._group, cached, "", work, size)
        return tables

    def start(self, build: Callable[[int], State], seed: int) -> State:
        """Return a stand-in for the initial weights, but what an imported model must have the shape of."""
        return build(seed) if self._settings.original else self._rehearsed.model()

    def history(self, stage: Stage) -> History | None:
        """Return the rounds of a stage, or what they will be."""
        about = str(stage.record["kind"]), stage.key
        work = self.drawn[about].work
        if not work.rounds:
            return super().history(stage)
        if about not in self._histories:
            model, moved = self._rehearsed.model(), self._rehearsed.model(moved=True)
            update = update_of(moved, self._rehearsed.model())
            self._histories[about] = _PlannedHistory(stage.folder, work.rounds, model, update, self._settings)
        return self._histories[about]

    def find(self, kind: str, parts: Mapping[str, Any]) -> Stage | None:
        """Find nothing: what a stage may begin with does not change what it is."""
        return None

    def alone(self, kind: str, parts: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Keep nobody from anything."""
        return nullcontext()

    def let_go(self, kind: str, parts: Mapping[str, Any]) -> None:
        """Remove nothing."""

    def _there(self, kind: str, key: str, *, shared: bool = True) -> tuple[Mapping[str, Any] | None, int]:
        """Return the record of a stage of the cache or the depot, and the bytes that it brings from the depot."""
        if time.monotonic() > self.deadline:
            raise TooLong
        if key.startswith(PLANNED):
            return None, 0
        if (found := self._store.find(kind, key)) is not None:
            return found.record, 0
        given = self._shared.find(kind, key) if self._shared is not None and shared else None
        return given if given is not None and float(given[0]["created"]) >= self._since else (None, 0)

    def _hash(self, state: State, key: str) -> str:
        """Return the hash of a model: its own where a stage leaves it alone or loads it, else a stand-in."""
        if id(state) in self._hashes:
            return self._hashes[id(state)]
        return PLANNED + key.removeprefix(PLANNED) if self._rehearsed.made(state) else state.sha256()

    def _committed(self, kind: str, key: str) -> int:
        begun = None if key.startswith(PLANNED) else self._store.begun(kind, key)
        return 0 if begun is None else History(begun / "history").last_complete_round

    def _bytes(self, kind: str, work: Work, keep_history: bool) -> tuple[int, int]:
        """Return what a model takes on the disk for good, and what it takes beyond that while it is computed."""
        settings, state = self._settings, self._rehearsed.shape
        model = _size(state)
        whole = kind == "train" or (kind == "shadow" and keep_history) or settings.keep_histories
        recorded = whole and kind != "relearn"
        rounds = [(len(asked) if recorded else 0, times) for asked, times in counted(work.rounds)]
        history = sum(times * (predict_bytes(state, sites, 1) - (0 if sites else model)) for sites, times in rounds)
        if not keep_history:
            return model, history
        if kind == "shadow" and not settings.keep_histories:
            return 0, model + history
        kept = history
        if settings.history_every > 1 or settings.history_half:
            bare = predict_bytes(state, 0, 1)
            left = [(len(asked), times) for asked, times in counted(work.rounds[:: settings.history_every])]
            updates = sum(times * (predict_bytes(state, sites, 1) - bare) for sites, times in left if recorded)
            kept = bare * len(work.rounds) + updates // (2 if settings.history_half else 1)
        return model + kept, history - kept

    def _scored(self, parts: Mapping[str, Any], tables: Mapping[str, pd.DataFrame]) -> Work:
        """Return how many records are scored in how many messages."""
        asked, settings = self._rehearsed, self._settings
        described = asked.roster.described.values()
        if "challenge" in parts:
            table = tables["challenge"]
            return Work(records=len(table), scored_at=table["site"].nunique())
        held_out = sum(int(found["num-holdout"]) for found in described) + asked.reference
        everyone = sum(int(found["num-train"]) for found in described) + held_out
        if "features" in parts:
            return Work(records=min(everyone, 2 * settings.features * len(asked.sites)), scored_at=len(asked.sites))
        times = settings.relearn_epochs + 1 if "relearned" in parts else 1
        if "backdoor" in parts:
            return Work(records=2 * held_out * times, scored_at=len(asked.sites) * times)
        if "relearned" in parts:
            seed = settings.train_seed if settings.request_seed < 0 else settings.request_seed
            meant = [asked.meant(site, "forget", str(parts["request"]), seed) for site in asked.sites]
            return Work(records=sum(meant) * times, scored_at=sum(map(bool, meant)) * times)
        return Work(records=everyone * (2 if "other" in parts else 1), scored_at=len(asked.sites))


@dataclass(frozen=True)
class _Sketch(Stage):
    """A stage whose model is a stand-in."""

    model: State

    @cached_property
    def state(self) -> State:
        """The stand-in."""
        return self.model


class _PlannedHistory(History):
    """The rounds that a training will have recorded."""

    def __init__(
        self, folder: Path, rounds: Sequence[Mapping[str, int]], model: State, update: Update, settings: GroupSettings
    ) -> None:
        super().__init__(folder)
        self._model, self._update, self._every = model, update, settings.history_every
        sites = {id(asked): _site_records(asked) for asked, _ in counted(rounds)}
        for number, asked in enumerate(rounds, start=1):
            self._records[number] = RoundRecord(number, settings.lr, 0.0, sites=sites[id(asked)])
        self.last_complete_round = len(rounds)

    def before(self, round_: int) -> State:
        """Return the stand-in."""
        return self._model

    def after(self, round_: int) -> State:
        """Return the stand-in."""
        return self._model

    def update(self, round_: int, site: str) -> Update:
        """Return the same update for every site."""
        return self._update

    def has_updates(self, round_: int) -> bool:
        """Tell whether the settings keep them."""
        return (round_ - 1) % self._every == 0

    def server(self, round_: int, kind: str) -> Tensors:
        """Return nothing."""
        return {}


def _site_records(asked: Mapping[str, int]) -> dict[str, SiteRecord]:
    """Return what a round will record of the sites that have something to contribute."""
    total = sum(asked.values())
    return {
        site: SiteRecord(weight=count / total, num_examples=count, examples=count)
        for site, count in asked.items()
        if count
    }


class _Blank(dict[str, pd.DataFrame]):
    """Tables that nobody has asked for yet: each is empty."""

    def __missing__(self, name: str) -> pd.DataFrame:
        return pd.DataFrame()


class _NoFolder(RunFolder):
    """A run that writes nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add_cell(self, cell: Mapping[str, Any]) -> None:
        """Forget it."""


class _Counting:
    """Counts what an evaluator would be handed."""

    def __init__(self) -> None:
        self.count = 0

    def submit(self, submission: Submission) -> None:
        """Count."""
        self.count += 1

    def finish(self) -> None:
        """Have nothing left to do."""


@lru_cache(maxsize=4)
def _built(task: str, model: str, shape: tuple[int, ...], classes: int, double: bool) -> State:
    module = TASKS.get(task).build(model, shape, classes)
    return State.from_module(module.double() if double else module)


def _size(state: State) -> int:
    groups = (state.params, state.float_buffers, state.int_buffers)
    return sum(tensor.nbytes for group in groups for tensor in group.values())


def _key(parts: Mapping[str, Any]) -> str:
    """Return a stage's key, or a stand-in where a part of it is one."""
    planned = any(isinstance(part, str) and part.startswith(PLANNED) for part in parts.values())
    return PLANNED + stage_key(parts) if planned else stage_key(parts)
