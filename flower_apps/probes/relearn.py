"""The relearning curve (METRICS 6): what a model knows of the forgotten records after each epoch of relearning them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from clients.scoring import score_some
from flower_apps.cases import Case
from flower_apps.probes.base import Bench
from flower_apps.settings import GroupSettings
from flower_apps.sites import answered
from flower_apps.stages import Stage, StageWork
from strategies.base import Outcome
from strategies.history import History, HistoryWriter
from strategies.relearning import run_relearning
from unlearning.state import State

VERSION = 1
"""Raised when a change makes old curves wrong."""
COLUMNS = ["epoch", "record", "site", "split", "selected", "stratum", "metric", "loss", "reason"]


class RelearningCurve:
    """Relearns the forgotten records from a recovered model and scores them after each epoch.

    The curve of gold is measured with the same random streams, so that equal models have equal curves.
    """

    name = "relearn"

    def wanted(self, settings: GroupSettings, checkpoint: str) -> bool:
        """Tell whether relearning is asked for: at the final model, after recovery."""
        return settings.relearn_epochs > 0 and checkpoint == "recovered"

    def measure(self, bench: Bench, stage: Stage, label: str, case: Case) -> pd.DataFrame:
        """Return a row a record and epoch.

        Returns
        -------
        DataFrame
            ``epoch`` (0: the model itself), record, site, split, selected, stratum, metric, loss, ``reason``. Records:
            those that the request's last step forgets, of training and holdout (selected); where none of them is held
            out, the reference set's of the same strata too, to stand in (METRICS 0.1). After a divergence metric and
            loss are NaN and the reason says why; it is empty otherwise.
        """
        learnt = relearned(bench, stage, label, case)

        def ask() -> list[dict[str, pd.DataFrame]]:
            return [
                {self.name: _told(bench, case, *found)}
                for found in _epochs(stage, learnt, bench.settings.relearn_epochs)
            ]

        parts = bench.scoring_parts(case, relearn=VERSION, weights=stage.record["sha256"], relearned=learnt.key)
        return bench.workshop.tables("score", f"score {label} relearned", parts, ask)[self.name]


def relearned(bench: Bench, stage: Stage, label: str, case: Case) -> Stage:
    """Return the stage whose history holds the model after each epoch of relearning from the model of `stage`.

    It begins where a shorter one of the same model ended.
    """
    epochs = bench.settings.relearn_epochs

    def parts(count: int) -> dict[str, Any]:
        return {
            **bench.identity.training,
            **bench.identity.request(case.plan, case.selection),
            "weights": stage.record["sha256"],
            "unlearn-seed": case.seed,
            "relearn": VERSION,
            "relearn-epochs": count,
        }

    def compute(work: StageWork) -> Outcome:
        shorter = [found for count in range(1, epochs) if (found := bench.workshop.find("relearn", parts(count)))]
        if shorter and not work.history.exists():
            shutil.copytree(shorter[-1].history, work.history)
        return run_relearning(
            bench.workshop.online,
            bench.schedule,
            case.plan,
            stage.state,
            epochs,
            seed=case.seed,
            work=HistoryWriter(work.history, keep_updates=False),
            label=f"relearn {label}",
        )

    return bench.workshop.stage("relearn", f"relearn {label}", parts(epochs), compute, keep_history=True)


def _epochs(stage: Stage, learnt: Stage, epochs: int) -> Iterator[tuple[int, State, str]]:
    """Yield every epoch from 0 with its model, and why there is none after a divergence: then the last usable one."""
    yield 0, stage.state, ""
    history = History(learnt.history)
    for epoch in range(1, epochs + 1):
        last = min(epoch, history.last_complete_round)
        bad = history.record(last).status != "ok"
        yield epoch, history.after(last), f"relearning diverged in epoch {last}: {learnt.reason}" if bad else ""


def _told(bench: Bench, case: Case, epoch: int, state: State, reason: str) -> pd.DataFrame:
    """Ask the sites that hold forgotten records for their scores, and score the reference set where it stands in."""
    plan = case.plan
    config = {"request": plan.text, "request-seed": plan.seed}
    holders = [name for name, found in case.selection.items() if found["num-forget"] or found["forget-holdout"]]
    asked = bench.workshop.online.ask("evaluate", "forgotten", holders, state=state, config=config)
    table = pd.concat([reply.tables["scorecard"] for reply in answered(asked)], ignore_index=True)
    held_out = bool((table["split"] == "holdout").any())
    if plan.granularity != "sample" and not held_out and bench.reference is not None:
        strata = table["stratum"].unique()
        alike = score_some(bench.reference, state, plan.text, plan.seed, lambda told: told["stratum"].isin(strata))
        table = pd.concat([table, alike], ignore_index=True)
    if reason:
        table = table.assign(metric=np.nan, loss=np.nan)
    return table.assign(epoch=epoch, reason=reason)[COLUMNS]


PROBE = RelearningCurve()
