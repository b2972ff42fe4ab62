"""Executes the stages of one group of cells that the cache does not have, scores every model, writes the results."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from clients.catalogue import TASKS
from clients.scoring import comparison, scorecard
from clients.site import reference_view
from evaluation.panel import ScoredModel, score_model
from evaluation.results import write_results
from flower_apps.runs import RunFolder
from flower_apps.settings import GroupSettings
from flower_apps.sites import Facts, Sites, answered, check_sites, device_kind, request_plan, site_settings
from flower_apps.stages import Stage, StageStore, StageWork, stage_key
from flower_apps.weights import load_weights
from partitions.errors import BadInput
from partitions.requests import parse_request
from partitions.seeds import derive_seed
from strategies.base import Outcome, RequestPlan, Schedule, UnlearningStrategy
from strategies.events import EventSink
from strategies.federation import Federation
from strategies.history import History, HistoryWriter
from strategies.recording import RecordingFedAvg
from strategies.recovery import run_recovery
from strategies.registry import METHODS
from strategies.retrain import Retrain
from unlearning.state import State

CACHE_VERSION = 1
"""Raised when a change makes old stages wrong."""

CONTROL = "fine-tuning"
"""The arm every table has: recovery alone, without a forgetting step (METHODS 5)."""


class MissingStage(LookupError):
    """The cache lacks a stage and there is no federation to compute it."""


@dataclass(frozen=True)
class Arm:
    """One method under one unlearning seed: both of its checkpoints."""

    method: str
    preset: str
    config: Mapping[str, Any]
    unlearned: Stage
    recovered: Stage | None


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
    """

    def __init__(
        self,
        settings: GroupSettings,
        home: Path,
        run: RunFolder,
        sites: Sites,
        federation: Federation | None,
        events: EventSink,
    ) -> None:
        self.settings, self.home, self.run, self.sites = settings, home, run, sites
        self.federation, self.events = federation, events
        self.store = StageStore(home / "stages", fresh_since=run.created if settings.fresh else 0.0)
        self.task = TASKS.get(settings.task)
        self.request_seed = settings.train_seed if settings.request_seed < 0 else settings.request_seed
        self._strategies = {name: METHODS.get(name) for name in self._method_names()}
        self._configs = self._resolve_configs()

    # ------------------------------------------------------------------ the group, from top to bottom
    def execute(self) -> None:
        """Compute or find every stage, score every model and write the results of every cell."""
        requests = [parse_request(text) for text in self.settings.request_texts()]
        if not requests:
            raise BadInput("requests", self.settings.requests, "at least one request", "such as client:patient-1")
        selections = {}
        for request in requests:
            for prefix in request.prefixes():
                self._check_methods(prefix.steps[-1].granularity)
                selections[prefix.text] = self.sites.select(prefix.text, self.request_seed)
                check_sites(self.facts, prefix.text, selections[prefix.text])
        original = self._train()
        for request in requests:
            for seed in self.settings.seeds("unlearn"):
                starts = dict.fromkeys(self._strategies, original)
                for prefix in request.prefixes():
                    plan = request_plan(prefix.text, self.request_seed, selections[prefix.text])
                    starts = self._forget(original, plan, selections[prefix.text], seed, starts)

    def _forget(
        self, original: Stage, plan: RequestPlan, selection: Facts, seed: int, starts: Mapping[str, Stage]
    ) -> dict[str, Stage]:
        """Run every method on one request and score it; return where the next request of a sequence starts."""
        gold = self._retrain(plan, selection, seed)
        scored_gold = self._scored(gold, plan, selection)
        self._write_original(original, gold, scored_gold, plan, selection, seed)
        self._write_arm(gold, gold, scored_gold, plan, selection, seed)
        ends = {}
        for name in self._strategies:
            arm = self._unlearn(name, starts[name], original, plan, selection, seed)
            self._write_arm(arm, gold, scored_gold, plan, selection, seed)
            ends[name] = arm.recovered or arm.unlearned
        return ends

    # ------------------------------------------------------------------ stages that compute
    def _train(self) -> Stage:
        settings = self.settings
        if settings.original:
            digest = hashlib.sha256(Path(settings.original).read_bytes()).hexdigest()
            parts = {**self._training_parts, "original": digest}
            return self._stage("train", "original", parts, lambda _: self._imported(), imported=True)

        def compute(work: StageWork) -> Outcome:
            strategy = RecordingFedAvg(
                self._online,
                self._schedule,
                seed=settings.train_seed,
                participants=list(self.facts),
                message_config={"records": "all"},
                history=HistoryWriter(work.history),
                label="original",
            )
            return strategy.run(self.initial_state(), settings.rounds)

        return self._stage("train", "original", self._training_parts, compute, keep_history=True)

    def _imported(self) -> Outcome:
        state = load_weights(Path(self.settings.original), like=self.initial_state())
        return Outcome(state=state, status="ok", reason="", rounds=0)

    def _retrain(self, plan: RequestPlan, selection: Facts, seed: int) -> Arm:
        parts = {**self._training_parts, "retrain": _resolved(selection), "departed": sorted(plan.departed)}

        def compute(work: StageWork) -> Outcome:
            strategy = Retrain(
                self._online,
                self._schedule,
                plan,
                seed=self.settings.train_seed,
                config=Retrain.resolve_config(),
                work=HistoryWriter(work.history),
            )
            return strategy.run(self.initial_state())

        trained = self._stage("retrain", f"retrain {plan.text}", parts, compute)
        recovered = self._recover("retrain", trained, plan, selection, seed, None)
        return Arm("retrain", "", {}, trained, recovered)

    def _unlearn(self, name: str, start: Stage, original: Stage, plan: RequestPlan, selection: Facts, seed: int) -> Arm:
        method, config = self._strategies[name], self._configs[name]
        parts = {
            **self._training_parts,
            "method": name,
            "version": method.version,
            "config": config.model_dump(mode="json"),
            "start": start.key,
            "original": original.key,
            "request": _resolved(selection),
            "departed": sorted(plan.departed),
            "unlearn-seed": seed,
            "unlearn-epochs": self.settings.unlearn_epochs,
        }
        history = History(original.history) if original.history.exists() else None
        made: list[UnlearningStrategy] = []

        def compute(work: StageWork) -> Outcome:
            made.append(self._strategy(name, plan, seed, history, HistoryWriter(work.history)))
            return made[0].run(start.state)

        unlearned = self._stage("unlearn", f"{name} {plan.text}", parts, compute)
        if unlearned.status != "ok":
            return Arm(name, self.settings.preset, config.model_dump(mode="json"), unlearned, None)
        hook = None if self.federation is None else self._strategy(name, plan, seed, history, None).recovery_hook()
        recovered = self._recover(name, unlearned, plan, selection, seed, hook)
        return Arm(name, self.settings.preset, config.model_dump(mode="json"), unlearned, recovered)

    def _strategy(
        self, name: str, plan: RequestPlan, seed: int, history: History | None, work: HistoryWriter | None
    ) -> UnlearningStrategy:
        return self._strategies[name](
            self._online, self._schedule, plan, seed=seed, config=self._configs[name], history=history, work=work
        )

    def _recover(self, name: str, parent: Stage, plan: RequestPlan, selection: Facts, seed: int, hook: Any) -> Stage:
        settings = self.settings
        parts = {
            **self._training_parts,
            "parent": parent.key,
            "request": _resolved(selection),
            "departed": sorted(plan.departed),
            "unlearn-seed": seed,
            "recovery-rounds": settings.recovery_rounds,
            "recovery-epochs": settings.recovery_epochs,
            "recovery-max-norm": settings.recovery_max_norm,
        }

        def compute(work: StageWork) -> Outcome:
            return run_recovery(
                self._online,
                self._schedule,
                plan,
                parent.state,
                seed=seed,
                work=HistoryWriter(work.history),
                hook=hook,
                label=f"recover {name} {plan.text}",
            )

        return self._stage("recover", f"recover {name} {plan.text}", parts, compute)

    def _stage(
        self,
        kind: str,
        label: str,
        parts: Mapping[str, Any],
        compute: Callable[[StageWork], Outcome],
        keep_history: bool = False,
        imported: bool = False,
    ) -> Stage:
        """Find a stage, or compute and commit it."""
        if self.federation is None and not imported:
            return self._found(kind, label, parts)
        with self.store.claim(kind, parts, waiting=lambda text: self.events.emit("note", text=text)) as found:
            if isinstance(found, Stage):
                self.events.emit("stage-cached", stage=kind, label=label)
                return found
            outcome = compute(found)
            return found.commit(
                state=outcome.state,
                status=outcome.status,
                reason=outcome.reason,
                cost=outcome.cost.to_dict(),
                conditions=self._conditions,
                rounds=outcome.rounds,
                keep_history=keep_history or self.settings.keep_histories,
                notes=list(outcome.notes),
            )

    def _found(self, kind: str, label: str, parts: Mapping[str, Any]) -> Stage:
        stage = self.store.find(kind, stage_key(parts))
        if stage is None:
            raise MissingStage(label)
        self.events.emit("stage-cached", stage=kind, label=label)
        return stage

    # ------------------------------------------------------------------ scores
    def _scored(self, arm: Arm, plan: RequestPlan, selection: Facts) -> dict[str, ScoredModel]:
        """Score both checkpoints of an arm. There is no recovered one after a diverged unlearning step."""
        checkpoints: dict[str, Stage | None] = {"unlearned": arm.unlearned, "recovered": arm.recovered}
        return {
            name: ScoredModel(
                method=arm.method,
                preset=arm.preset,
                checkpoint=name,
                status="diverged" if stage is None else stage.status,
                reason=f"no recovery from a diverged state: {arm.unlearned.reason}" if stage is None else stage.reason,
                scorecard=None if stage is None else self._scorecard(stage, f"{arm.method} {name}", plan, selection),
                state=None if stage is None else stage.state,
                cost=_spent(arm.unlearned, stage if name == "recovered" else None),
            )
            for name, stage in checkpoints.items()
        }

    def _write_arm(
        self,
        arm: Arm,
        gold: Arm,
        scored_gold: Mapping[str, ScoredModel],
        plan: RequestPlan,
        selection: Facts,
        seed: int,
    ) -> None:
        """Score an arm against gold at the same checkpoint and write its rows."""
        scored = scored_gold if arm is gold else self._scored(arm, plan, selection)
        cell = self._cell(arm.method, arm.config, plan, seed)
        stages = {"unlearned": (arm.unlearned, gold.unlearned), "recovered": (arm.recovered, gold.recovered)}
        for name, (stage, anchor) in stages.items():
            compared = None
            if stage is not None and anchor is not None:
                compared = self._comparison(stage, anchor, f"{arm.method} {name}", plan, selection)
            self._write_rows(cell, scored[name], scored_gold, compared, plan, seed)
        self.run.add_cell(
            {
                "cell": cell,
                "method": arm.method,
                "preset": arm.preset,
                "request": plan.text,
                "train_seed": self.settings.train_seed,
                "unlearn_seed": seed,
                "checkpoints": {n: str(s.model_path) for n, (s, _) in stages.items() if s is not None},
                "config": dict(arm.config),
                "settings": self.settings.to_run_config(),
                "status": (arm.recovered or arm.unlearned).status,
            }
        )

    def _write_original(
        self,
        original: Stage,
        gold: Arm,
        scored_gold: Mapping[str, ScoredModel],
        plan: RequestPlan,
        selection: Facts,
        seed: int,
    ) -> None:
        model = ScoredModel(
            method="original",
            preset="",
            checkpoint="trained",
            status=original.status,
            reason=original.reason,
            scorecard=self._scorecard(original, "original", plan, selection),
            state=original.state,
            cost=_spent(original, None),
        )
        compared = self._comparison(original, gold.unlearned, "original", plan, selection)
        cell = self._cell("original", {}, plan, seed)
        self._write_rows(cell, model, scored_gold, compared, plan, seed)
        self.run.add_cell(
            {
                "cell": cell,
                "method": "original",
                "preset": "",
                "request": plan.text,
                "train_seed": self.settings.train_seed,
                "unlearn_seed": seed,
                "checkpoints": {"trained": str(original.model_path)},
                "config": {},
                "settings": self.settings.to_run_config(),
                "status": original.status,
            }
        )

    def _write_rows(
        self,
        cell: str,
        model: ScoredModel,
        scored_gold: Mapping[str, ScoredModel],
        compared: pd.DataFrame | None,
        plan: RequestPlan,
        seed: int,
    ) -> None:
        settings = self.settings
        labels = {
            "cell": cell,
            "experiment": settings.name,
            "task": settings.task,
            "dataset": settings.dataset,
            "partition": settings.split,
            "alpha": settings.alpha if settings.split in ("dirichlet", "quantity") else None,
            "model": settings.model,
            "request": plan.text,
            "granularity": plan.granularity,
            "method": model.method,
            "preset": model.preset,
            "checkpoint": model.checkpoint,
            "train_seed": settings.train_seed,
            "unlearn_seed": seed,
        }
        anchor, other = ("recovered", "unlearned") if model.checkpoint == "recovered" else ("unlearned", "recovered")
        rows = []
        for evaluate_seed in settings.seeds("evaluate"):
            values = score_model(
                model,
                scored_gold[anchor],
                compared,
                granularity=plan.granularity,
                metric_name=self.task.metric_name,
                higher_is_better=self.task.higher_is_better,
                has_reference=self._reference is not None,
                evaluate_seed=evaluate_seed,
                gold_other_checkpoint=scored_gold[other],
            )
            rows += [{**labels, "evaluate_seed": evaluate_seed, **value} for value in values]
        write_results(self.run.path, rows)

    def _scorecard(self, stage: Stage, label: str, plan: RequestPlan, selection: Facts) -> pd.DataFrame:
        """Return every record's score under one model: the sites' records, then the reference set's."""

        def ask(state: State) -> list[pd.DataFrame]:
            config = {"request": plan.text, "request-seed": plan.seed}
            asked = self._online.ask("evaluate", "scorecard", list(self.facts), state=state, config=config)
            tables = [reply.tables["scorecard"] for reply in answered(asked)]
            if self._reference is not None:
                tables.append(scorecard(self._reference, state, plan.text, plan.seed))
            return tables

        parts = {**self._scoring_parts, "weights": stage.record["sha256"], "request": plan.text, "of": _all(selection)}
        return self._table("score", f"score {label}", parts, lambda: ask(stage.state))

    def _comparison(self, stage: Stage, gold: Stage, label: str, plan: RequestPlan, selection: Facts) -> pd.DataFrame:
        """Return every record's divergence between one model and gold."""

        def ask() -> list[pd.DataFrame]:
            config = {"request": plan.text, "request-seed": plan.seed}
            asked = self._online.ask(
                "evaluate",
                "compare",
                list(self.facts),
                state=stage.state,
                states={"other": gold.state},
                config=config,
            )
            tables = [reply.tables["comparison"] for reply in answered(asked)]
            if self._reference is not None:
                tables.append(comparison(self._reference, stage.state, gold.state, plan.text, plan.seed))
            return tables

        parts = {
            **self._scoring_parts,
            "weights": stage.record["sha256"],
            "other": gold.record["sha256"],
            "request": plan.text,
            "of": _all(selection),
        }
        return self._table("compare", f"compare {label}", parts, ask)

    def _table(
        self, kind: str, label: str, parts: Mapping[str, Any], ask: Callable[[], list[pd.DataFrame]]
    ) -> pd.DataFrame:
        if self.federation is None:
            return pd.read_parquet(self._found(kind, label, parts).folder / "table.parquet")
        with self.store.claim(kind, parts, waiting=lambda text: self.events.emit("note", text=text)) as found:
            if isinstance(found, Stage):
                return pd.read_parquet(found.folder / "table.parquet")
            self.events.emit("stage-started", stage=kind, label=label, rounds=1, round=0)
            table = pd.concat(ask(), ignore_index=True)
            table.to_parquet(found.folder / "table.parquet", index=False)
            found.commit()
            self.events.emit("stage-finished", stage=kind, label=label, status="ok")
            return table

    # ------------------------------------------------------------------ what identifies a result
    @cached_property
    def facts(self) -> Facts:
        """What every site says of itself."""
        return self.sites.describe()

    @cached_property
    def _training_parts(self) -> dict[str, Any]:
        """Everything that determines the original model."""
        settings = self.settings
        server = {"fedprox": {"prox-mu": settings.prox_mu}, "fedadam": {"server-lr": settings.server_lr}}
        return {
            "cache": CACHE_VERSION,
            "torch": version("torch"),
            "flwr": version("flwr"),
            "sites": [[name, found["fingerprint"]] for name, found in self.facts.items()],
            "task": settings.task,
            "model": settings.model,
            "rounds": settings.rounds,
            "local-epochs": settings.local_epochs,
            "batch-size": settings.batch_size,
            "last-batch": settings.last_batch,
            "lr": settings.lr,
            "momentum": settings.momentum,
            "weight-decay": settings.weight_decay,
            "strategy": {settings.strategy: server.get(settings.strategy, {})},
            "fraction-train": settings.fraction_train,
            "train-seed": settings.train_seed,
            "precision": settings.precision,
            "channels-last": settings.channels_last,
            "threads": settings.threads,
            "device": device_kind(self.facts),
            "failure-policy": settings.failure_policy,
        }

    @cached_property
    def _scoring_parts(self) -> dict[str, Any]:
        keys = ("cache", "torch", "sites", "task", "model", "threads", "device")
        reference = self._reference.fingerprint if self._reference else ""
        return {**{key: self._training_parts[key] for key in keys}, "reference": reference}

    @cached_property
    def _conditions(self) -> dict[str, Any]:
        """What a timing depends on beside the work: two timings are compared only where these agree."""
        settings = self.settings
        host = socket.gethostname()
        return {"host": host, "workers": settings.workers, "threads": settings.threads, "jobs": settings.jobs}

    def _cell(self, method: str, config: Mapping[str, Any], plan: RequestPlan, seed: int) -> str:
        parts = {
            **self._training_parts,
            "method": method,
            "config": dict(config),
            "request": plan.text,
            "request-seed": plan.seed,
            "unlearn-seed": seed,
            "unlearn-epochs": self.settings.unlearn_epochs,
            "recovery": [
                self.settings.recovery_rounds,
                self.settings.recovery_epochs,
                self.settings.recovery_max_norm,
            ],
            "original": self.settings.original,
        }
        return stage_key(parts)[:12]

    # ------------------------------------------------------------------ small things the stages share
    def initial_state(self) -> State:
        """Return the initial weights: the same for the original and every retrained model of a train seed."""
        described = next(iter(self.facts.values()))
        torch.manual_seed(derive_seed(self.settings.train_seed, "init"))
        module = self.task.build(self.settings.model, tuple(described["data-shape"]), described["num-classes"])
        if self.settings.precision == "64-true":
            module = module.double()
        return State.from_module(module)

    @property
    def _online(self) -> Federation:
        if self.federation is None:
            raise MissingStage("no federation to ask")
        return self.federation

    @cached_property
    def _schedule(self) -> Schedule:
        settings = self.settings
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

    def _method_names(self) -> list[str]:
        names = [name for name in self.settings.method_names() if name not in ("original", "retrain", CONTROL)]
        return [CONTROL, *names]

    def _resolve_configs(self) -> dict[str, Any]:
        overrides = self.settings.method_overrides()
        for name in overrides:
            if name not in self._strategies:
                raise BadInput("overrides", name, "settings of the methods that run", f"add {name} to methods")
        return {
            name: method.resolve_config(self.settings.preset, overrides.get(name, {}))
            for name, method in self._strategies.items()
        }

    def _check_methods(self, granularity: str) -> None:
        for method in self._strategies.values():
            method.check(granularity, has_history=not self.settings.original, has_logits=self.task.has_logits)

    @cached_property
    def _reference(self) -> Any:
        return reference_view(site_settings(self.settings, self.home))


def _resolved(selection: Facts) -> dict[str, str]:
    """Return which training records a request means, as one hash a site."""
    return {site: str(found["train-hash"]) for site, found in selection.items()}


def _all(selection: Facts) -> dict[str, str]:
    """Return which records, trained and held out, a request means, as one hash a site."""
    return {site: str(found["hash"]) for site, found in selection.items()}


def _spent(step: Stage, recovery: Stage | None) -> dict[str, Any]:
    """Return what a checkpoint cost and how it was timed; its recovery with the prefix ``recovery_``."""
    recovered = {} if recovery is None else {**recovery.cost, **recovery.conditions}
    return {**step.cost, **step.conditions, **{f"recovery_{key}": value for key, value in recovered.items()}}
