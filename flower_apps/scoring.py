"""Scores models at the sites and on the reference set, reads them against gold, and writes the results."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from clients.catalogue import TASKS
from clients.scoring import Tables, score_records
from clients.site import Site, reference_view
from evaluation.evaluator import Evaluator
from evaluation.evidence import Evidence, ScoredModel
from evaluation.shadows import Shadows
from evaluation.submission import Submission
from flower_apps.cases import SEARCHED, Arm, Case
from flower_apps.identity import Identity
from flower_apps.probes.base import Bench
from flower_apps.probes.catalogue import PROBES
from flower_apps.runs import RunFolder
from flower_apps.settings import GroupSettings
from flower_apps.sites import answered, site_settings
from flower_apps.stages import Stage
from flower_apps.workshop import Workshop
from strategies.base import Schedule

Scored = Mapping[str, ScoredModel]
"""Checkpoints by name."""


class Scorer:
    """Scores every arm of a group and writes the rows of its cells.

    Parameters
    ----------
    settings : GroupSettings
        The group.
    home : Path
        ``LETHE_HOME``.
    run : RunFolder
        Where results and the record of cells go.
    workshop : Workshop
        Finds or computes stages.
    identity : Identity
        What the keys of stages and cells are hashed from.
    schedule : Schedule
        Of training and unlearning.
    evaluator : Evaluator
        Who turns scores into rows.
    """

    def __init__(
        self,
        settings: GroupSettings,
        home: Path,
        run: RunFolder,
        workshop: Workshop,
        identity: Identity,
        schedule: Schedule,
        evaluator: Evaluator,
    ) -> None:
        self._settings, self._home, self._run = settings, home, run
        self._workshop, self._identity, self._schedule = workshop, identity, schedule
        self._evaluator = evaluator
        self.task = TASKS.get(settings.task)

    def score(self, gold: Arm, case: Case) -> Scored:
        """Return every checkpoint of gold with its scores and costs, for the other arms to be read against."""
        return {name: self._scored(gold, name, case, None)[0] for name in gold.checkpoints}

    def write(
        self, arm: Arm, gold: Arm, anchors: Scored, case: Case, shadows: Mapping[str, Shadows] | None = None
    ) -> None:
        """Score an arm, read each checkpoint against gold's of the same name, and write rows and cell.

        `anchors` is gold, scored once for all arms of the case; `shadows` are the arm's, by checkpoint.
        """
        cell = self._cell(arm.method, arm.preset, arm.config, case)
        for name in arm.checkpoints:
            attacked = (shadows or {}).get(name)
            if arm is gold:
                self._write_rows(cell, anchors[name], anchors, None, case, attacked)
                continue
            scored, compared = self._scored(
                arm, name, case, gold.checkpoints["unlearned" if name == "trained" else name]
            )
            self._write_rows(cell, scored, anchors, compared, case, attacked)
        checkpoints = {name: str(s.model_path) for name, s in arm.checkpoints.items() if s is not None}
        self._add_cell(cell, arm.method, arm.preset, arm.config, case, checkpoints, arm.last.status, arm.search)

    def write_unfit(
        self,
        method: str,
        preset: str,
        config: Mapping[str, Any],
        reason: str,
        anchors: Scored,
        case: Case,
        status: str = "not_applicable",
    ) -> None:
        """Write that there is no model, by default because the method cannot do the request: no values, the reason."""
        cell = self._cell(method, preset, config, case)
        for checkpoint in ("unlearned", "recovered"):
            model = ScoredModel(method, preset, checkpoint, status, reason, None, None, None)
            self._write_rows(cell, model, anchors, None, case)
        self._add_cell(cell, method, preset, config, case, {}, status)

    def look(self, arm: Arm, name: str, gold: Arm, anchors: Scored, case: Case) -> Evidence:
        """Return one checkpoint of an arm with all its scores beside gold's; writes nothing.

        Every record is scored, as `write` will want it of the trial that is chosen; who selects takes the training
        records of it (`evaluation.selection.training_rows`).
        """
        stage = arm.checkpoints[name]
        assert stage is not None, "a diverged model is not looked at"
        tables = self._tables(stage, gold.checkpoints[name], _label(arm, name, case), case)
        return Evidence(
            model=ScoredModel(arm.method, arm.preset, name, "ok", "", tables["scorecard"], None, None),
            gold=anchors[name],
            other_gold=None,
            comparison=tables.get("comparison"),
            granularity=case.plan.granularity,
            metric_name=self.task.metric_name,
            higher_is_better=self.task.higher_is_better,
            has_reference=self._reference is not None,
            seed=self._settings.seeds("evaluate")[0],
        )

    def labels(self, case: Case) -> dict[str, Any]:
        """Return what all rows about a case begin with: experiment, task, data set, split, model and request."""
        settings = self._settings
        return {
            "experiment": settings.name,
            "task": settings.task,
            "dataset": settings.dataset,
            "partition": settings.split,
            "alpha": settings.alpha if settings.split in ("dirichlet", "quantity") else None,
            "model": settings.model,
            "request": case.plan.text,
            "granularity": case.plan.granularity,
        }

    def _cell(self, method: str, preset: str, config: Mapping[str, Any], case: Case) -> str:
        return self._identity.cell(method, config, case.plan, case.seed, searched=preset == SEARCHED)

    def _add_cell(
        self,
        cell: str,
        method: str,
        preset: str,
        config: Mapping[str, Any],
        case: Case,
        checkpoints: Mapping[str, str],
        status: str,
        search: Mapping[str, Any] | None = None,
    ) -> None:
        self._run.add_cell(
            {
                "cell": cell,
                "method": method,
                "preset": preset,
                "request": case.plan.text,
                "difficulty": dict(case.difficulty),
                "train_seed": self._settings.train_seed,
                "unlearn_seed": case.seed,
                "checkpoints": dict(checkpoints),
                "config": dict(config),
                "settings": {**self._settings.to_run_config(), "precision": self._identity.training["precision"]},
                "network": self._identity.network,
                "status": status,
                **({"search": dict(search)} if search else {}),
            }
        )

    def _scored(self, arm: Arm, name: str, case: Case, anchor: Stage | None) -> tuple[ScoredModel, pd.DataFrame | None]:
        """Return one checkpoint of an arm with its scores and costs, and its comparison with `anchor`."""
        stage, first = arm.checkpoints[name], next(iter(arm.checkpoints.values()))
        assert first is not None, "only a recovered checkpoint can be missing"
        tables = {} if stage is None else self._tables(stage, anchor, _label(arm, name, case), case)
        scored = ScoredModel(
            method=arm.method,
            preset=arm.preset,
            checkpoint=name,
            status="diverged" if stage is None else stage.status,
            reason=f"no recovery from a diverged state: {first.reason}" if stage is None else stage.reason,
            scorecard=tables.get("scorecard"),
            state=None if stage is None else stage.state,
            cost=_spent(first, stage if name == "recovered" else None, self._identity.num_sites),
            tables={} if stage is None else self._probed(stage, _label(arm, name, case), name, case),
        )
        return scored, tables.get("comparison")

    def _probed(self, stage: Stage, label: str, checkpoint: str, case: Case) -> dict[str, pd.DataFrame]:
        probes = [PROBES.get(name) for name in PROBES.names()]
        wanted = [probe for probe in probes if probe.wanted(self._settings, checkpoint)]
        return {probe.name: probe.measure(self.bench, stage, label, case) for probe in wanted}

    def _write_rows(
        self,
        cell: str,
        model: ScoredModel,
        anchors: Scored,
        compared: pd.DataFrame | None,
        case: Case,
        shadows: Shadows | None = None,
    ) -> None:
        settings = self._settings
        labels = {
            "cell": cell,
            **self.labels(case),
            "method": model.method,
            "preset": model.preset,
            "checkpoint": model.checkpoint,
            "train_seed": settings.train_seed,
            "unlearn_seed": case.seed,
        }
        anchor, other = ("recovered", "unlearned") if model.checkpoint == "recovered" else ("unlearned", "recovered")
        self._evaluator.submit(
            Submission(
                labels=labels,
                model=model,
                gold=anchors[anchor],
                other_gold=anchors[other],
                comparison=compared,
                granularity=case.plan.granularity,
                metric_name=self.task.metric_name,
                higher_is_better=self.task.higher_is_better,
                has_reference=self._reference is not None,
                evaluate_seeds=tuple(settings.seeds("evaluate")),
                earlier=case.earlier,
                shadows=shadows,
            )
        )

    def _tables(self, stage: Stage, anchor: Stage | None, label: str, case: Case) -> Tables:
        """Return the scores of every record under one model and, with an anchor, its divergences from that.

        The sites' records come first, then the reference set's.
        """

        def ask() -> list[Tables]:
            other = None if anchor is None else anchor.state
            asked = self._workshop.online.ask_all(
                "evaluate",
                "scorecard",
                {"request": case.plan.text, "request-seed": case.plan.seed},
                state=stage.state,
                states={} if other is None else {"other": other},
            )
            tables = [reply.tables for reply in answered(asked)]
            if self._reference is not None:
                tables.append(score_records(self._reference, stage.state, other, case.plan.text, case.plan.seed))
            return tables

        other_parts = {} if anchor is None else {"other": anchor.record["sha256"]}
        parts = self.bench.scoring_parts(case, weights=stage.record["sha256"], **other_parts)
        return self._workshop.tables("score", f"score {label}", parts, ask)

    @cached_property
    def bench(self) -> Bench:
        """What else measures models of this group works with."""
        return Bench(self._settings, self._workshop, self._identity, self._schedule, self._reference)

    @cached_property
    def _reference(self) -> Site | None:
        return reference_view(site_settings(self._settings, self._home))


def _label(arm: Arm, checkpoint: str, case: Case) -> str:
    return f"{arm.method} {case.plan.text} {checkpoint}"


def _spent(step: Stage, recovery: Stage | None, sites: int) -> dict[str, Any]:
    """Return what a checkpoint cost and how it was timed; its recovery with the prefix ``recovery_``."""
    recovered = {} if recovery is None else {**recovery.cost, **_timed(recovery, sites)}
    return {**step.cost, **_timed(step, sites), **{f"recovery_{key}": value for key, value in recovered.items()}}


def _timed(stage: Stage, sites: int) -> dict[str, Any]:
    """Return how a stage was timed: more workers than sites, as older caches have them, are as many as sites."""
    found = stage.conditions
    return {**found, "workers": min(found["workers"], sites)} if "workers" in found else found
