"""Hyper-parameter searches of a group: their trials are stages of the cache, so that a search can be replayed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from evaluation.evidence import Evidence
from evaluation.record import PLACED
from evaluation.selection import Judgement, best, judge, training_rows
from evaluation.trials import DEFAULT_TRIAL, HELD_OUT, write_trials
from flower_apps.cases import SEARCHED, Arm, Case
from flower_apps.group_stages import GroupStages
from flower_apps.preflight import facts_given
from flower_apps.runs import RunFolder
from flower_apps.scoring import Scored, Scorer
from flower_apps.search_space import proposals_of, spaces_of, trials_per_method
from flower_apps.settings import GroupSettings
from flower_apps.stages import Stage, stage_key
from partitions.errors import BadInput
from strategies.base import MethodConfig
from strategies.events import EventSink
from strategies.registry import METHODS

APART = {"name", "requests", "methods", "train-seed", "unlearn-seeds", "evaluate-seeds", "shadows", "features"}
APART |= {"relearn-epochs"}
"""Settings that change no trial, or have a column of their own in ``trials.csv``."""


@dataclass(frozen=True)
class Found:
    """What the search of a method came to.

    Attributes
    ----------
    config : MethodConfig or None
        The chosen settings; None where every trial failed.
    record : mapping
        How they were chosen.
    reason : str
        Why there are none.
    """

    config: MethodConfig | None
    record: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Search:
    """One search.

    Attributes
    ----------
    method : str
        Whose settings.
    start, original : Stage
        The model to forget with, and the training that led to it.
    gold : Arm
        The retrained model.
    anchors : mapping of str to ScoredModel
        The same with its scores.
    case : Case
        What to forget.
    """

    method: str
    start: Stage
    original: Stage
    gold: Arm
    anchors: Scored
    case: Case


@dataclass(frozen=True)
class Trial:
    """One trial: its settings, what the rule made of it, and its row of ``trials.csv``."""

    config: MethodConfig | None
    judgement: Judgement
    row: Mapping[str, Any]


class Searching:
    """Searches the settings of a group's methods, request by request, under the first unlearning seed.

    Parameters
    ----------
    settings : GroupSettings
        The group.
    run : RunFolder
        Where ``trials.csv`` lies.
    stages : GroupStages
        Finds or computes models.
    scorer : Scorer
        Has models scored.
    events : EventSink
        Where progress goes.
    """

    def __init__(
        self,
        settings: GroupSettings,
        run: RunFolder,
        stages: GroupStages,
        scorer: Scorer,
        events: EventSink,
    ) -> None:
        self._settings, self._run, self._stages, self._scorer = settings, run, stages, scorer
        self._events = events
        self._spaces, self._counts = spaces_of(settings), trials_per_method(settings)
        self._found: dict[tuple[str, str], Found] = {}

    @property
    def methods(self) -> list[str]:
        """The methods that are searched."""
        return list(self._spaces)

    def arm(self, search: Search) -> tuple[Arm | None, str]:
        """Return a method under the settings that its search chose; None where every trial failed, and why.

        The first case of a request is searched, and the choice serves its other unlearning seeds.
        """
        name, case = search.method, search.case
        found = self._found.get((case.plan.text, name)) or self._search(search)
        self._found[case.plan.text, name] = found
        if found.config is None:
            return None, found.reason
        stages = self._stages.configured(name, found.config, ", as searched")
        checkpoints = stages.put_through(name, search.start, search.original, case)
        return Arm(name, SEARCHED, found.config.model_dump(mode="json"), checkpoints, found.record), ""

    def _search(self, search: Search) -> Found:
        if self._scorer.bench.workshop.is_rehearsal:
            return self._rehearsed(search)
        name, case = search.method, search.case
        space, count = self._spaces[name], self._counts[name]
        proposals = proposals_of(space, self._settings)
        default = self._try(search, DEFAULT_TRIAL, {})
        trials: list[Trial] = []
        for number in range(1, count + 1):
            trials.append(self._try(search, number, proposals.ask()))
            proposals.tell(trials[-1].judgement.score)
            write_trials(self._run.path, [trial.row for trial in (default, *trials)])
        place = best([trial.judgement.score for trial in trials])
        rows = [{**trial.row, "chosen": number == place} for number, trial in enumerate(trials)]
        write_trials(self._run.path, [default.row, *rows])
        if place is None:
            return Found(None, reason=f"all {count} trials of its search failed, the first: {rows[0]['reason']}")
        chosen = trials[place]
        record = {
            "search": chosen.row["search"],
            "trial": place + 1,
            "trials": count,
            "values": json.loads(chosen.row["values"]),
            "score": chosen.judgement.score,
            **{key: chosen.row[key] for key in ("sampler", "rule", "checkpoint", "search_seed", "unlearn_seed")},
        }
        text = f"{name} {case.plan.text}: trial {place + 1} of {count} chosen, {chosen.row['values']}"
        self._events.emit("note", text=text)
        return Found(chosen.config, record)

    def _rehearsed(self, search: Search) -> Found:
        """Walk the trials through without judging them: the first that can run stands for what would be chosen.

        What TPE would propose depends on scores; that it proposes as if all trials had failed changes no number of
        stages, only which are taken to be in the cache.
        """
        name = search.method
        proposals = proposals_of(self._spaces[name], self._settings)
        configs = [self._walk(search, DEFAULT_TRIAL, {})]
        for number in range(1, self._counts[name] + 1):
            configs.append(self._walk(search, number, proposals.ask()))
            proposals.tell(math.nan)
        fit = [config for config in configs[1:] if config is not None]
        return Found(fit[0] if fit else None, reason="no trial can run")

    def _walk(self, search: Search, number: int, values: Mapping[str, Any]) -> MethodConfig | None:
        """Return the settings of a trial that can run, its stages walked through; of none that is known to fail."""
        config, _ = self._configured(search, values)
        if config is None:
            return None
        arm = self._put(search, number, config)
        if arm.last.status != "ok":  # it is in the cache, and diverged
            return None
        self._scorer.look(arm, self._checkpoint, search.gold, search.anchors, search.case)
        return config

    def _try(self, search: Search, number: int, values: Mapping[str, Any]) -> Trial:
        """Put a method through with some settings, and have it scored and judged."""
        row = self._row(search.method, number, values, search.case)
        config, why_not = self._configured(search, values)
        if config is None:
            return self._failed(row, "failed", why_not)
        arm = self._put(search, number, config)
        row["seconds"] = sum(stage.cost["seconds"] for stage in arm.checkpoints.values() if stage is not None)
        if arm.last.status != "ok":
            return self._failed(row, arm.last.status, arm.last.reason)
        seen = self._scorer.look(arm, self._checkpoint, search.gold, search.anchors, search.case)
        judgement = self._judge(seen)
        row |= {key: getattr(judgement, key) for key in ("score", "retain_train", "forget_train")}
        row |= _held_out(seen)
        if judgement.reason:
            return self._failed(row, "failed", judgement.reason)
        return Trial(config, judgement, row | {"status": "ok", "reason": ""})

    @property
    def _checkpoint(self) -> str:
        """The checkpoint of a trial that is judged."""
        return self._settings.search_checkpoint

    def _configured(self, search: Search, values: Mapping[str, Any]) -> tuple[MethodConfig | None, str]:
        """Return the method's settings with a trial's values; None, and why, where it cannot run with them."""
        name, settings, method = search.method, self._settings, METHODS.get(search.method)
        try:
            config = method.resolve_config(settings.preset, {**settings.method_overrides().get(name, {}), **values})
        except BadInput as error:  # each value is taken, but not all of them together
            return None, str(error)
        why_not = method.unfit(search.case.plan.granularity, **facts_given(settings), config=config)
        return (None, why_not) if why_not else (config, "")

    def _put(self, search: Search, number: int, config: MethodConfig) -> Arm:
        """Put the method through with a trial's settings."""
        name, recover = search.method, self._checkpoint == "recovered"
        stages = self._stages.configured(name, config, f", trial {number}")
        models = stages.put_through(name, search.start, search.original, search.case, recover=recover)
        return Arm(name, SEARCHED, config.model_dump(mode="json"), models)

    def _judge(self, seen: Evidence) -> Judgement:
        """Judge by training records: nothing else is handed on from here."""
        rule = self._settings.search_rule
        assert seen.model.scorecard is not None
        gold = None if seen.gold is None or seen.gold.scorecard is None else training_rows(seen.gold.scorecard)
        return judge(
            training_rows(seen.model.scorecard),
            rule=rule,
            higher_is_better=seen.higher_is_better,
            gold=gold if rule == "oracle" else None,
        )

    def _failed(self, row: Mapping[str, Any], status: str, reason: str) -> Trial:
        nothing = Judgement(math.nan, math.nan, math.nan, reason)
        return Trial(None, nothing, {**row, "status": status, "reason": reason})

    def _row(self, name: str, number: int, values: Mapping[str, Any], case: Case) -> dict[str, Any]:
        """Return what is known of a trial before it is made."""
        settings, task = self._settings, self._scorer.task
        scores = ("score", "retain_train", "forget_train", "kl_forget", *HELD_OUT, *(f"gold_{s}" for s in HELD_OUT))
        return {
            "search": self._id,
            **self._scorer.labels(case),
            "method": name,
            "preset": settings.preset,
            "trial": number,
            "values": json.dumps(dict(values)),
            "sampler": settings.search_sampler,
            "rule": settings.search_rule,
            "checkpoint": settings.search_checkpoint,
            "train_seed": settings.train_seed,
            "unlearn_seed": case.seed,
            "search_seed": settings.search_seed,
            "metric": task.metric_name,
            "higher_is_better": task.higher_is_better,
            "seconds": 0.0,
            "chosen": False,
            **dict.fromkeys(scores, math.nan),
        }

    @cached_property
    def _id(self) -> str:
        """The id of what was asked, 12 hex digits: the same for methods, requests and train seeds."""
        flat = self._settings.to_run_config()
        return stage_key({key: flat[key] for key in flat if key not in (*PLACED, *APART)})[:12]


def _held_out(seen: Evidence) -> dict[str, float]:
    """Return what the report shows of a trial and no rule looks at: scores on held-out records, beside gold's."""
    found: dict[str, float] = {}
    for split in HELD_OUT:
        found[split] = seen.mean("metric", split).value
        found[f"gold_{split}"] = seen.mean("gold_metric", split).value
    return found | {"kl_forget": seen.mean("kl", "forget").value}
