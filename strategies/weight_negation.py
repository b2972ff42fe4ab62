"""NoT, server half: the server negates one layer, recovery does the rest (METHODS 1.7). Registered as `not`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from partitions.errors import BadInput, RunFailed, unknown_name
from strategies.base import MethodConfig, Needs, UnlearningStrategy
from strategies.rounds import Ask, Contribution, Merged
from unlearning.layers import Layer
from unlearning.state import State
from unlearning.weight_negation import first_layer, negate


class WeightNegationConfig(MethodConfig):
    """Settings of NoT."""

    layer: Annotated[
        str,
        Field(description="layer to negate; empty: the first convolution run, else the first linear layer [Lethe]"),
    ] = ""
    negate_bn_mean: Annotated[
        bool, Field(description="also correct the running mean of the BatchNorm behind it; the original does not")
    ] = False


class WeightNegation(UnlearningStrategy):
    """Multiply one layer's weights by -1, without any site; fine-tuning on retained records is the recovery."""

    name: ClassVar[str] = "not"
    title: ClassVar[str] = "NoT (weight negation)"
    citation: ClassVar[str] = "Khalil et al. 2025, CVPR"
    provenance: ClassVar[str] = (
        "first layer from the Lethe paper; weight without bias as in the FedQUIT authors' re-implementation; the "
        "authors' code is not public; choice of layer per architecture and the BatchNorm option are ours"
    )
    family: ClassVar[str] = "overwriting"
    granularities: ClassVar[tuple[str, ...]] = ("client", "class", "patient", "sample")
    needs: ClassVar[Needs] = Needs()
    Config = WeightNegationConfig
    presets = {"lethe": {}, "safe": {"recovery-max-norm": 5.0}}  # noqa: RUF012

    config: WeightNegationConfig

    @property
    def rounds(self) -> int:
        """Return 1, the server's own."""
        return 1

    def ask_for(self, round_: int) -> Ask:
        """Ask nobody."""
        return Ask("", (), {})

    def merge(self, round_: int, state: State, contributions: Sequence[Contribution]) -> Merged:
        """Negate the layer.

        Raises
        ------
        RunFailed
            When the model has neither a convolution nor a linear layer.
        BadInput
            When the configured layer is not one of the model's.
        """
        layer = self._chosen()
        after = negate(state, layer, negate_bn_mean=self.config.negate_bn_mean)
        return Merged(after, remarks=(f"negated {layer.weight}",))

    def _chosen(self) -> Layer:
        first = first_layer(self.layers)
        if first is None:
            raise RunFailed("not needs a convolution or a linear layer to negate, and the model runs none")
        chosen = {layer.name: layer for layer in self.layers}.get(self.config.layer, first)
        if self.config.layer and chosen.name != self.config.layer:
            raise unknown_name("not.layer", self.config.layer, {layer.name for layer in self.layers})
        if self.config.negate_bn_mean and not chosen.norm:
            raise BadInput("not.negate-bn-mean", True, f"false: no BatchNorm follows {chosen.name or 'the layer'}")
        return chosen


METHOD = WeightNegation
