"""What a probe is, and what it is given to work with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pandas as pd

from clients.site import Site
from flower_apps.cases import Case
from flower_apps.identity import Identity
from flower_apps.settings import GroupSettings
from flower_apps.stages import Stage
from flower_apps.workshop import Workshop
from strategies.base import Schedule


@dataclass(frozen=True, eq=False)
class Bench:
    """What a probe works with.

    Attributes
    ----------
    settings : GroupSettings
        The group.
    workshop : Workshop
        Finds stages, or has them computed and commits them.
    identity : Identity
        What keys are hashed from.
    schedule : Schedule
        The common schedule of training and unlearning.
    reference : Site or None
        The coordinator's reference set.
    """

    settings: GroupSettings
    workshop: Workshop
    identity: Identity
    schedule: Schedule
    reference: Site | None

    def scoring_parts(self, case: Case, **more: Any) -> Mapping[str, Any]:
        """Return what determines the scores of given weights on a case's records; `more` adds what else does."""
        meant = {site: str(found["hash"]) for site, found in case.selection.items()}
        fingerprint = self.reference.fingerprint if self.reference else ""
        return {**self.identity.scoring(fingerprint), **more, "request": case.plan.text, "of": meant}


class Probe(Protocol):
    """A further measurement of a model.

    Attributes
    ----------
    name : str
        Of the table in `evaluation.evidence.ScoredModel.tables`.
    """

    name: str

    def wanted(self, settings: GroupSettings, checkpoint: str) -> bool:
        """Tell whether the settings ask for it at a checkpoint (trained, unlearned or recovered)."""

    def measure(self, bench: Bench, stage: Stage, label: str, case: Case) -> pd.DataFrame:
        """Measure the model of `stage`, or find in the cache what it measured; `label` names the model in events."""
