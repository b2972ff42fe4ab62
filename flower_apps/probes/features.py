"""Penultimate features of a few records to forget and to retain, and their map; sites may refuse."""

from __future__ import annotations

import pandas as pd

from evaluation.features import TABLE, refused, with_map
from flower_apps.cases import Case
from flower_apps.probes.base import Bench
from flower_apps.settings import GroupSettings
from flower_apps.sites import answered
from flower_apps.stages import Stage

VERSION = 1
"""Raised when a change makes old features or maps wrong."""


class Features:
    """See `flower_apps.probes.base.Probe`; the table is that of `evaluation.features`."""

    name = TABLE

    def wanted(self, settings: GroupSettings, checkpoint: str) -> bool:
        """Tell whether the setting ``features`` asks for any."""
        return settings.features > 0

    def measure(self, bench: Bench, stage: Stage, label: str, case: Case) -> pd.DataFrame:
        """Ask every site, or none where one says it refuses: that is not kept, as a site may change its mind."""
        if sites := bench.workshop.refusing("features"):
            return refused(sites)
        most, seed = bench.settings.features, case.plan.seed

        def ask() -> list[dict[str, pd.DataFrame]]:
            config = {"request": case.plan.text, "request-seed": seed, "most": most}
            replies = answered(bench.workshop.online.ask_all("evaluate", "features", config, state=stage.state))
            found = [reply.tables[TABLE] for reply in replies]
            told = [table for table in found if len(table)] or found[:1]
            return [{TABLE: with_map(pd.concat(told, ignore_index=True))}]

        about = {"weights": stage.record["sha256"], "features": [VERSION, most, seed]}
        return bench.workshop.tables("score", f"features {label}", bench.scoring_parts(case, **about), ask)[TABLE]


PROBE = Features()
