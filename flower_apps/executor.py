"""Executes one group of cells: trains, forgets with every method, retrains, recovers, and has every model scored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from clients.catalogue import TASKS
from evaluation.evaluator import Evaluator, InProcess
from flower_apps.cases import Arm, Case
from flower_apps.identity import Identity
from flower_apps.preflight import facts_given
from flower_apps.runs import RunFolder
from flower_apps.scoring import Scorer
from flower_apps.settings import GroupSettings
from flower_apps.sites import Facts, Sites, check_backdoor, check_sites, request_plan
from flower_apps.stages import Stage, StageStore, StageWork
from flower_apps.weights import load_weights
from flower_apps.workshop import Workshop
from partitions.errors import BadInput, RunFailed
from partitions.requests import parse_request
from partitions.seeds import derive_seed
from strategies.base import MethodConfig, Outcome, Schedule, UnlearningStrategy
from strategies.events import EventSink
from strategies.federation import Federation
from strategies.history import History, HistoryWriter, shrink
from strategies.recording import RecordingFedAvg
from strategies.recovery import RecoveryHook, run_recovery
from strategies.registry import METHODS
from unlearning.layers import Layer, layers_of
from unlearning.state import State

CONTROL = "fine-tuning"
"""The arm every table has: recovery alone, without a forgetting step (METHODS 5)."""
GOLD = "retrain"


class GroupExecutor:
    """One group of cells: the cells that share an original model.

    Parameters
    ----------
    settings : GroupSettings
        The group.
    home : Path
        ``LETHE_HOME``.
    run : RunFolder
        Where results and the record of cells go.
    sites : Sites
        How to ask the sites.
    federation : Federation or None
        None only reads the cache; the first missing stage raises `MissingStage`.
    events : EventSink
        Where progress goes.
    evaluator : Evaluator, optional
        Who scores; by default this process.
    """

    def __init__(
        self,
        settings: GroupSettings,
        home: Path,
        run: RunFolder,
        sites: Sites,
        federation: Federation | None,
        events: EventSink,
        evaluator: Evaluator | None = None,
    ) -> None:
        self._settings, self._sites, self._events = settings, sites, events
        self._task = TASKS.get(settings.task)
        self._methods = {name: METHODS.get(name) for name in _method_names(settings)}
        self._configs = _configs(settings, self._methods)
        store = StageStore(home / "stages", fresh_since=run.created if settings.fresh else 0.0)
        self._workshop = Workshop(settings, store, federation, events)
        self._facts = sites.describe()
        check_backdoor(settings, self._facts)
        self._identity = Identity(settings, self._facts)
        self._evaluator = evaluator or InProcess(run.path)
        self._scorer = Scorer(settings, home, run, self._workshop, self._identity, self._schedule, self._evaluator)

    def execute(self) -> None:
        """Compute or find every stage, score every model and write the results of every cell."""
        self._events.emit("task", metric=self._task.metric_name)
        sequences = self._sequences()
        original = Arm("original", "", {}, {"trained": self._train()})
        for selections in sequences:
            for seed in self._settings.seeds("unlearn"):
                starts: dict[str, Stage | None] = dict.fromkeys(self._methods, original.last)
                for text, selection in selections.items():
                    case = Case(request_plan(text, self._request_seed, selection), selection, seed)
                    starts = self._forget(case, original, starts)
        self._evaluator.finish()

    def _forget(self, case: Case, original: Arm, starts: Mapping[str, Stage | None]) -> dict[str, Stage | None]:
        """Run every method on one request and score it; return where the next request of a sequence starts.

        A method that cannot do the request says so in the results, and does none of the later ones.
        """
        gold = self._retrain(case)
        anchors = self._scorer.score(gold, case)
        self._scorer.write(original, gold, anchors, case)
        self._scorer.write(gold, gold, anchors, case)
        ends: dict[str, Stage | None] = {}
        for name, start in starts.items():
            why_not = self._unfit(name, case) if start is not None else "not applicable to an earlier request"
            if start is None or why_not:
                config = self._configs[name].model_dump(mode="json")
                self._scorer.write_unfit(name, self._settings.preset, config, why_not, anchors, case)
                ends[name] = None
                continue
            arm = self._unlearn(name, start, original.last, case)
            self._scorer.write(arm, gold, anchors, case)
            ends[name] = arm.last
        return ends

    def _unfit(self, name: str, case: Case) -> str:
        """Return why a method cannot do a request; empty when it can."""
        method = self._methods[name]
        why_not = method.unfit(case.plan.granularity, **facts_given(self._settings), config=self._configs[name])
        return why_not or method.unfit_for(case.plan)

    def _sequences(self) -> list[dict[str, Facts]]:
        """Resolve and check every request: for each sequence its prefixes and what the sites mean by them."""
        sequences = []
        for text in self._settings.request_texts():
            selections = {}
            for prefix in parse_request(text).prefixes():
                selections[prefix.text] = self._sites.select(prefix.text, self._request_seed)
                check_sites(self._facts, prefix.text, selections[prefix.text])
            sequences.append(selections)
        if not sequences:
            raise BadInput("requests", self._settings.requests, "at least one request", "such as client:patient-1")
        return sequences

    # ------------------------------------------------------------------ the stages
    def _train(self) -> Stage:
        settings, parts = self._settings, self._identity.training
        if settings.original:
            path = Path(settings.original)
            imported = {**parts, "original": hashlib.sha256(path.read_bytes()).hexdigest()}
            weights = Outcome(state=load_weights(path, like=self._initial_state))
            return self._workshop.stage("train", "original", imported, lambda _: weights, needs_sites=False)

        def compute(work: StageWork) -> Outcome:
            strategy = RecordingFedAvg(
                self._workshop.online,
                self._schedule,
                seed=settings.train_seed,
                participants=list(self._facts),
                message_config={"records": "all"},
                history=HistoryWriter(work.history),
                label="original",
            )
            outcome = strategy.run(self._initial_state, settings.rounds)
            if settings.history_every > 1 or settings.history_half:
                shrink(work.history, keep_every=settings.history_every, half=settings.history_half)
            return outcome

        if settings.history_every > 1 or settings.history_half:
            parts = {**parts, "history": [settings.history_every, settings.history_half]}
        return _usable(self._workshop.stage("train", "original", parts, compute, keep_history=True), "training")

    def _retrain(self, case: Case) -> Arm:
        parts = {**self._identity.training, GOLD: True, **self._identity.request(case.plan, case.selection)}
        label = f"{GOLD} {case.plan.text}"

        def compute(work: StageWork) -> Outcome:
            config = METHODS.get(GOLD).resolve_config()
            strategy = self._strategy(GOLD, case, self._settings.train_seed, config, None, self._rounds(work))
            return strategy.run(self._initial_state)

        trained = _usable(self._stage("retrain", label, parts, compute), "retraining")
        return Arm(GOLD, "", {}, {"unlearned": trained, "recovered": self._recover(GOLD, trained, case, None)})

    def _unlearn(self, name: str, start: Stage, original: Stage, case: Case) -> Arm:
        config = self._configs[name]
        resolved = config.model_dump(mode="json")
        parts = {
            **self._identity.training,
            **self._identity.request(case.plan, case.selection),
            "method": name,
            "version": self._methods[name].version,
            "config": resolved,
            "start": start.key,
            "original": original.key,
            "unlearn-seed": case.seed,
            "unlearn-epochs": self._settings.unlearn_epochs,
        }
        history = History(original.history) if original.history.exists() else None

        def compute(work: StageWork) -> Outcome:
            return self._strategy(name, case, case.seed, config, history, self._rounds(work)).run(start.state)

        def hook() -> RecoveryHook:
            made = self._strategy(name, case, case.seed, config, history, None)
            return made.recovery_hook(start.state, unlearned.state)

        unlearned = self._stage("unlearn", f"{name} {case.plan.text}", parts, compute)
        recovered = self._recover(name, unlearned, case, hook) if unlearned.status == "ok" else None
        return Arm(name, self._settings.preset, resolved, {"unlearned": unlearned, "recovered": recovered})

    def _recover(self, name: str, parent: Stage, case: Case, hook: Callable[[], RecoveryHook] | None) -> Stage:
        settings = self._settings
        parts = {
            **self._identity.training,
            **self._identity.request(case.plan, case.selection),
            "parent": parent.key,
            "unlearn-seed": case.seed,
            "recovery-rounds": settings.recovery_rounds,
            "recovery-epochs": settings.recovery_epochs,
            "recovery-max-norm": settings.recovery_max_norm,
        }
        label = f"recover {name} {case.plan.text}"

        def compute(work: StageWork) -> Outcome:
            return run_recovery(
                self._workshop.online,
                self._schedule,
                case.plan,
                parent.state,
                seed=case.seed,
                work=self._rounds(work),
                hook=hook() if hook else None,
                label=label,
            )

        return self._stage("recover", label, parts, compute)

    def _stage(self, kind: str, label: str, parts: Mapping[str, Any], compute: Callable[[StageWork], Outcome]) -> Stage:
        return self._workshop.stage(kind, label, parts, compute, keep_history=self._settings.keep_histories)

    # ------------------------------------------------------------------ what the stages share
    def _strategy(
        self,
        name: str,
        case: Case,
        seed: int,
        config: MethodConfig,
        history: History | None,
        work: HistoryWriter | None,
    ) -> UnlearningStrategy:
        made = METHODS.get(name)
        online = self._workshop.online
        return made(
            online,
            self._schedule,
            case.plan,
            seed=seed,
            config=config,
            history=history,
            work=work,
            layers=self._layers,
        )

    def _rounds(self, work: StageWork) -> HistoryWriter:
        """Keep what a resume needs of a stage's rounds, and the sites' updates only where the rounds are kept."""
        return HistoryWriter(work.history, keep_updates=self._settings.keep_histories)

    @cached_property
    def _initial_state(self) -> State:
        """The initial weights: the same for the original and every retrained model of a train seed."""
        torch.manual_seed(derive_seed(self._settings.train_seed, "init"))
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

    @cached_property
    def _request_seed(self) -> int:
        settings = self._settings
        return settings.train_seed if settings.request_seed < 0 else settings.request_seed

    @cached_property
    def _schedule(self) -> Schedule:
        settings = self._settings
        return Schedule(
            lr=settings.lr,
            rounds=settings.rounds,
            local_epochs=settings.local_epochs,
            unlearn_epochs=settings.unlearn_epochs,
            recovery_rounds=settings.recovery_rounds,
            recovery_epochs=settings.recovery_epochs,
            recovery_max_norm=settings.recovery_max_norm,
            fraction_train=settings.fraction_train,
            strategy=settings.strategy,
            prox_mu=settings.prox_mu,
            server_lr=settings.server_lr,
        )


def _method_names(settings: GroupSettings) -> list[str]:
    """Return the methods to run; the control arm is always one, gold is no method."""
    return [CONTROL, *(name for name in settings.method_names() if name not in (GOLD, CONTROL))]


def _configs(settings: GroupSettings, methods: Mapping[str, type[UnlearningStrategy]]) -> dict[str, MethodConfig]:
    overrides = settings.method_overrides()
    for name in overrides:
        if name not in methods:
            raise BadInput("overrides", name, "settings of the methods that run", f"add {name} to methods")
    return {name: method.resolve_config(settings.preset, overrides.get(name)) for name, method in methods.items()}


def _usable(stage: Stage, what: str) -> Stage:
    """Return a stage that every result stands on; raises `RunFailed` when it diverged."""
    if stage.status != "ok":
        raise RunFailed(f"{what} diverged: {stage.reason}; lower lr")
    return stage
