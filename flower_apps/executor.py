"""Executes one group of cells: trains, forgets with every method, retrains, recovers, and has every model scored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path

from clients.catalogue import TASKS
from evaluation.evaluator import Evaluator, InProcess
from flower_apps.cases import SEARCHED, Arm, Case
from flower_apps.cells import GOLD, ORIGINAL, methods_by_request, run_methods
from flower_apps.depot import stage_depot
from flower_apps.group_stages import GroupStages
from flower_apps.identity import Identity
from flower_apps.preflight import facts_given
from flower_apps.runs import RunFolder
from flower_apps.scoring import Scorer
from flower_apps.searching import Search, Searching
from flower_apps.settings import GroupSettings
from flower_apps.shadowing import Shadowing
from flower_apps.sites import Facts, Sites, check_backdoor, check_sites, difficulty_of, request_plan
from flower_apps.stages import Stage, StageStore
from flower_apps.workshop import Workshop
from partitions.errors import BadInput
from partitions.requests import parse_request
from strategies.base import MethodConfig, Schedule, UnlearningStrategy
from strategies.events import EventSink
from strategies.federation import Federation
from strategies.registry import METHODS

NOT_EARLIER = "not applicable to an earlier request"

Branch = tuple[str, str]
"""A method and its preset, or `SEARCHED`."""


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
    workshop : Workshop, optional
        Finds stages or has them computed; by default with the cache of `home` and the federation.
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
        workshop: Workshop | None = None,
    ) -> None:
        self._settings, self._sites, self._events = settings, sites, events
        self._task = TASKS.get(settings.task)
        self._methods = {name: METHODS.get(name) for name in run_methods(settings)}
        self._configs = _configs(settings, self._methods)
        self._depot = None
        if workshop is None:
            self._depot = stage_depot(settings, home, lambda text: events.emit("note", text=text))
            fresh_since = run.fresh_since if settings.fresh else 0.0
            store = StageStore(home / "stages", fresh_since=fresh_since, depot=self._depot)
            workshop = Workshop(settings, store, federation, events, run.add_stage)
        self._workshop = workshop
        self._facts = sites.describe()
        check_backdoor(settings, self._facts)
        self._identity = Identity(settings, self._facts)
        self._evaluator = evaluator or InProcess(run.path)
        schedule = _schedule(settings)
        self._stages = GroupStages(settings, self._workshop, self._identity, self._facts, self._configs, schedule)
        self._scorer = Scorer(settings, home, run, self._workshop, self._identity, schedule, self._evaluator)
        self._shadowing = Shadowing(self._scorer.bench, self._stages, sites)
        self._searching = Searching(settings, run, self._stages, self._scorer, events)

    def execute(self) -> None:
        """Compute or find every stage, score every model and write the results of every cell."""
        with self._depot or nullcontext():
            self._execute()

    def _execute(self) -> None:
        self._events.emit("task", metric=self._task.metric_name)
        sequences = self._sequences()
        original = Arm(ORIGINAL, "", {}, {"trained": self._stages.original()})
        for methods, selections in sequences:
            for seed in self._settings.seeds("unlearn"):
                starts: dict[Branch, Stage | None] = dict.fromkeys(self._arms(methods), original.last)
                for text, selection in selections.items():
                    plan = request_plan(text, self._request_seed, selection)
                    case = Case(plan, selection, seed, difficulty_of(self._facts, selection))
                    starts = self._forget(case, original, starts)
        self._evaluator.finish()

    def _arms(self, methods: Iterable[str]) -> list[Branch]:
        """Return each of the methods with the preset, followed by what a search makes of it where there is one."""
        presets = (self._settings.preset, SEARCHED)
        return [
            (name, preset)
            for name in methods
            for preset in presets
            if preset != SEARCHED or name in self._searching.methods
        ]

    def _forget(self, case: Case, original: Arm, starts: Mapping[Branch, Stage | None]) -> dict[Branch, Stage | None]:
        """Run every method on one request and score it; return where the next request of a sequence starts.

        A method that cannot do the request says so in the results, and does none of the later ones.
        """
        gold = self._retrain(case)
        anchors = self._scorer.score(gold, case)
        unfit = {branch: self._unfit(branch[0], case) if start else NOT_EARLIER for branch, start in starts.items()}
        fit = [name for (name, preset), why_not in unfit.items() if not why_not and preset != SEARCHED]
        shadows = self._shadowing.of(case, original.last, gold, fit)

        def write(arm: Arm) -> None:
            self._scorer.write(arm, gold, anchors, case, shadows.of(arm.method, arm.preset) if shadows else None)

        write(original)
        write(gold)
        ends: dict[Branch, Stage | None] = {}
        for (name, preset), start in starts.items():
            config, why_not, status = self._configs[name].model_dump(mode="json"), unfit[name, preset], "not_applicable"
            arm = None
            if start is not None and not why_not and preset == SEARCHED:
                arm, why_not = self._searching.arm(Search(name, start, original.last, gold, anchors, case))
                status = "diverged"
            elif start is not None and not why_not:
                arm = Arm(name, preset, config, self._stages.put_through(name, start, original.last, case))
            if arm is None:
                self._scorer.write_unfit(name, preset, config, why_not, anchors, case, status)
            else:
                write(arm)
            ends[name, preset] = arm.last if arm else None
        return ends

    def _unfit(self, name: str, case: Case) -> str:
        """Return why a method cannot do a request; empty when it can."""
        method = self._methods[name]
        why_not = method.unfit(case.plan.granularity, **facts_given(self._settings), config=self._configs[name])
        return why_not or method.unfit_for(case.plan)

    def _sequences(self) -> list[tuple[list[str], dict[str, Facts]]]:
        """Resolve and check every request: for each sequence its methods, its prefixes and what the sites mean."""
        sequences = []
        for text, methods in methods_by_request(self._settings).items():
            selections = {}
            for prefix in parse_request(text).prefixes():
                selections[prefix.text] = self._sites.select(prefix.text, self._request_seed)
                check_sites(self._facts, prefix.text, selections[prefix.text])
            sequences.append((methods, selections))
        if not sequences:
            raise BadInput("requests", self._settings.requests, "at least one request", "such as client:patient-1")
        return sequences

    def _retrain(self, case: Case) -> Arm:
        trained = self._stages.retrained(case)
        recovered = self._stages.recovered(GOLD, trained, case, None)
        return Arm(GOLD, "", {}, {"unlearned": trained, "recovered": recovered})

    @cached_property
    def _request_seed(self) -> int:
        settings = self._settings
        return settings.train_seed if settings.request_seed < 0 else settings.request_seed


def _configs(settings: GroupSettings, methods: Mapping[str, type[UnlearningStrategy]]) -> dict[str, MethodConfig]:
    overrides = settings.method_overrides()
    for name in overrides:
        if name not in methods:
            raise BadInput("overrides", name, "settings of the methods that run", f"add {name} to methods")
    return {name: method.resolve_config(settings.preset, overrides.get(name)) for name, method in methods.items()}


def _schedule(settings: GroupSettings) -> Schedule:
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
