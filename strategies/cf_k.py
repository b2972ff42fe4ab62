"""CF-k, server half: FedAvg on retained records of which only the last k layers learn (METHODS 2.2)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from partitions.errors import RunFailed
from strategies.base import MethodConfig, Needs, UnlearningStrategy
from strategies.partial import masks_to_send, whole
from strategies.recording import sample_sites
from strategies.rounds import Ask
from unlearning.cf_k import last_layers, parameters_of
from unlearning.layers import Layer
from unlearning.state import State


class LastLayersConfig(MethodConfig):
    """Settings of CF-k and EU-k."""

    k: Annotated[int, Field(ge=1, description="layers that learn, from the last; 3 in MUFAC")] = 3
    definition: Annotated[
        Literal["goel", "mufac"],
        Field(description="a layer is a convolution or linear layer (the authors) or a top-level module (MUFAC)"),
    ] = "goel"
    rounds: Annotated[
        int,
        Field(ge=0, description="rounds; 0: as many as the schedule's unlearn-epochs, each of `epochs` [our choice]"),
    ] = 0
    epochs: Annotated[int, Field(ge=0, description="local epochs of a round [our choice]")] = 1


class LastLayers(UnlearningStrategy):
    """Train the last k layers on retained records, everything before them frozen; what CF-k and EU-k share."""

    family: ClassVar[str] = "fine-tuning"
    granularities: ClassVar[tuple[str, ...]] = ("client", "class", "patient", "sample")
    needs: ClassVar[Needs] = Needs(retain_data=True)
    Config = LastLayersConfig

    config: LastLayersConfig
    _names: tuple[str, ...] = ()

    @property
    def rounds(self) -> int:
        """Return as many rounds of one epoch as the schedule has unlearning epochs, unless the settings say more."""
        return self.config.rounds or self.schedule.unlearn_epochs

    @property
    def chosen(self) -> tuple[Layer, ...]:
        """Return the layers that learn; raises `RunFailed` for a model without convolution or linear layers."""
        if not self.layers:
            raise RunFailed(f"{self.name} chooses among the layers of the model, and none is known")
        return last_layers(self.layers, self.config.k, self.config.definition)

    def begin(self, state: State) -> None:
        """Note what the model's parameters are called."""
        self._names = tuple(state.params)

    def ask_for(self, round_: int) -> Ask:
        """Ask the sites that stay to train the last layers on what they retain; with k = all that is fine-tuning."""
        sites = sample_sites(self.request.retain_holders, self.schedule.fraction_train, self.seed, self.name, round_)
        config = {**self.step_config(round_, "retain"), "epochs": self.epochs}
        if len(self.chosen) == len(self.layers):
            return Ask("recover", sites, config)
        trainable = whole(parameters_of(self.chosen, self._names, self.config.definition))
        return Ask("recover", sites, config, masks_to_send(trainable))

    @property
    def epochs(self) -> int:
        """Return the local epochs of a round."""
        return self.config.epochs


class CatastrophicForgetting(LastLayers):
    """Go on training the last k layers on retained records, and count on them to forget the rest."""

    name: ClassVar[str] = "cf-k"
    title: ClassVar[str] = "CF-k (catastrophic forgetting of the last k layers)"
    citation: ClassVar[str] = "Goel et al. 2022, arXiv 2201.06640"
    provenance: ClassVar[str] = (
        "layers, norms and epochs from the authors' code; the other definition from MUFAC's notebooks; the federated "
        "rounds are our choice. A site sends the whole model, of which the frozen part is unchanged"
    )
    presets = {"lethe": {}, "original": {"rounds": 30}}  # noqa: RUF012


METHOD = CatastrophicForgetting
