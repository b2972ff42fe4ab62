"""EU-k, server half: the last k layers start afresh, then learn from retained records alone (METHODS 2.2)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from partitions.seeds import derive_seed
from strategies.cf_k import LastLayers, LastLayersConfig
from strategies.plans import Outcome
from unlearning.eu_k import reinitialised
from unlearning.state import State


class ExactUnlearningConfig(LastLayersConfig):
    """Settings of EU-k."""

    budget: Annotated[
        Literal["unlearn", "training"],
        Field(description="train as `rounds` and `epochs` say, or as long as the original was trained (the authors)"),
    ] = "unlearn"


class ExactUnlearning(LastLayers):
    """Initialise the last k layers again and train them on retained records, on top of frozen features.

    The server draws the weights, so that every site starts from the same ones.
    """

    name: ClassVar[str] = "eu-k"
    title: ClassVar[str] = "EU-k (exact unlearning of the last k layers)"
    citation: ClassVar[str] = "Goel et al. 2022, arXiv 2201.06640"
    provenance: ClassVar[str] = (
        "layers, initialisation and budget from the authors' code, where norms keep what they learnt; the federated "
        "rounds are our choice. A site sends the whole model, of which the frozen part is unchanged"
    )
    Config = ExactUnlearningConfig
    presets = {"lethe": {}, "original": {"budget": "training"}}  # noqa: RUF012

    config: ExactUnlearningConfig

    def run(self, state: State) -> Outcome:
        """Unlearn, starting from `state` with fresh last layers."""
        return self.run_rounds(reinitialised(state, self.chosen, derive_seed(self.seed, self.name)), self.rounds)

    @property
    def rounds(self) -> int:
        """Return the rounds of the training where that is the budget, else as in CF-k."""
        return self.schedule.rounds if self.config.budget == "training" else super().rounds

    @property
    def epochs(self) -> int:
        """Return the local epochs of the training where that is the budget, else as in CF-k."""
        return self.schedule.local_epochs if self.config.budget == "training" else super().epochs


METHOD = ExactUnlearning
