"""Where stages are found or made: the cache and, when there is one, the federation that computes what it lacks."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pandas as pd

from flower_apps.settings import GroupSettings
from flower_apps.stages import Stage, StageStore, StageWork, stage_key
from strategies.base import Outcome
from strategies.events import EventSink
from strategies.federation import Federation
from strategies.history import History
from unlearning.state import State


class MissingStage(LookupError):
    """The cache lacks a stage and there is no federation to compute it."""


class Workshop:
    """Finds stages, or has them computed and commits them.

    Parameters
    ----------
    settings : GroupSettings
        Workers, threads and jobs are kept with every timing.
    store : StageStore
        The cache.
    federation : Federation or None
        None only reads the cache; the first missing stage raises `MissingStage`.
    events : EventSink
        Where progress goes.
    used : callable, optional
        Gets kind and key of every stage before it is looked for.
    """

    def __init__(
        self,
        settings: GroupSettings,
        store: StageStore,
        federation: Federation | None,
        events: EventSink,
        used: Callable[[str, str], None] = lambda kind, key: None,
    ) -> None:
        self._settings, self._store, self._federation, self._events = settings, store, federation, events
        self._used = used
        self._told: set[tuple[str, str]] = set()

    @property
    def is_rehearsal(self) -> bool:
        """Whether stages are only counted: what comes out of them is not known."""
        return False

    @property
    def online(self) -> Federation:
        """The federation; raises `MissingStage` when there is none."""
        if self._federation is None:
            raise MissingStage("no federation to ask")
        return self._federation

    def refusing(self, op: str) -> list[str]:
        """Return the sites that say they refuse an operation, sorted; without a federation, none is known to."""
        if self._federation is None:
            return []
        described = self._federation.roster.described
        return [site for site, found in described.items() if op not in json.loads(str(found["allows"]))]

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
        """Find a stage, or compute and commit it.

        Parameters
        ----------
        kind, label : str
            Of the stage, and how progress names it.
        parts : mapping
            What determines its result.
        compute : callable
            Makes it, given where to keep its rounds.
        keep_history : bool
            Keep the rounds once it is complete.
        needs_sites : bool
            Whether a federation is needed to compute it.
        shared : bool
            Whether a depot is to have it; not one that is let go after use.
        """
        if self._federation is None and needs_sites:
            return self._found(kind, label, parts)
        self._use(kind, stage_key(parts))
        with self._store.claim(kind, parts, waiting=self._tell, shared=shared) as found:
            if isinstance(found, Stage):
                self._tell_cached(kind, label, found.key)
                return found
            self._events.emit("claimed", stage=kind, name=label, key=stage_key(parts))
            outcome = compute(found)
            return found.commit(
                state=outcome.state,
                status=outcome.status,
                reason=outcome.reason,
                cost=outcome.cost.to_dict(),
                conditions=self._conditions(),
                keep_history=keep_history,
                rounds=outcome.rounds,
                notes=list(outcome.notes),
                dataset=self._settings.dataset,
            )

    def start(self, build: Callable[[int], State], seed: int) -> State:
        """Return the initial weights of a seed, as `build` makes them."""
        return build(seed)

    def history(self, stage: Stage) -> History | None:
        """Return the recorded rounds of a stage; None when none were kept."""
        return History(stage.history) if stage.history.exists() else None

    def find(self, kind: str, parts: Mapping[str, Any]) -> Stage | None:
        """Return a complete stage; None when the cache lacks it."""
        key = stage_key(parts)
        if self._store.find(kind, key) is not None:
            self._use(kind, key)
        return self._store.find(kind, key)

    def tables(
        self, kind: str, label: str, parts: Mapping[str, Any], ask: Callable[[], list[dict[str, pd.DataFrame]]]
    ) -> dict[str, pd.DataFrame]:
        """Find a stage that is tables of records, or ask for their pieces and commit them joined."""
        if self._federation is None:
            return _read(self._found(kind, label, parts))
        self._use(kind, stage_key(parts))
        with self._store.claim(kind, parts, waiting=self._tell) as found:
            if isinstance(found, Stage):
                if (kind, found.key) not in self._told:  # scores are read several times
                    self._tell_cached(kind, label, found.key)
                return _read(found)
            self._events.emit("stage-started", stage=kind, label=label, rounds=1, round=0)
            started = time.monotonic()
            pieces = ask()
            tables = {name: pd.concat([piece[name] for piece in pieces], ignore_index=True) for name in pieces[0]}
            for name, table in tables.items():
                table.to_parquet(found.folder / f"{name}.parquet", index=False)
            cost = {"seconds": time.monotonic() - started, "records": max(map(len, tables.values()))}
            found.commit(cost=cost, conditions=self._conditions(), dataset=self._settings.dataset)
            self._events.emit("stage-finished", stage=kind, label=label, status="ok", key=stage_key(parts))
            self._told.add((kind, stage_key(parts)))
            return tables

    def alone(self, kind: str, parts: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Keep other runs from what is done under the same parts; without a federation nothing is done."""
        return nullcontext() if self._federation is None else self._store.alone(kind, parts, self._tell)

    def let_go(self, kind: str, parts: Mapping[str, Any]) -> None:
        """Take a stage out of the cache; whoever needs it again computes it again. Without a federation it stays."""
        stage = self._store.here(kind, stage_key(parts))
        if self._federation is not None and stage is not None:
            self._store.discard(stage)

    def _found(self, kind: str, label: str, parts: Mapping[str, Any]) -> Stage:
        self._use(kind, stage_key(parts))
        stage = self._store.find(kind, stage_key(parts))
        if stage is None:
            raise MissingStage(label)
        self._tell_cached(kind, label, stage.key)
        return stage

    def _use(self, kind: str, key: str) -> None:
        with self._store.pinning():
            self._used(kind, key)

    def _tell_cached(self, kind: str, label: str, key: str) -> None:
        self._told.add((kind, key))
        self._events.emit("stage-cached", stage=kind, label=label, key=key)

    def _tell(self, text: str) -> None:
        self._events.emit("note", text=text)

    def _conditions(self) -> dict[str, Any]:
        """What a timing depends on beside the work: two timings are compared only where these agree."""
        settings = self._settings
        host = socket.gethostname()
        return {"host": host, "workers": settings.workers, "threads": settings.threads, "jobs": settings.jobs}


def _read(stage: Stage) -> dict[str, pd.DataFrame]:
    return {path.stem: pd.read_parquet(path) for path in sorted(stage.folder.glob("*.parquet"))}
