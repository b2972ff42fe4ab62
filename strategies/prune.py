"""Pruning, server half: add up every site's activations, zero the class's channels, keep them zero (METHODS 1.5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from partitions.errors import BadInput, RunFailed
from partitions.requests import parse_request
from strategies.base import MethodConfig, Needs, UnlearningStrategy
from strategies.partial import PartialRecovery
from strategies.recovery import RecoveryHook
from strategies.rounds import Ask, Contribution, Merged
from unlearning.layers import Layer
from unlearning.prune import (
    Activations,
    choose,
    class_scores,
    pooled,
    prunable,
    trainable_filters,
    zero_channels,
    zeroed,
)
from unlearning.state import State

_ONLY_CLASSES = "it finds the channels that tell one class from the others; request a class"


class PruneConfig(MethodConfig):
    """Settings of class-discriminative pruning."""

    rho: Annotated[float, Field(ge=0, le=1, description="share of the channels to prune; 0.1 in the Lethe paper")] = 0.1
    scope: Annotated[
        Literal["auto", "conv", "penultimate", "all"],
        Field(
            description="prune convolutions, the layer before the head, or both; auto: convolutions where there are at "
            "least four, else both [our choice]"
        ),
    ] = "auto"
    coe: Annotated[
        float, Field(ge=0, description="balances layers of different width, log(e * channels / coe); 0: not, as usual")
    ] = 0.0


class Prune(UnlearningStrategy):
    """Zero the channels with the largest TF-IDF for the class, and fine-tune the others on the other classes."""

    name: ClassVar[str] = "prune"
    title: ClassVar[str] = "Class-discriminative pruning"
    citation: ClassVar[str] = "Wang et al. 2022, WWW"
    provenance: ClassVar[str] = (
        "scores from third-party copies of the scorer, whose threshold keeps the wrong end; share of the Lethe paper; "
        "the smoothed score below four classes, the limit of half a layer, the scope and the largest score of several "
        "classes are our choice. A site's counts by class show its histogram of labels"
    )
    family: ClassVar[str] = "pruning"
    granularities: ClassVar[tuple[str, ...]] = ("class",)
    needs: ClassVar[Needs] = Needs(forget_data=True, retain_data=True, logits=True)
    not_for: ClassVar[dict[str, str]] = dict.fromkeys(("client", "patient", "sample"), _ONLY_CLASSES)
    Config = PruneConfig

    config: PruneConfig

    @property
    def rounds(self) -> int:
        """Return 1."""
        return 1

    def ask_for(self, round_: int) -> Ask:
        """Ask every site that has records for its activations."""
        sites = tuple(sorted({*self.request.retain_holders, *self.request.forget_holders}))
        names = [layer.name for layer in self._prunable]
        config = {**self.step_config(round_, "both"), "epochs": 1, "layers": names}
        return Ask("activations", sites, config, weight_key="num-examples")

    def merge(self, round_: int, state: State, contributions: Sequence[Contribution]) -> Merged:
        """Score the channels on the activations of all sites together, and zero the highest."""
        parts = [Activations(dict(c.arrays["sums"]), c.arrays["counts"]["counts"]) for c in contributions if c.arrays]
        if not parts:
            return super().merge(round_, state, contributions)
        found = pooled(parts)
        means, present = found.means, found.counts > 0
        scores = {
            layer.name: class_scores(means[layer.name], present, self._classes, self.config.coe)
            for layer in self._prunable
        }
        chosen = choose(scores, self.config.rho, zero_channels(state, self._prunable))
        after = zeroed(state, self._prunable, chosen)
        pruned = {name: int(mask.sum()) for name, mask in chosen.items()}
        listed = ", ".join(f"{name}: {count} of {len(chosen[name])}" for name, count in pruned.items() if count)
        said = f"prune set {sum(pruned.values())} channels to zero ({listed or 'none'})"
        return Merged(after, remarks=(said,))

    def recovery_hook(self, start: State, unlearned: State) -> RecoveryHook:
        """Keep the zero filters zero, those of earlier requests too."""
        return PartialRecovery(self.config.recovery_max_norm, trainable_filters(unlearned, self._prunable))

    @property
    def _prunable(self) -> tuple[Layer, ...]:
        found = prunable(self.layers, self.config.scope)
        widest = math.e * min((layer.width for layer in found), default=0)
        if found and self.config.coe >= widest:
            allowed = f"below {widest:.3g}, e times the channels of the narrowest layer: more turns the ranking around"
            raise BadInput("prune.coe", self.config.coe, allowed)
        if not found:
            raise RunFailed(f"prune finds no layer to prune in scope {self.config.scope}: the model has only a head")
        return found

    @property
    def _classes(self) -> list[int]:
        return [int(value) for value in parse_request(self.request.text).steps[-1].values]


METHOD = Prune
