"""Shadow federations and references of a request: trained once, then put through every method (METRICS 1.3 to 1.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from evaluation.metrics.distances import l2_distance
from evaluation.shadows import Shadows
from flower_apps.cases import SEARCHED, Arm, Case
from flower_apps.cells import GOLD, ORIGINAL
from flower_apps.group_stages import GroupStages
from flower_apps.probes.base import Bench
from flower_apps.sites import Sites, answered, request_plan
from flower_apps.stages import Stage
from partitions.seeds import derive_seed

SHADOWED = ("unlearned", "recovered")
VERSION = 1
"""Raised when a change challenges other records, or gives them other scores."""


@dataclass(frozen=True)
class Shadowed:
    """What the attacks on every model of a case need.

    Attributes
    ----------
    plain : mapping of str to Shadows
        By checkpoint, without what a method's shadows became.
    forgot : mapping of (str, str) to ndarray
        Phi of all shadows by method and checkpoint, shape (S, n).
    failed : mapping of (str, str) to str
        Why there is no such phi.
    """

    plain: Mapping[str, Shadows]
    forgot: Mapping[tuple[str, str], np.ndarray]
    failed: Mapping[tuple[str, str], str]

    def of(self, method: str, preset: str = "") -> dict[str, Shadows]:
        """Return the shadows of a model by checkpoint; the original forgets nothing, so its shadows stay as trained.

        They forget with the preset's settings, so that those which a search chose have none that did.
        """
        if preset == SEARCHED:
            why = "the shadows forgot with the preset's settings, not with those that the search chose"
            return {checkpoint: replace(plain, reason=plain.reason or why) for checkpoint, plain in self.plain.items()}
        if method == ORIGINAL:
            plain = self.plain["unlearned"]
            return {"trained": replace(plain, forgot=plain.trained)}
        return {
            checkpoint: replace(
                plain,
                forgot=self.forgot.get((method, checkpoint)),
                reason=self.failed.get((method, checkpoint), plain.reason),
            )
            for checkpoint, plain in self.plain.items()
        }


class Shadowing:
    """Trains the shadows and references of a group's cases.

    Parameters
    ----------
    bench : Bench
        Settings, workshop and identity of the group.
    stages : GroupStages
        Finds or computes models.
    sites : Sites
        How to ask the sites.
    """

    def __init__(self, bench: Bench, stages: GroupStages, sites: Sites) -> None:
        self._bench, self._stages, self._sites = bench, stages, sites
        self._count = bench.settings.shadows

    def of(self, case: Case, original: Stage, gold: Arm, methods: Sequence[str]) -> Shadowed | None:
        """Return what the shadows of a case say, having put each through `methods`; None when none are asked for.

        Parameters
        ----------
        case : Case
            The request.
        original : Stage
            Asked first which records are challenged: without any, nothing is trained.
        gold : Arm
            The retrained model, whose distance to the references is measured.
        methods : sequence of str
            Those that can do the request.
        """
        if not self._count:
            return None
        if case.earlier:
            return _nothing("the shadows forget single requests, not sequences")
        if self._bench.settings.original:
            return _nothing("the original is imported: nobody here knows how it was trained, and on which records")
        if sites := self._bench.workshop.refusing("challenge"):
            return _nothing(f"{', '.join(sites)} refuse{'s' if len(sites) == 1 else ''} challenge")
        challenged = self._challenge(case, original, "original")
        if challenged.empty:
            return _nothing("no forgotten record has a held-out one of its class at its site to be compared with")
        references = self._references(case)
        try:
            trained, forgot, failed = self._shadows(case, methods)
        except _Diverged as error:
            return _nothing(str(error))
        base = Shadows(
            records=tuple(challenged["record"]),
            unlearned=challenged["unlearned"].to_numpy(dtype=bool),
            clients=challenged["site"].to_numpy(dtype=str),
            forgotten=challenged[[f"forgotten-{number}" for number in range(self._count)]].to_numpy(dtype=bool).T,
            trained=np.stack(trained),
            forgot=None,
            retrained=np.zeros((0, len(challenged))),
        )
        plain = {
            checkpoint: replace(
                base,
                retrained=self._phi_of(case, models, len(challenged)),
                seed_gaps=_gaps(gold.checkpoints[checkpoint], models),
            )
            for checkpoint, models in references.items()
        }
        return Shadowed(plain, {key: np.stack(phi) for key, phi in forgot.items() if key not in failed}, failed)

    def _references(self, case: Case) -> dict[str, list[Stage]]:
        """Retrain with other seeds, and give each the recovery rounds; those that diverge are left out."""
        models: dict[str, list[Stage]] = {checkpoint: [] for checkpoint in SHADOWED}
        settings = self._bench.settings
        for number in range(self._count):
            train, unlearn = (
                derive_seed(seed, "reference", round_=number) for seed in (settings.train_seed, case.seed)
            )
            retrained = self._stages.retrained(case, train)
            if retrained.status == "ok":
                models["unlearned"].append(retrained)
                models["recovered"].append(self._stages.recovered(GOLD, retrained, case, None, unlearn))
        return {checkpoint: [one for one in found if one.status == "ok"] for checkpoint, found in models.items()}

    def _shadows(
        self, case: Case, methods: Sequence[str]
    ) -> tuple[list[np.ndarray], dict[tuple[str, str], list[np.ndarray]], dict[tuple[str, str], str]]:
        """Train each shadow and put it through every method before the next, so that its rounds can be let go."""
        trained: list[np.ndarray] = []
        forgot: dict[tuple[str, str], list[np.ndarray]] = {(m, c): [] for m in methods for c in SHADOWED}
        failed: dict[tuple[str, str], str] = {}
        replayed = any(map(self._stages.replays, methods))
        for number in range(self._count):
            own = self._own_case(case, number)
            seed = derive_seed(self._bench.settings.train_seed, "shadow", round_=number)
            with self._stages.alone_with_shadow(own, seed):
                shadow = self._stages.shadow(own, seed, rounds_wanted=replayed)
                if shadow.status != "ok":
                    raise _Diverged(f"shadow {number} diverged in training: {shadow.reason}")
                rounds = partial(self._stages.shadow_rounds, own, seed)
                models = {name: self._stages.put_through(name, shadow, shadow, own, rounds) for name in methods}
                self._stages.let_shadow_rounds_go(own, seed)
            trained.append(self._phi(case, shadow, f"shadow {number}"))
            for (name, checkpoint), stage in ((key, models[key[0]][key[1]]) for key in forgot):
                if stage is None or stage.status != "ok":
                    why = next(one.reason for one in models[name].values() if one is not None and one.status != "ok")
                    failed.setdefault((name, checkpoint), f"shadow {number} diverged: {why}")
                else:
                    forgot[name, checkpoint].append(self._phi(case, stage, f"shadow {number} {name} {checkpoint}"))
        return trained, forgot, failed

    def _own_case(self, case: Case, number: int) -> Case:
        """Return the shadow's own request: to forget its half of the challenged records and all that is not."""
        text = f"shadow:{number}/{self._count}@{case.plan.text}"
        selection = self._sites.select(text, case.plan.seed)
        seed = derive_seed(case.seed, "shadow", round_=number)  # what a method draws must not be the target's own
        return Case(request_plan(text, case.plan.seed, selection), selection, seed)

    def _phi_of(self, case: Case, references: Sequence[Stage], records: int) -> np.ndarray:
        phi = [self._phi(case, one, f"reference {number}") for number, one in enumerate(references)]
        return np.stack(phi) if phi else np.zeros((0, records))

    def _phi(self, case: Case, stage: Stage, label: str) -> np.ndarray:
        return self._challenge(case, stage, label)["phi"].to_numpy(dtype=np.float64)

    def _challenge(self, case: Case, stage: Stage, label: str) -> pd.DataFrame:
        """Return the challenged records of all sites in order of record, with phi under a model."""
        workshop, plan = self._bench.workshop, case.plan

        def ask() -> list[dict[str, pd.DataFrame]]:
            config = {"request": plan.text, "request-seed": plan.seed, "shadows": self._count}
            asked = workshop.online.ask("evaluate", "challenge", plan.forget_holders, state=stage.state, config=config)
            return [reply.tables for reply in answered(asked)]

        about = {"weights": stage.record["sha256"], "challenge": [VERSION, self._count, plan.seed]}
        found = workshop.tables("score", f"challenge {label}", self._bench.scoring_parts(case, **about), ask)
        return found["challenge"].sort_values("record", kind="stable", ignore_index=True)


class _Diverged(Exception):
    """A shadow of which nothing can be made."""


def _gaps(gold: Stage | None, references: Sequence[Stage]) -> tuple[float, ...]:
    return (
        ()
        if gold is None or gold.status != "ok"
        else tuple(l2_distance(gold.state, reference.state) for reference in references)
    )


def _nothing(reason: str) -> Shadowed:
    return Shadowed({checkpoint: Shadows.none(reason) for checkpoint in SHADOWED}, {}, {})
