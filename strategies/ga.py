"""Gradient ascent, server half: the forget holders ascend once, the server averages by forget records (METHODS 1.2)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from strategies.base import MethodConfig, Needs, UnlearningStrategy
from strategies.rounds import Ask


class GradientAscentConfig(MethodConfig):
    """Settings of gradient ascent."""

    max_norm: Annotated[
        float, Field(ge=0, description="clip of the gradient's L2 norm; 0: none, as in the paper, and it collapses")
    ] = 0.0
    bn_mode: Annotated[
        Literal["eval", "train"], Field(description="BatchNorm during ascent; eval keeps the statistics")
    ] = "eval"


class GradientAscent(UnlearningStrategy):
    """Climb the task loss on the forget records, at the sites that hold them."""

    name: ClassVar[str] = "ga"
    title: ClassVar[str] = "Gradient ascent"
    citation: ClassVar[str] = "baseline; as in Golatkar et al. 2020, arXiv 1911.04933"
    provenance: ClassVar[str] = "schedule from the Lethe paper; the safe preset's clip is PGA's value"
    family: ClassVar[str] = "ascent"
    granularities: ClassVar[tuple[str, ...]] = ("client", "class", "patient", "sample")
    needs: ClassVar[Needs] = Needs(forget_data=True, departed_online=True)
    Config = GradientAscentConfig
    presets = {"lethe": {}, "safe": {"max-norm": 5.0, "recovery-max-norm": 5.0}}  # noqa: RUF012

    config: GradientAscentConfig

    @property
    def rounds(self) -> int:
        """Return 1."""
        return 1

    def ask_for(self, round_: int) -> Ask:
        """Ask the forget holders to ascend."""
        config = self.step_config(round_, "forget")
        own = {"max-norm": self.config.max_norm, "bn-mode": self.config.bn_mode}
        return Ask("ascend", self.request.forget_holders, {**config, **own})


METHOD = GradientAscent
