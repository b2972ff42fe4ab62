"""SCRUB, server half: max epochs on forget records, min epochs on retain records (METHODS 2.10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from strategies.base import Needs
from strategies.inside import MUFAC, AlternatingConfig, AlternatingSite, Turn
from strategies.wire import Scalar
from unlearning.scrub import decayed
from unlearning.state import State


class ScrubConfig(AlternatingConfig):
    """Settings of SCRUB."""

    msteps: Annotated[int, Field(ge=0, description="first epochs that have a max pass; 3 in the authors' code")] = 3
    order: Annotated[
        Literal["max-first", "min-first"],
        Field(description="which pass of an epoch comes first; max in the authors' code, min in MUFAC's"),
    ] = "max-first"
    temperature: Annotated[float, Field(gt=0, description="softmax temperature T; 2 original, 4 in MUFAC's code")] = 2.0
    gamma: Annotated[float, Field(ge=0, description="weight of the task loss in min steps; 1 original")] = 1.0
    alpha: Annotated[
        float, Field(ge=0, description="weight of staying with the teacher in min steps; 0.5 original, 1 in MUFAC's")
    ] = 0.5
    smoothing: Annotated[
        float, Field(ge=0, description="weight of the distance from the teacher's parameters; 0 original, 0.5 SUPREME")
    ] = 0.0
    decay_after: Annotated[
        tuple[PositiveInt, ...],
        Field(description="epochs after which the learning rate falls tenfold; 5, 8, 9 original"),
    ] = ()
    max_norm: Annotated[
        float, Field(ge=0, description="clip of the gradient's L2 norm; 0: none, as original; 5 is ours")
    ] = 5.0


class Scrub(AlternatingSite):
    """Drive the model away from what it was on forget records, and keep it there on retain records."""

    name: ClassVar[str] = "scrub"
    title: ClassVar[str] = "SCRUB"
    citation: ClassVar[str] = "Kurmanji et al. 2023, NeurIPS"
    provenance: ClassVar[str] = (
        "original: authors' code, small scale [C]; mufac: MUFAC's code [C]; the clip and weights by forget records "
        "[OC]; a client leaves by forget and retain rounds in turns [OC]; no rewinding"
    )
    family: ClassVar[str] = "teacher"
    granularities: ClassVar[tuple[str, ...]] = ("client", "class", "patient", "sample")
    needs: ClassVar[Needs] = Needs(forget_data=True, retain_data=True, logits=True, departed_online=True)
    Config = ScrubConfig
    presets = {  # noqa: RUF012
        "lethe": {},
        "common": {},
        "original": {
            "epochs": 10,
            "optimizer": "adam",
            "lr": 5e-4,
            "weight-decay": 0.1,
            "decay-after": (5, 8, 9),
            "max-norm": 0.0,
        },
        "mufac": {**MUFAC, "msteps": 2, "order": "min-first", "temperature": 4.0, "alpha": 1.0, "max-norm": 0.0},
        "safe": {"recovery-max-norm": 5.0},
    }

    op = "scrub"
    retain_op = "scrub"

    config: ScrubConfig

    def own_settings(self) -> dict[str, Scalar]:
        """Return the weights of the objective, and which epochs do what."""
        return {
            **self._objective(),
            "msteps": self.config.msteps,
            "order": self.config.order,
            "decay-after": ",".join(map(str, self.config.decay_after)),
        }

    def turns_of(self, pair: int) -> Sequence[Turn]:
        """Return a min turn, and a max turn before or after it in the first pairs."""
        if pair > self.config.msteps:
            return ("retain",)
        return ("forget", "retain") if self.config.order == "max-first" else ("retain", "forget")

    def turn_settings(self, pair: int) -> dict[str, Scalar]:
        """Return the weights of the objective, and the learning rate of the epoch that the pair stands for."""
        rate = decayed(self.config.lr or self.schedule.lr, self.config.decay_after)
        return {**self._objective(), "msteps": 1, "lr": rate(pair)}

    def turn_states(self, turn: Turn, round_: int) -> Mapping[str, State]:
        """Return the teacher, once the model differs from it."""
        return {"teacher": self.original} if round_ > 1 else {}

    def _objective(self) -> dict[str, Scalar]:
        return {key: getattr(self.config, key) for key in ("temperature", "gamma", "alpha", "smoothing")}


METHOD = Scrub
