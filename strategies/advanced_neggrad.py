"""Advanced NegGrad, server half: sites with both kinds of record learn and unlearn in the same step (METHODS 2.9)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from strategies.base import Needs
from strategies.inside import MUFAC, InsideConfig, InsideSite
from strategies.wire import Scalar


class AdvancedNegGradConfig(InsideConfig):
    """Settings of advanced NegGrad."""

    bn_mode: Annotated[
        Literal["eval", "train", "joint"],
        Field(
            description="BatchNorm while stepping: train in two forward passes as in MUFAC's code, in one joint pass, "
            "or eval, which keeps the statistics"
        ),
    ] = "train"  # type: ignore[assignment]
    forget_weight: Annotated[float, Field(ge=0, description="weight of the negated forget loss; 1 in MUFAC's code")] = (
        1.0
    )
    cap: Annotated[
        float,
        Field(ge=0, description="cap of the forget loss in ln C; 0: none, as original; 2 is ours"),
    ] = 0.0


class AdvancedNegGrad(InsideSite):
    """Minimise the loss of a retain batch minus that of a forget batch, at the sites that hold both."""

    name: ClassVar[str] = "advanced-neggrad"
    title: ClassVar[str] = "Advanced NegGrad"
    citation: ClassVar[str] = "Choi & Na 2023, arXiv 2311.02240"
    provenance: ClassVar[str] = (
        "MUFAC's code [C], but the longer batch of a pair is cut instead of the pair skipped [OC]; weights by forget "
        "records, cap and joint pass [OC]; the safe preset's clip is PGA's value"
    )
    family: ClassVar[str] = "ascent"
    granularities: ClassVar[tuple[str, ...]] = ("class", "patient", "sample")
    not_for: ClassVar[dict[str, str]] = {
        "client": "each step needs a forget and a retain batch at the same site, and a departing site keeps no record"
    }
    needs: ClassVar[Needs] = Needs(forget_data=True, retain_data=True)
    Config = AdvancedNegGradConfig
    presets = {  # noqa: RUF012
        "lethe": {},
        "common": {},
        "original": MUFAC,
        "safe": {"max-norm": 5.0, "recovery-max-norm": 5.0, "cap": 2.0},
    }

    op = "negate_and_train"

    config: AdvancedNegGradConfig

    def own_settings(self) -> dict[str, Scalar]:
        """Return weight and cap of the forget loss."""
        return {"forget-weight": self.config.forget_weight, "cap": self.config.cap}


METHOD = AdvancedNegGrad
