"""FedCARE, server half (METHODS 1.9, reconstructed): ascent beside a reference, recovery without rolling back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from partitions.errors import BadInput
from partitions.requests import parse_request
from strategies.base import MethodConfig, Needs, UnlearningStrategy
from strategies.history import History
from strategies.recovery import RecoveryHook
from strategies.rounds import Ask, Contribution, Merged
from unlearning.fedcare import CONFIDENT, suppress_rollback
from unlearning.state import State, Tensors


class FedCareConfig(MethodConfig):
    """Settings of FedCARE; all values are our choice (METHODS 1.9) unless they name another source."""

    ref: Annotated[
        Literal["pseudo", "retain", "server-grad"],
        Field(
            description="what ascent spares: images inverted from the model, the holder's retained records, or a "
            "gradient that the sites that stay send each epoch"
        ),
    ] = "pseudo"
    margin: Annotated[float, Field(ge=0, description="rise of the reference loss that a unit step may cause")] = 0.0
    max_norm: Annotated[float, Field(ge=0, description="clip of the projected direction; 0: none")] = 5.0
    floor: Annotated[
        float, Field(ge=-1, le=1, description="accuracy on a forget batch that ends ascent; 0: chance, below 0: none")
    ] = 0.0
    kappa: Annotated[
        float, Field(ge=0, le=1, description="share of recovery's motion back to the former model that is removed")
    ] = 1.0
    images_per_class: Annotated[int, Field(ge=1, description="pseudo-images of each retained class")] = 16
    image_steps: Annotated[int, Field(ge=0, description="Adam steps that invert the pseudo-images")] = 200
    bn_mode: Annotated[
        Literal["eval", "train"], Field(description="BatchNorm during ascent; eval keeps the statistics")
    ] = "eval"


@dataclass(frozen=True)
class NoRollback(RecoveryHook):
    """A recovery without motion along b, from the unlearned model to the one before unlearning.

    Attributes
    ----------
    rollback : dict of str to Tensor
        b, of the parameters.
    kappa : float
        Share that is removed.
    """

    rollback: Tensors | None = None
    kappa: float = 1.0

    def after_round(self, round_: int, before: State, after: State) -> State:
        """Return `after` without that motion; buffers are FedAvg's."""
        return replace(after, params=suppress_rollback(before.params, after.params, self.rollback or {}, self.kappa))


