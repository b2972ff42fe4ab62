"""FedQUIT, server half: the forget holders distil once, the server averages by forget records (METHODS 1.8)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from strategies.base import MethodConfig, Needs, UnlearningStrategy
from strategies.rounds import Ask


class FedQuitConfig(MethodConfig):
    """Settings of FedQUIT."""

    temperature: Annotated[float, Field(gt=0, description="softmax temperature; 4 in the Lethe paper, 1 original")] = (
        4.0
    )
    scale_t2: Annotated[bool, Field(description="multiply the loss by T^2; the authors do not")] = False
    optimizer: Annotated[Literal["sgd", "adam"], Field(description="sgd in the Lethe paper, adam original")] = "sgd"
    lr: Annotated[float, Field(ge=0, description="learning rate; 0: the training's, as in the Lethe paper")] = 0.0
    epochs: Annotated[int, Field(ge=0, description="local epochs; 0: the schedule's unlearn-epochs")] = 0
    bn_mode: Annotated[
        Literal["eval", "train"], Field(description="BatchNorm of the student; eval for tiny forget sets")
    ] = "train"


class FedQuit(UnlearningStrategy):
    """Distil from the model itself with the true class pushed down to the smallest logit."""

    name: ClassVar[str] = "fedquit"
    title: ClassVar[str] = "FedQUIT"
    citation: ClassVar[str] = "Mora et al. 2024, arXiv 2408.07587"
    provenance: ClassVar[str] = "authors' code; temperature and optimiser of the Lethe paper"
    family: ClassVar[str] = "distillation"
    granularities: ClassVar[tuple[str, ...]] = ("client", "class", "patient", "sample")
    needs: ClassVar[Needs] = Needs(forget_data=True, logits=True, departed_online=True)
    Config = FedQuitConfig
    presets = {  # noqa: RUF012
        "lethe": {},
        "original": {"temperature": 1.0, "optimizer": "adam", "lr": 1e-4, "epochs": 1},
    }

    config: FedQuitConfig

    @property
    def rounds(self) -> int:
        """Return 1."""
        return 1

    def ask_for(self, round_: int) -> Ask:
        """Ask the forget holders to distil."""
        config = self.step_config(round_, "forget")
        own = {
            "temperature": self.config.temperature,
            "scale-t2": self.config.scale_t2,
            "optimizer": self.config.optimizer,
            "lr": self.config.lr or self.schedule.lr,
            "epochs": self.config.epochs or self.schedule.unlearn_epochs,
            "bn-mode": self.config.bn_mode,
        }
        return Ask("distil", self.request.forget_holders, {**config, **own})


METHOD = FedQuit
