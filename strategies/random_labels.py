"""Random labels, server half: it draws the seed from which every site derives its new labels (METHODS 2.4)."""

from __future__ import annotations

from typing import ClassVar

from partitions.seeds import derive_seed
from strategies.base import Needs
from strategies.inside import AlternatingConfig, AlternatingSite
from strategies.wire import Scalar


class RandomLabels(AlternatingSite):
    """Train on forget records with wrong labels, fixed for the whole run, and on retain records with their own."""

    name: ClassVar[str] = "random-labels"
    title: ClassVar[str] = "Random labels"
    citation: ClassVar[str] = "baseline of Golatkar et al. 2020, arXiv 1911.04933"
    provenance: ClassVar[str] = (
        "original: settings of the reference suite [C]; weights by forget records [OC]; no class that an earlier "
        "request forgot is given out [OC]; a client leaves by forget and retain rounds in turns [OC]"
    )
    family: ClassVar[str] = "fine-tuning"
    granularities: ClassVar[tuple[str, ...]] = ("client", "class", "patient", "sample")
    needs: ClassVar[Needs] = Needs(forget_data=True, retain_data=True, logits=True, departed_online=True)
    Config = AlternatingConfig
    presets = {  # noqa: RUF012
        "lethe": {},
        "common": {},
        "original": {"epochs": 3, "optimizer": "adam", "lr": 1e-4, "weight-decay": 0.0, "batch-size": 128},
        "safe": {"max-norm": 5.0, "recovery-max-norm": 5.0},
    }

    op = "relabel"
    retain_op = "relabel"

    def own_settings(self) -> dict[str, Scalar]:
        """Return the seed of the labels."""
        return {"label-seed": derive_seed(self.seed, "random-labels")}


METHOD = RandomLabels
