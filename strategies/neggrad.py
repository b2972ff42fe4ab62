"""NegGrad, server half: the holders of forget records descend the negated loss once (METHODS 2.8)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from strategies.base import Needs
from strategies.inside import MUFAC, InsideConfig, InsideSite
from strategies.wire import Scalar


class NegGradConfig(InsideConfig):
    """Settings of NegGrad."""

    bn_mode: Annotated[
        Literal["eval", "train"],
        Field(description="BatchNorm while stepping; eval keeps the statistics, train in MUFAC's code"),
    ] = "eval"
    paced_by: Annotated[
        Literal["forget", "retain"],
        Field(description="an epoch is once through the forget records, or as many steps as retain batches (MUFAC)"),
    ] = "forget"


class NegGrad(InsideSite):
    """Gradient ascent on the forget records with the whole training optimiser, its weight decay included."""

    name: ClassVar[str] = "neggrad"
    title: ClassVar[str] = "NegGrad"
    citation: ClassVar[str] = "baseline of Golatkar et al. 2020, arXiv 1911.04933"
    provenance: ClassVar[str] = (
        "original: SUPREME's settings [C]; mufac: MUFAC's [C], but no step is skipped for "
        "the size of its batch [OC]; BatchNorm is frozen except in mufac [OC]; the safe preset's clip is PGA's value"
    )
    family: ClassVar[str] = "ascent"
    granularities: ClassVar[tuple[str, ...]] = ("client", "class", "patient", "sample")
    needs: ClassVar[Needs] = Needs(forget_data=True, departed_online=True)
    Config = NegGradConfig
    presets = {  # noqa: RUF012
        "lethe": {},
        "common": {},
        "original": {"epochs": 5, "lr": 0.02, "momentum": 0.9, "weight-decay": 5e-4},
        "mufac": {**MUFAC, "bn-mode": "train", "paced-by": "retain"},
        "safe": {"max-norm": 5.0, "recovery-max-norm": 5.0},
    }

    op = "negate"
    opens = "forget"

    config: NegGradConfig

    def own_settings(self) -> dict[str, Scalar]:
        """Return what paces an epoch."""
        return {"paced-by": self.config.paced_by}


METHOD = NegGrad
