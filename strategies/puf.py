"""PUF, server half: one round in which the forget holders' updates count negatively (METHODS 1.6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from strategies.base import MethodConfig, Needs, UnlearningStrategy
from strategies.recording import sample_sites
from strategies.rounds import Ask, Contribution, Merged
from unlearning.divergence import growth_of
from unlearning.puf import capped
from unlearning.state import State, distance


class PufConfig(MethodConfig):
    """Settings of PUF."""

    mode: Annotated[
        Literal["special", "regular"],
        Field(description="only the forget holders train (the authors' default), or every site does as in any round"),
    ] = "special"
    eta: Annotated[
        float,
        Field(
            ge=0,
            description="weight of the negated update, for one epoch: it is divided by the epochs (ours), so "
            "that the step keeps its length; 2 in the authors' special mode, 20 in their regular one",
        ),
    ] = 2.0
    epochs: Annotated[
        int, Field(ge=0, description="local epochs; 0: the schedule's unlearn-epochs [Lethe paper]; 1 original")
    ] = 0
    update_max_norm: Annotated[
        float, Field(ge=0, description="cap of the L2 norm of the round's whole step; 0: none, as in the original")
    ] = 0.0


class Puf(UnlearningStrategy):
    """Ask for an ordinary update on the forget records now, and go the other way.

    In the regular mode a site with both kinds of record trains on each apart, and the weights are of all records, those
    to forget included: the retained updates are not renormalised.
    """

    name: ClassVar[str] = "puf"
    title: ClassVar[str] = "PUF (negated pseudo-gradients)"
    citation: ClassVar[str] = "Mora et al. 2025, arXiv 2504.05822"
    provenance: ClassVar[str] = (
        "authors' code, but for the buffers, which it negates too and we keep; class requests, the division of eta by "
        "the epochs and the cap are ours; five epochs from the Lethe paper"
    )
    family: ClassVar[str] = "ascent"
    granularities: ClassVar[tuple[str, ...]] = ("client", "class", "patient", "sample")
    needs: ClassVar[Needs] = Needs(forget_data=True, departed_online=True)
    Config = PufConfig
    presets = {  # noqa: RUF012
        "lethe": {},
        "original": {"epochs": 1},
        "original-regular": {"mode": "regular", "eta": 20.0, "epochs": 1},
        "safe": {"recovery-max-norm": 5.0},
    }

    config: PufConfig

    @classmethod
    def needs_of(cls, config: MethodConfig) -> Needs:
        """Return what the mode needs: in the regular one the retained records too."""
        regular = isinstance(config, PufConfig) and config.mode == "regular"
        return replace(cls.needs, retain_data=True) if regular else cls.needs

    @property
    def rounds(self) -> int:
        """Return 1."""
        return 1

    def ask_for(self, round_: int) -> Ask:
        """Ask the forget holders, and in the regular mode the retain holders sampled for the round."""
        regular = self.config.mode == "regular"
        sites, request = self.request.forget_holders, self.request
        if regular:
            share = self.schedule.fraction_train
            sampled = sample_sites(request.retain_holders, share, self.seed, self.name, round_)
            sites = tuple(sorted({*sites, *sampled}))
        config = self.step_config(round_, "both" if regular else "forget")
        epochs = self.config.epochs or self.schedule.unlearn_epochs
        own = {"epochs": epochs, "eta": self.config.eta / max(epochs, 1)}
        return Ask("pseudo_gradient", sites, {**config, **own}, weight_key="num-examples")

    def merge(self, round_: int, state: State, contributions: Sequence[Contribution]) -> Merged:
        """Average the signed models by the records each site trained on."""
        merged = super().merge(round_, state, contributions)
        if merged.stop:
            return merged
        after = merged.state
        if self.config.update_max_norm:
            after = capped(state, after, self.config.update_max_norm)
        size = state.norm()
        if why := growth_of(size, after.norm()):
            return replace(merged, state=state, stop=why)
        remark = f"a step of norm {distance(after, state):.3g} on a model of norm {size:.3g}"
        return replace(merged, state=after, remarks=(remark,))


METHOD = Puf