class FedCare(UnlearningStrategy):
    """Ascend inside the half-space that spares a reference loss; recover without rolling back."""

    name: ClassVar[str] = "fedcare"
    title: ClassVar[str] = "FedCARE"
    citation: ClassVar[str] = "Li et al. 2026, arXiv 2601.22589"
    provenance: ClassVar[str] = (
        "reconstruction: ingredients (data-free proxies, projected ascent, recovery without rollback) from abstract "
        "and Lethe paper; every equation and value but the number of epochs is ours; of requests one after the other, "
        "recovery is kept from rolling back the last one only"
    )
    family: ClassVar[str] = "projection"
    granularities: ClassVar[tuple[str, ...]] = ("client", "class", "patient", "sample")
    needs: ClassVar[Needs] = Needs(forget_data=True, retain_data=True, departed_online=True)
    Config = FedCareConfig
    presets = {"lethe": {}, "common": {}, "safe": {"recovery-max-norm": 5.0}}  # noqa: RUF012
    memory_copies = 1

    config: FedCareConfig

    @property
    def rounds(self) -> int:
        """Return 1; with a gradient from the server, two for each local epoch."""
        return 2 * self.schedule.unlearn_epochs if self.config.ref == "server-grad" else 1

    def begin(self, state: State) -> None:
        """Start without a gradient; raises `BadInput` where no forget holder has the records of the reference."""
        self._gradient: Tensors = {}
        if self.config.ref == "retain" and not self._holders:
            raise BadInput(
                "fedcare.ref",
                "retain",
                "a forget holder that keeps retained records",
                f"{self.request.text} leaves none: use pseudo or server-grad",
            )

    def ask_for(self, round_: int) -> Ask:
        """Ask the forget holders to ascend, or before each such epoch the sites that stay for the gradient."""
        if self.config.ref != "server-grad":
            return self._ascent(round_, {})
        if round_ % 2:
            config = {**self.step_config(round_, "retain"), "epochs": 1}
            return Ask("retained_gradient", self.request.retain_holders, config, weight_key="num-retain")
        return self._ascent(round_, {"reference": State(self._gradient, {}, {})})

    def merge(self, round_: int, state: State, contributions: Sequence[Contribution]) -> Merged:
        """Average the models by forget records, or the gradients by retained ones."""
        sent = [c for c in contributions if "gradient" in c.arrays]
        if not sent:
            merged = super().merge(round_, state, contributions)
            return replace(merged, remarks=(*merged.remarks, *self._remarks(contributions)))
        total = sum(c.record.num_retain for c in sent)
        shares = [c.record.num_retain / total for c in sent]
        self._gradient = {name: _weighted(sent, shares, name).to(t.dtype) for name, t in state.params.items()}
        by_site = {c.site: share for c, share in zip(sent, shares, strict=True)}
        return Merged(state, {}, by_site, server={"reference": self._gradient})

    def restore(self, history: History, round_: int) -> None:
        """Take up the gradient."""
        self._gradient = history.server(round_, "reference")

    def recovery_hook(self, start: State, unlearned: State) -> RecoveryHook:
        """Return a hook that removes the motion from `unlearned` back to `start`, besides the clip."""
        rollback = {name: start.params[name] - unlearned.params[name] for name in start.params}
        return NoRollback(self.config.recovery_max_norm, rollback, self.config.kappa)

    def _ascent(self, round_: int, states: dict[str, State]) -> Ask:
        epochs = {"epochs": 1} if states else {}
        own = {
            "reference": self.config.ref,
            "margin": self.config.margin,
            "max-norm": self.config.max_norm,
            "floor": self.config.floor,
            "bn-mode": self.config.bn_mode,
            "classes": self._retained_classes() if self.config.ref == "pseudo" else [],
            "images-per-class": self.config.images_per_class,
            "image-steps": self.config.image_steps,
        }
        records = "both" if self.config.ref == "retain" else "forget"
        return Ask("ascend_beside", self._holders, {**self.step_config(round_, records), **epochs, **own}, states)

    @property
    def _holders(self) -> tuple[str, ...]:
        holders, counts = self.request.forget_holders, self.request.counts
        return tuple(s for s in holders if self.config.ref != "retain" or counts[s].num_retain)

    def _remarks(self, contributions: Sequence[Contribution]) -> list[str]:
        losses = {c.site: float(c.metrics.get("reference-loss", 0.0)) for c in contributions}
        unsure = [
            f"{site}: its pseudo-images have a loss of {loss:.3g} (above {CONFIDENT}), so what they spare is noise"
            for site, loss in losses.items()
            if loss > CONFIDENT
        ]
        left_out = [s for s in self.request.forget_holders if s not in self._holders]
        return unsure + ([f"without retained records, so not asked: {', '.join(left_out)}"] if left_out else [])

    def _retained_classes(self) -> list[str]:
        """Return the classes that the sites that stay say they hold, but for those that the request names."""
        named = {v for s in parse_request(self.request.text).steps if s.granularity == "class" for v in s.values}
        described = [self.federation.roster.described.get(site, {}) for site in self.request.retain_holders]
        held = {label for facts in described for label in json.loads(str(facts.get("class-counts", "{}")))}
        return sorted(held - named, key=lambda label: (len(label), label))


def _weighted(sent: Sequence[Contribution], shares: Sequence[float], name: str) -> Tensor:
    """Sum in fp64, in the order of the sites."""
    terms = [share * c.arrays["gradient"][name].double() for c, share in zip(sent, shares, strict=True)]
    return torch.stack(terms).sum(0)


METHOD = FedCare
