"""BFU, server half (METHODS 1.11): the forget holders unlearn around a KL anchor; replace the model or average."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from strategies.base import MethodConfig, Needs, UnlearningStrategy
from strategies.rounds import Ask, Contribution


class BfuConfig(MethodConfig):
    """Settings of BFU."""

    beta: Annotated[float, Field(ge=0, description="weight of the anchor [Lethe paper]")] = 0.05
    eta_forget: Annotated[float, Field(ge=0, description="weight of the forget loss [authors' code]")] = 0.1
    eta_share: Annotated[
        float, Field(ge=0, description="weight of the holder's own retained loss (BFU-SS); 0: BFU [authors' code]")
    ] = 0.1
    scale: Annotated[
        float, Field(gt=0, description="posterior deviation over that of each tensor's entries [our choice]")
    ] = 0.1
    loss_cap: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=True,
            description="forget loss that pushes no further; 0: 2 ln C [our choice], inf: none, and it collapses",
        ),
    ] = 0.0
    stop: Annotated[
        float,
        Field(ge=0, le=1, description="forget accuracy below which two epochs end the step; 0: max(0.1, 1/C)"),
    ] = 0.0
    merge: Annotated[
        Literal["replace", "fedavg"],
        Field(
            description="replace: the holders' mean becomes the model [our choice]; fedavg: the others count as "
            "unchanged, as in the authors' code"
        ),
    ] = "replace"
    optimizer: Annotated[Literal["sgd", "adam"], Field(description="sgd as in training, adam original")] = "sgd"
    lr: Annotated[float, Field(ge=0, description="learning rate; 0: the training's")] = 0.0
    epochs: Annotated[int, Field(ge=0, description="local epochs; 0: the schedule's unlearn-epochs")] = 0
    max_norm: Annotated[float, Field(ge=0, description="clip of the gradient's L2 norm [authors' code]")] = 5.0
    bn_mode: Annotated[
        Literal["eval", "train"], Field(description="BatchNorm of the step; eval keeps the statistics [our choice]")
    ] = "eval"


class Bfu(UnlearningStrategy):
    """Climb the forget loss while a mean-field Gaussian posterior over the weights stays near the original's."""

    name: ClassVar[str] = "bfu"
    title: ClassVar[str] = "BFU"
    citation: ClassVar[str] = "Wang et al. 2023, ASIA CCS"
    provenance: ClassVar[str] = (
        "weights, clip, stop and optimiser from the authors' code, beta from the Lethe paper; the anchor is a portable "
        "mean-field form of ours (the original makes one middle layer variational), and so are cap and merge"
    )
    family: ClassVar[str] = "Bayesian"
    granularities: ClassVar[tuple[str, ...]] = ("client", "class", "patient", "sample")
    needs: ClassVar[Needs] = Needs(forget_data=True, retain_data=True, departed_online=True)
    Config = BfuConfig
    presets = {  # noqa: RUF012
        "lethe": {},
        "common": {},
        "original": {"optimizer": "adam", "lr": 1e-3, "epochs": 41, "merge": "fedavg", "loss-cap": float("inf")},
        "safe": {"recovery-max-norm": 5.0},
    }

    config: BfuConfig

    @property
    def rounds(self) -> int:
        """Return 1."""
        return 1

    def ask_for(self, round_: int) -> Ask:
        """Ask the forget holders to minimise the objective, on the records that they retain as well."""
        shares = "both" if self.config.eta_share else "forget"
        own = {
            "beta": self.config.beta,
            "eta-forget": self.config.eta_forget,
            "eta-share": self.config.eta_share,
            "scale": self.config.scale,
            "loss-cap": self.config.loss_cap,
            "stop": self.config.stop,
            "optimizer": self.config.optimizer,
            "lr": self.config.lr or self.schedule.lr,
            "epochs": self.config.epochs or self.schedule.unlearn_epochs,
            "max-norm": self.config.max_norm,
            "bn-mode": self.config.bn_mode,
        }
        return Ask("unlearn_bayesian", self.request.forget_holders, {**self.step_config(round_, shares), **own})

    def weights_of(self, round_: int, contributions: Sequence[Contribution]) -> dict[str, float]:
        """Return shares by forget records, or for fedavg by all records, those of the sites that idle included."""
        if self.config.merge == "replace":
            return super().weights_of(round_, contributions)
        sizes = {site: count.num_forget + count.num_retain for site, count in self.request.counts.items()}
        total = sum(sizes.values())
        return {c.site: sizes[c.site] / total for c in contributions if c.update is not None}


METHOD = Bfu
