"""The stages of a group: each found in the cache or computed, keyed by all that determines its result."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from copy import copy
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from clients.catalogue import TASKS
from flower_apps.cases import Case
from flower_apps.cells import GOLD
from flower_apps.identity import Identity
from flower_apps.settings import GroupSettings
from flower_apps.sites import Facts
from flower_apps.stages import Stage, StageWork
from flower_apps.weights import load_weights
from flower_apps.workshop import Workshop
from partitions.errors import RunFailed
from partitions.seeds import derive_seed
from strategies.base import MethodConfig, Outcome, Schedule, UnlearningStrategy
from strategies.history import History, HistoryWriter, shrink
from strategies.recording import RecordingFedAvg
from strategies.recovery import RecoveryHook, run_recovery
from strategies.registry import METHODS
from unlearning.layers import Layer, layers_of
from unlearning.state import State

Hook = Callable[[], RecoveryHook]


class GroupStages:
    """Finds or computes the models of a group.

    Parameters
    ----------
    settings : GroupSettings
        The group.
    workshop : Workshop
        Finds stages, or has them computed and commits them.
    identity : Identity
        What keys are hashed from.
    facts : Facts
        What every site says of itself.
    configs : mapping of str to MethodConfig
        The resolved settings of every method.
    schedule : Schedule
        Of training, unlearning and recovery.
    """

    def __init__(
        self,
        settings: GroupSettings,
        workshop: Workshop,
        identity: Identity,
        facts: Facts,
        configs: Mapping[str, MethodConfig],
        schedule: Schedule,
    ) -> None:
        self._settings, self._workshop, self._identity, self._facts = settings, workshop, identity, facts
        self._configs, self._schedule, self._note = configs, schedule, ""
        self._task = TASKS.get(settings.task)
        self._initial = cache(partial(workshop.start, self._built_state))

    def configured(self, name: str, config: MethodConfig, note: str = "") -> GroupStages:
        """Return the same stages with other settings of a method; `note` ends the labels of its progress."""
        other = copy(self)
        other._configs, other._note = {**self._configs, name: config}, note
        return other

    def original(self) -> Stage:
        """Return the original: trained on everything, or imported; raises `RunFailed` when it diverged."""
        settings, parts = self._settings, self._identity.training
        if settings.original:
            path = Path(settings.original)
            imported = {**parts, "original": hashlib.sha256(path.read_bytes()).hexdigest()}
            weights = Outcome(state=load_weights(path, like=self._initial(settings.train_seed)))
            return self._workshop.stage("train", "original", imported, lambda _: weights, needs_sites=False)

        def compute(work: StageWork) -> Outcome:
            history = HistoryWriter(work.history)
            outcome = self._trained(settings.train_seed, list(self._facts), {"records": "all"}, history, "original")
            self._thin(work)
            return outcome

        parts = {**parts, **self._thinned}
        return _usable(self._workshop.stage("train", "original", parts, compute, keep_history=True), "training")

    def retrained(self, case: Case, seed: int | None = None) -> Stage:
        """Return the model retrained without what a case means.

        Without a seed it is gold, with the train seed, and `RunFailed` is raised when that diverged; one with another
        seed may have diverged.
        """
        own = self._settings.train_seed if seed is None else seed
        parts = {**self._identity.trained_with(own), GOLD: True, **self._identity.request(case.plan, case.selection)}
        label = f"{GOLD} {case.plan.text}" + ("" if seed is None else f", seed {own}")

        def compute(work: StageWork) -> Outcome:
            config = METHODS.get(GOLD).resolve_config()
            return self._strategy(GOLD, case, own, config, None, self._rounds(work), label).run(self._initial(own))

        found = self._stage("retrain", label, parts, compute)
        return _usable(found, "retraining") if seed is None else found

    def unlearned(
        self, name: str, start: Stage, original: Stage, case: Case, rounds: Callable[[], Stage] | None = None
    ) -> Stage:
        """Return what a method makes of `start`.

        Parameters
        ----------
        name : str
            The method.
        start, original : Stage
            The model to forget with, and the training that led to it.
        case : Case
            What to forget.
        rounds : callable, optional
            Finds the stage with that training's rounds, where it is not `original`; called only when they are needed.
        """
        config, label = self._configs[name], f"{name} {case.plan.text}{self._note}"
        parts = {
            **self._identity.training,
            **self._identity.request(case.plan, case.selection),
            "method": name,
            "version": METHODS.get(name).version,
            "config": config.model_dump(mode="json"),
            "start": start.key,
            "original": original.key,
            "unlearn-seed": case.seed,
            "unlearn-epochs": self._settings.unlearn_epochs,
        }

        if rounds is not None and self.replays(name):
            parts |= self._thinned  # an original's own key has it

        def compute(work: StageWork) -> Outcome:
            history = self._history(name, original, rounds)
            strategy = self._strategy(name, case, case.seed, config, history, self._rounds(work), label)
            return strategy.run(start.state)

        return self._stage("unlearn", label, parts, compute)

    def put_through(
        self,
        name: str,
        start: Stage,
        original: Stage,
        case: Case,
        rounds: Callable[[], Stage] | None = None,
        *,
        recover: bool = True,
    ) -> dict[str, Stage | None]:
        """Return both checkpoints of a method; arguments as in `unlearned`.

        There is no recovered model after a diverged unlearning step, and where `recover` is false.
        """
        unlearned = self.unlearned(name, start, original, case, rounds)
        if unlearned.status != "ok" or not recover:
            return {"unlearned": unlearned, "recovered": None}
        hook = self.hook(name, start, unlearned, original, case, rounds)
        return {"unlearned": unlearned, "recovered": self.recovered(name, unlearned, case, hook)}

    def recovered(self, name: str, parent: Stage, case: Case, hook: Hook | None, seed: int | None = None) -> Stage:
        """Return `parent` after the recovery rounds; `hook` makes what the method changes about them.

        `seed` takes the place of the case's unlearning seed.
        """
        settings, own = self._settings, case.seed if seed is None else seed
        parts = {
            **self._identity.training,
            **self._identity.request(case.plan, case.selection),
            "parent": parent.key,
            "unlearn-seed": own,
            "recovery-rounds": settings.recovery_rounds,
            "recovery-epochs": settings.recovery_epochs,
            "recovery-max-norm": settings.recovery_max_norm,
        }
        label = f"recover {name} {case.plan.text}{self._note}" + ("" if seed is None else f", seed {own}")

        def compute(work: StageWork) -> Outcome:
            return run_recovery(
                self._workshop.online,
                self._schedule,
                case.plan,
                parent.state,
                seed=own,
                work=self._rounds(work),
                hook=hook() if hook else None,
                label=label,
            )

        return self._stage("recover", label, parts, compute)

    def hook(
        self,
        name: str,
        start: Stage,
        unlearned: Stage,
        original: Stage,
        case: Case,
        rounds: Callable[[], Stage] | None = None,
    ) -> Hook:
        """Return what makes a method's changes to its recovery; arguments as in `unlearned`."""

        def make() -> RecoveryHook:
            history = self._history(name, original, rounds)
            made = self._strategy(name, case, case.seed, self._configs[name], history, None)
            return made.recovery_hook(start.state, unlearned.state)

        return make

    def replays(self, name: str) -> bool:
        """Tell whether a method looks at the recorded rounds of the training that it starts from."""
        needs = METHODS.get(name).needs_of(self._configs[name])
        return needs.history or needs.history_helps

    def shadow(self, case: Case, seed: int, *, rounds_wanted: bool) -> Stage:
        """Return a shadow: trained on what a shadow's case retains and forgets.

        Parameters
        ----------
        case : Case
            Of the shadow (``shadow:3/8@client:patient-1``).
        seed : int
            Its train seed.
        rounds_wanted : bool
            Whether `shadow_rounds` will be asked for as well: then one training makes both.
        """

        def compute(work: StageWork) -> Outcome:
            if not rounds_wanted:
                return self._shadow_trained(case, seed, self._rounds(work))
            kept = self.shadow_rounds(case, seed)
            return Outcome(kept.state, "ok" if kept.status == "ok" else "diverged", kept.reason)

        return self._stage("shadow", case.plan.text, self._shadow_parts(case, seed), compute)

    def shadow_rounds(self, case: Case, seed: int) -> Stage:
        """Return a shadow's training with its rounds, for methods that replay them; to be let go afterwards."""

        def compute(work: StageWork) -> Outcome:
            outcome = self._shadow_trained(case, seed, HistoryWriter(work.history))
            self._thin(work)
            return outcome

        parts = self._shadow_parts(case, seed, rounds=True)
        kept = self._settings.keep_histories
        return self._workshop.stage("shadow", case.plan.text, parts, compute, keep_history=True, shared=kept)

    def alone_with_shadow(self, case: Case, seed: int) -> AbstractContextManager[None]:
        """Keep other runs from a shadow until its rounds are let go: they wait, and find what was made of it."""
        return self._workshop.alone("shadow", self._shadow_parts(case, seed))

    def let_shadow_rounds_go(self, case: Case, seed: int) -> None:
        """Remove what `shadow_rounds` keeps, unless the run is to keep all rounds; hundreds of MB a shadow."""
        if not self._settings.keep_histories:
            self._workshop.let_go("shadow", self._shadow_parts(case, seed, rounds=True))

    def _shadow_parts(self, case: Case, seed: int, *, rounds: bool = False) -> dict[str, Any]:
        request = self._identity.request(case.plan, case.selection)
        parts = {**self._identity.trained_with(seed), "shadow": True, **request}
        kept = "kept" if self._settings.keep_histories else True  # nobody else lets go what a run is to keep
        return {**parts, "rounds": kept, **self._thinned} if rounds else parts

    def _shadow_trained(self, case: Case, seed: int, history: HistoryWriter) -> Outcome:
        plan = case.plan
        config = {"records": "both", "request": plan.text, "request-seed": plan.seed}
        participants = [site for site, count in plan.counts.items() if count.num_forget + count.num_retain]
        return self._trained(seed, participants, config, history, plan.text)

    # ------------------------------------------------------------------ what the stages share
    @property
    def _thinned(self) -> dict[str, Any]:
        """What of a training's rounds is not kept whole, as part of its identity; empty when all is kept."""
        settings = self._settings
        whole = settings.history_every == 1 and not settings.history_half
        return {} if whole else {"history": [settings.history_every, settings.history_half]}

    def _thin(self, work: StageWork) -> None:
        if self._thinned:
            shrink(work.history, keep_every=self._settings.history_every, half=self._settings.history_half)

    def _trained(
        self, seed: int, participants: list[str], config: Mapping[str, Any], history: HistoryWriter, label: str
    ) -> Outcome:
        strategy = RecordingFedAvg(
            self._workshop.online,
            self._schedule,
            seed=seed,
            participants=participants,
            message_config=config,
            history=history,
            label=label,
        )
        return strategy.run(self._initial(seed), self._settings.rounds)

    def _history(self, name: str, original: Stage, rounds: Callable[[], Stage] | None) -> History | None:
        if rounds is not None and self.replays(name):
            original = rounds()
        return self._workshop.history(original)

    def _stage(self, kind: str, label: str, parts: Mapping[str, Any], compute: Callable[[StageWork], Outcome]) -> Stage:
        return self._workshop.stage(kind, label, parts, compute, keep_history=self._settings.keep_histories)

    def _strategy(
        self,
        name: str,
        case: Case,
        seed: int,
        config: MethodConfig,
        history: History | None,
        work: HistoryWriter | None,
        label: str = "",
    ) -> UnlearningStrategy:
        return METHODS.get(name)(
            self._workshop.online,
            self._schedule,
            case.plan,
            seed=seed,
            config=config,
            history=history,
            work=work,
            layers=self._layers,
            label=label,
        )

    def _rounds(self, work: StageWork) -> HistoryWriter:
        """Keep what a resume needs of a stage's rounds, and the sites' updates only where the rounds are kept."""
        return HistoryWriter(work.history, keep_updates=self._settings.keep_histories)

    def _built_state(self, seed: int) -> State:
        """Return the initial weights: the same for the original and every retrained model of a train seed."""
        torch.manual_seed(derive_seed(seed, "init"))
        module = self._built()
        return State.from_module(module.double() if self._settings.precision == "64-true" else module)

    @cached_property
    def _layers(self) -> tuple[Layer, ...]:
        """The model's layers in the order in which it runs them, found on a black record."""
        shape = next(iter(self._facts.values()))["data-shape"]
        return layers_of(self._built(), self._task.to_inputs(np.zeros((1, *shape), dtype=np.uint8)))

    def _built(self) -> nn.Module:
        described = next(iter(self._facts.values()))
        return self._task.build(self._settings.model, tuple(described["data-shape"]), described["num-classes"])


def _usable(stage: Stage, what: str) -> Stage:
    """Return a stage that every result stands on; raises `RunFailed` when it diverged."""
    if stage.status != "ok":
        raise RunFailed(f"{what} diverged: {stage.reason}; lower lr")
    return stage
