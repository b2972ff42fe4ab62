"""Bad Teacher, server half: it draws the seed of the one bad teacher that all sites build (METHODS 2.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from partitions.seeds import derive_seed
from strategies.base import Needs
from strategies.inside import AlternatingConfig, AlternatingSite, Turn
from strategies.wire import Scalar
from unlearning.state import State


class BadTeacherConfig(AlternatingConfig):
    """Settings of Bad Teacher."""

    temperature: Annotated[float, Field(gt=0, description="softmax temperature; 1 in the authors' code")] = 1.0
    retain_share: Annotated[
        float,
        Field(gt=0, le=1, description="share of a site's retain records that is used; 0.3 original"),
    ] = 0.3
    reduction: Annotated[
        Literal["batchmean", "mean"],
        Field(description="batchmean: a divergence in nats; mean, as in the authors' code: divided by C"),
    ] = "batchmean"


class BadTeacher(AlternatingSite):
    """Teach the forget records by a network that knows nothing, and a share of the others by the model as it was."""

    name: ClassVar[str] = "bad-teacher"
    title: ClassVar[str] = "Bad Teacher"
    citation: ClassVar[str] = "Chundawat et al. 2023, AAAI"
    provenance: ClassVar[str] = (
        "original: authors' code [C]; batchmean by default and weights by forget records [OC]; a client leaves by "
        "forget and retain rounds in turns [OC]"
    )
    family: ClassVar[str] = "teacher"
    granularities: ClassVar[tuple[str, ...]] = ("client", "class", "patient", "sample")
    needs: ClassVar[Needs] = Needs(forget_data=True, retain_data=True, logits=True, departed_online=True)
    Config = BadTeacherConfig
    presets = {  # noqa: RUF012
        "lethe": {},
        "common": {},
        "original": {
            "epochs": 1,
            "optimizer": "adam",
            "lr": 1e-4,
            "weight-decay": 0.0,
            "batch-size": 256,
            "reduction": "mean",
        },
        "safe": {"max-norm": 5.0, "recovery-max-norm": 5.0},
    }

    op = "two_teachers"
    retain_op = "two_teachers"

    config: BadTeacherConfig

    def own_settings(self) -> dict[str, Scalar]:
        """Return what both teachers teach, and the seed of the bad one."""
        return {
            "teacher-seed": derive_seed(self.seed, "bad-teacher"),
            "temperature": self.config.temperature,
            "retain-share": self.config.retain_share,
            "reduction": self.config.reduction,
        }

    def turn_states(self, turn: Turn, round_: int) -> Mapping[str, State]:
        """Return the good teacher where it teaches."""
        return {"teacher": self.original} if turn == "retain" else {}


METHOD = BadTeacher
