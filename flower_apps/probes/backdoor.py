"""Measures how often a model obeys the trigger of the backdoor that was planted at a site (METRICS 4)."""

from __future__ import annotations

import pandas as pd

from clients.backdoor import score_triggered
from flower_apps.cases import Case
from flower_apps.probes.base import Bench
from flower_apps.settings import GroupSettings
from flower_apps.sites import answered
from flower_apps.stages import Stage


class BackdoorProbe:
    """Held-out records of every site and of the reference set, with the trigger and without, at every checkpoint."""

    name = "backdoor"

    def wanted(self, settings: GroupSettings, checkpoint: str) -> bool:
        """See `Probe.wanted`."""
        return bool(settings.backdoor_site)

    def measure(self, bench: Bench, stage: Stage, label: str, case: Case) -> pd.DataFrame:
        """See `Probe.measure`; the columns are those of `clients.backdoor.score_triggered`."""

        def ask() -> list[dict[str, pd.DataFrame]]:
            config = {"request": case.plan.text, "request-seed": case.plan.seed}
            asked = bench.workshop.online.ask_all("evaluate", "backdoor", config, state=stage.state)
            tables = [reply.tables for reply in answered(asked)]
            if bench.reference is not None:
                found = score_triggered(bench.reference, stage.state, case.plan.text, case.plan.seed)
                tables.append({"backdoor": found})
            return tables

        settings = bench.settings
        trigger = {"target": settings.backdoor_target, "size": settings.backdoor_size}
        parts = bench.scoring_parts(case, weights=stage.record["sha256"], backdoor=trigger)
        return bench.workshop.tables("score", f"backdoor {label}", parts, ask)["backdoor"]


PROBE = BackdoorProbe()
