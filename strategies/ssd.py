"""SSD, server half: add up every site's importances, dampen what matters most to the forget records (METHODS 2.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from strategies.base import MethodConfig, Needs, UnlearningStrategy
from strategies.rounds import Ask, Contribution, Merged
from strategies.wire import Scalar
from unlearning.ssd import Importance, dampen, pooled
from unlearning.state import State


class DampeningConfig(MethodConfig):
    """Settings that SSD and its loss-free variant share."""

    alpha: Annotated[
        float,
        Field(
            gt=0,
            allow_inf_nan=True,
            description="select what matters this many times more to the forget records; 10 in the authors' code, "
            "which may select nothing of a client request: 2 in the safe preset",
        ),
    ] = 10.0
    lambda_: Annotated[
        float, Field(ge=0, description="factor of the dampening, smaller dampens more; 1 in the authors' code")
    ] = 1.0


class SsdConfig(DampeningConfig):
    """Settings of SSD."""

    fisher: Annotated[
        Literal["batch", "sample"],
        Field(description="square the gradient of a batch's mean loss (the authors), or each record's"),
    ] = "batch"


class Dampening(UnlearningStrategy):
    """Dampen parameters in one step from statistics of all sites, without training; what SSD and LFSSD share."""

    family: ClassVar[str] = "synaptic"
    granularities: ClassVar[tuple[str, ...]] = ("client", "class", "patient", "sample")
    needs: ClassVar[Needs] = Needs(forget_data=True, retain_data=True, departed_online=True)
    op: ClassVar[str]

    config: DampeningConfig

    @property
    def rounds(self) -> int:
        """Return 1."""
        return 1

    def ask_for(self, round_: int) -> Ask:
        """Ask every site that has records, the departing one for the last time."""
        sites = tuple(sorted({*self.request.retain_holders, *self.request.forget_holders}))
        config = {**self.step_config(round_, "both"), "epochs": 1, **self.own_config()}
        return Ask(self.op, sites, config, weight_key="num-examples")

    def own_config(self) -> Mapping[str, Scalar]:
        """Return what this method adds to the message."""
        return {}

    def merge(self, round_: int, state: State, contributions: Sequence[Contribution]) -> Merged:
        """Dampen by the importances of all sites together."""
        everything = _importances(contributions, "all")
        forget = _importances(contributions, "forget")
        if not forget:
            return super().merge(round_, state, contributions)
        done = dampen(state.params, pooled(forget), pooled(everything), self.config.alpha, self.config.lambda_)
        said = f"{self.name} dampened {done.selected} of {done.total} parameters ({done.share:.2%})"
        if not done.selected:
            said = (
                f"warning: {self.name} selected no parameter at alpha={self.config.alpha:g}, the model is unchanged; "
                "lower alpha (the safe preset has 2)"
            )
        return Merged(State(done.params, state.float_buffers, state.int_buffers), remarks=(said,))


class SelectiveSynapticDampening(Dampening):
    """Dampen the parameters whose Fisher information is concentrated on the forget records."""

    name: ClassVar[str] = "ssd"
    title: ClassVar[str] = "Selective synaptic dampening"
    citation: ClassVar[str] = "Foster et al. 2024, AAAI"
    provenance: ClassVar[str] = (
        "importance, reference set, selection and defaults from the authors' code; the federated sum is exact for the "
        "same batches; batches in the order of record ids and the safe preset are our choice"
    )
    Config = SsdConfig
    presets = {"lethe": {}, "safe": {"alpha": 2.0}}  # noqa: RUF012
    op: ClassVar[str] = "importance"

    config: SsdConfig

    def own_config(self) -> Mapping[str, Scalar]:
        """Say how gradients are squared."""
        return {"fisher": self.config.fisher}


def _importances(contributions: Sequence[Contribution], name: str) -> list[Importance]:
    return [
        Importance(dict(c.arrays[name]), int(c.metrics[f"{name}-batches"])) for c in contributions if name in c.arrays
    ]


METHOD = SelectiveSynapticDampening
