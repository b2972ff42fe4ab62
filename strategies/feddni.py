"""FedDNI, server half: noise on the weights at the server, or on the inputs at the forget holders (METHODS 1.12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field

from partitions.seeds import derive_seed
from strategies.base import MethodConfig, Needs, UnlearningStrategy
from strategies.rounds import Ask, Contribution, Merged
from unlearning.divergence import too_far
from unlearning.feddni import perturb
from unlearning.state import State


class FedDniConfig(MethodConfig):
    """Settings of FedDNI."""

    mode: Annotated[
        Literal["weight", "input"],
        Field(description="noise on the weights, by the server [Lethe paper], or on the forget inputs [abstract]"),
    ] = "weight"
    sigma: Annotated[
        float, Field(ge=0, description="weight mode: deviation of the noise over the tensor's; 0.1 in the Lethe paper")
    ] = 0.1
    steps: Annotated[
        int, Field(ge=1, description="sub-steps of the weight noise, or levels of the input noise; 5, our choice")
    ] = 5
    last_level: Annotated[
        float, Field(ge=0, le=1, description="input mode: share of an input's variance left at the last level; ours")
    ] = 0.05
    max_norm: Annotated[float, Field(ge=0, description="input mode: clip of the gradient's L2 norm; 0: none")] = 0.0
    bn_mode: Annotated[
        Literal["eval", "train"], Field(description="input mode: BatchNorm; eval keeps noise out of the statistics")
    ] = "eval"


class FedDni(UnlearningStrategy):
    """Perturb what the model holds of the forget records, and let recovery heal the rest."""

    name: ClassVar[str] = "feddni"
    title: ClassVar[str] = "FedDNI (reconstruction)"
    citation: ClassVar[str] = "Usmani et al. 2025"
    provenance: ClassVar[str] = (
        "a reconstruction: gradual structured noise on the inputs from the paper's abstract, weight noise relative to "
        "each tensor and its size from the Lethe paper; schedule, low-pass filter and uniform target are ours"
    )
    family: ClassVar[str] = "noise"
    granularities: ClassVar[tuple[str, ...]] = ("client", "class", "patient", "sample")
    needs: ClassVar[Needs] = Needs()
    Config = FedDniConfig
    presets = {  # noqa: RUF012
        "lethe": {},
        "original": {"mode": "input"},
        "safe": {"recovery-max-norm": 5.0},
    }

    config: FedDniConfig

    @classmethod
    def needs_of(cls, config: MethodConfig) -> Needs:
        """Return what the mode needs: nothing for the weights; forget records and class logits for the inputs."""
        on_inputs = isinstance(config, FedDniConfig) and config.mode == "input"
        return Needs(forget_data=True, logits=True, departed_online=True) if on_inputs else cls.needs

    @property
    def rounds(self) -> int:
        """Return 1."""
        return 1

    def ask_for(self, round_: int) -> Ask:
        """Ask nobody in weight mode, and the forget holders in input mode."""
        if self.config.mode == "weight":
            return Ask("", (), {})
        own = {
            "levels": self.config.steps,
            "last-level": self.config.last_level,
            "max-norm": self.config.max_norm,
            "bn-mode": self.config.bn_mode,
        }
        return Ask("diffuse", self.request.forget_holders, {**self.step_config(round_, "forget"), **own})

    def merge(self, round_: int, state: State, contributions: Sequence[Contribution]) -> Merged:
        """Add the noise in weight mode; average by forget records in input mode."""
        if self.config.mode == "input":
            return super().merge(round_, state, contributions)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, f"{self.name}-noise", round_=round_))
        after = perturb(state, self.config.sigma, self.config.steps, generator)
        if too_far(after.norm(), state.norm()):
            return Merged(state, stop=f"noise of sigma {self.config.sigma:g} leaves nothing of the model")
        return Merged(after, remarks=(f"weight noise of {self.config.sigma:g} times each tensor's deviation",))


METHOD = FedDni
