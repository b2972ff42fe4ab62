"""Measures how often a model obeys the trigger of the backdoor that was planted at a site (METRICS 4)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from clients.backdoor import score_triggered
from flower_apps.cases import Case
from flower_apps.probes.base import Bench
from flower_apps.probes.relearn import PROBE as RELEARN
from flower_apps.probes.relearn import epochs_of, relearned
from flower_apps.settings import GroupSettings
from flower_apps.sites import answered
from flower_apps.stages import Stage
from unlearning.state import State

LOST = {"hit": np.nan, "clean": np.nan}


class BackdoorProbe:
    """Held-out records of every site and of the reference set, with the trigger and without, at every checkpoint."""

    name = "backdoor"

    def wanted(self, settings: GroupSettings, checkpoint: str) -> bool:
        """See `Probe.wanted`."""
        return bool(settings.backdoor_site)

    def measure(self, bench: Bench, stage: Stage, label: str, case: Case) -> pd.DataFrame:
        """See `Probe.measure`; the columns are those of `clients.backdoor.score_triggered`."""

        def ask() -> list[dict[str, pd.DataFrame]]:
            return [{"backdoor": table} for table in _told(bench, stage.state, case)]

        parts = bench.scoring_parts(case, weights=stage.record["sha256"], backdoor=_trigger(bench.settings))
        return bench.workshop.tables("score", f"backdoor {label}", parts, ask)["backdoor"]


class RelearnedBackdoor:
    """The same after each epoch of training on the clean forgotten records (METRICS 6, durability of a backdoor)."""

    name = "backdoor-relearned"

    def wanted(self, settings: GroupSettings, checkpoint: str) -> bool:
        """Tell whether there is a backdoor, and relearning is asked for: at the final model, after recovery."""
        return bool(settings.backdoor_site) and RELEARN.wanted(settings, checkpoint)

    def measure(self, bench: Bench, stage: Stage, label: str, case: Case) -> pd.DataFrame:
        """See `Probe.measure`; further columns are epoch, and the reason why there is no number after a divergence."""
        learnt = relearned(bench, stage, label, case)

        def ask() -> list[dict[str, pd.DataFrame]]:
            return [
                {self.name: table.assign(epoch=epoch, reason=reason, **(LOST if reason else {}))}
                for epoch, state, reason in epochs_of(stage, learnt, bench.settings.relearn_epochs)
                for table in _told(bench, state, case)
            ]

        about = {"weights": stage.record["sha256"], "relearned": learnt.key, "backdoor": _trigger(bench.settings)}
        parts = bench.scoring_parts(case, **about)
        return bench.workshop.tables("score", f"backdoor {label} relearned", parts, ask)[self.name]


def _told(bench: Bench, state: State, case: Case) -> list[pd.DataFrame]:
    """Ask every site, and the reference set, how often a model obeys the trigger."""
    plan = case.plan
    config = {"request": plan.text, "request-seed": plan.seed}
    asked = bench.workshop.online.ask_all("evaluate", "backdoor", config, state=state)
    tables = [reply.tables["backdoor"] for reply in answered(asked)]
    if bench.reference is not None:
        tables.append(score_triggered(bench.reference, state, plan.text, plan.seed))
    return tables


def _trigger(settings: GroupSettings) -> dict[str, int]:
    return {"target": settings.backdoor_target, "size": settings.backdoor_size}


PROBE = [BackdoorProbe(), RelearnedBackdoor()]
