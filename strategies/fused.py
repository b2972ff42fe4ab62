"""FUSED, server half: the sites that stay train adapters in the layers that forgetting concerns (METHODS 1.13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field

from partitions.errors import RunFailed
from partitions.seeds import derive_seed
from strategies.base import MethodConfig, Needs, UnlearningStrategy
from strategies.history import History
from strategies.partial import TRAINABLE, PartialRecovery, masks_to_send, whole
from strategies.recording import sample_sites
from strategies.recovery import RecoveryHook
from strategies.rounds import Ask, Contribution, Merged
from strategies.wire import Scalar
from unlearning.fused import average, critical_layers, layer_scores, low_rank_start, merged_weight, sparse_mask
from unlearning.layers import Layer
from unlearning.partial import confined
from unlearning.state import State, Tensors


class FusedConfig(MethodConfig):
    """Settings of FUSED."""

    adapter: Annotated[
        Literal["sparse", "lora"],
        Field(description="a fixed random part of the weights (paper) or a low-rank term (the authors' code)"),
    ] = "sparse"
    layer_share: Annotated[
        float, Field(gt=0, le=1, description="share of the layers that get an adapter, at least two [our choice]")
    ] = 0.2
    density: Annotated[
        float, Field(gt=0, le=1, description="sparse: share of a weight that may change [our choice]")
    ] = 0.1
    rank: Annotated[int, Field(ge=1, description="lora: rank; 16 in the authors' code")] = 16
    lora_alpha: Annotated[float, Field(gt=0, description="lora: factor, over the rank; 32 in the authors' code")] = 32.0
    dropout: Annotated[
        float, Field(ge=0, lt=1, description="lora: dropout of an adapter's input; 0.1 in the authors' code")
    ] = 0.1


@dataclass(frozen=True)
class NothingLearnt(RecoveryHook):
    """The recovery of a model whose adapters never moved: the base is frozen, so there is nothing to train."""

    def message_config(self, round_: int) -> Mapping[str, Scalar]:
        """Ask for no epochs."""
        return {**super().message_config(round_), "epochs": 0}


class Fused(UnlearningStrategy):
    """Train adapters on retained records, on top of the frozen model, in the layers that the forget records moved most.

    The first round chooses the layers, from the recorded last update of each departing site where there is a history,
    else from one training of the forget holders on their forget records, which is not applied. As many rounds as
    recovery has follow. The low-rank form averages A and B apart, the usual approximation of averaging B A. The sparse
    form lives in the weights: a site's weight decay pulls its entries towards zero, not towards the original.
    """

    name: ClassVar[str] = "fused"
    title: ClassVar[str] = "FUSED"
    citation: ClassVar[str] = "Zhong et al. 2025, CVPR"
    provenance: ClassVar[str] = (
        "low-rank settings and frozen base from the authors' code, which names its layers by hand; sparse adapters and "
        "the choice of layers are reconstructed, their density and share our choice. Whole models travel, of which all "
        "but the adapters is unchanged. With a history no departing site is asked. "
        "Adapter rounds come before the shared recovery, in which the low-rank form trains its layers' whole weights"
    )
    family: ClassVar[str] = "overwriting"
    granularities: ClassVar[tuple[str, ...]] = ("client", "class", "patient", "sample")
    needs: ClassVar[Needs] = Needs(history_helps=True, forget_data=True, retain_data=True, departed_online=True)
    Config = FusedConfig
    presets = {"lethe": {}, "original": {"adapter": "lora"}}  # noqa: RUF012
    memory_copies = 1

    config: FusedConfig
    _base: State
    _scores: dict[str, float]
    _factors: Tensors

    @property
    def rounds(self) -> int:
        """Return one round to choose the layers and the rounds of recovery; 0 where there are none of those."""
        return 1 + self.schedule.recovery_rounds if self.schedule.recovery_rounds else 0

    def begin(self, state: State) -> None:
        """Keep the model that must forget: every adapter lies on top of it."""
        if not self.layers:
            raise RunFailed("fused chooses among the layers of the model, and none is known")
        self._base, self._scores, self._factors = state, {}, {}

    def restore(self, history: History, round_: int) -> None:
        """Take up the scores of the layers and the factors."""
        self._scores = {name: float(score) for name, score in history.server(1, "scores").items()}
        self._factors = history.server(round_, "adapter")

    def ask_for(self, round_: int) -> Ask:
        """Ask the forget holders for a probe, where no history tells; later, the sites that stay for their adapters."""
        if round_ == 1:
            sites = () if self._recorded else self.request.forget_holders
            config = {**self.step_config(round_, "forget"), "epochs": self.schedule.local_epochs}
            return Ask("train", sites, config, weight_key="num-forget")
        sites = sample_sites(self.request.retain_holders, self.schedule.fraction_train, self.seed, self.name, round_)
        config = {**self.step_config(round_, "retain"), "epochs": self.schedule.recovery_epochs}
        if self.config.adapter == "sparse":
            return Ask("recover", sites, config, masks_to_send(self._masks(self._base, self._chosen)), "num-examples")
        low_rank: dict[str, Scalar | list[str]] = {
            "scale": self.config.lora_alpha / self.config.rank,
            "dropout": self.config.dropout,
            "layers": [layer.name for layer in self._chosen],
        }
        weights = {layer.weight: self._base.params[layer.weight] for layer in self._chosen}
        states = {"base": State(weights, {}, {}), "adapter": State(self._adapter, {}, {})}
        return Ask("adapt", sites, {**config, **low_rank}, states, "num-examples")

    def merge(self, round_: int, state: State, contributions: Sequence[Contribution]) -> Merged:
        """Choose the layers, or average the adapters."""
        if round_ == 1:
            return self._choose(round_, state, contributions)
        if self.config.adapter == "lora":
            return self._average_factors(round_, state, contributions)
        merged = super().merge(round_, state, contributions)
        if not merged.updates:
            return merged
        held = confined(state, merged.state, self._ask.states[TRAINABLE].params)
        after = State(held.params, state.float_buffers, state.int_buffers)
        return Merged(after, merged.updates, merged.weights, merged.stop)

    def recovery_hook(self, start: State, unlearned: State) -> RecoveryHook:
        """Train what the adapters are allowed to change and nothing else: the layers that differ have one."""
        adapted = [
            layer
            for layer in self.layers
            if not torch.equal(start.params[layer.weight], unlearned.params[layer.weight])
        ]
        if not adapted:
            return NothingLearnt(self.config.recovery_max_norm)
        sparse = self.config.adapter == "sparse"
        masks = self._masks(start, adapted) if sparse else whole(layer.weight for layer in adapted)
        return PartialRecovery(self.config.recovery_max_norm, masks)

    # ------------------------------------------------------------------ the layers
    def _choose(self, round_: int, state: State, contributions: Sequence[Contribution]) -> Merged:
        read = self.history.bytes_read if self.history is not None else 0
        updates = [c.update.params for c in contributions if c.update is not None]
        if self.history is not None:
            updates += [self.history.update(last, site).params for site, last in sorted(self._recorded.items())]
        if not updates:
            return super().merge(round_, state, contributions)
        self._scores = layer_scores(self.layers, updates)
        scores = {name: torch.tensor([score], dtype=torch.float64) for name, score in self._scores.items()}
        said = "fused puts adapters into " + ", ".join(layer.name for layer in self._chosen)
        read = self.history.bytes_read - read if self.history is not None else 0
        return Merged(state, server={"scores": scores}, disk_read=read, remarks=(said,))

    @property
    def _recorded(self) -> dict[str, int]:
        """Return the last recorded round of each departing site; other requests' updates mix what stays and goes."""
        if self.history is None or self.request.granularity != "client":
            return {}
        return {
            site: round_
            for round_ in self.history.rounds
            if self.history.has_updates(round_)
            for site in self.history.record(round_).participants
            if site in self.request.forget_holders
        }

    @property
    def _chosen(self) -> tuple[Layer, ...]:
        scores = self._scores or dict.fromkeys((layer.name for layer in self.layers), 0.0)
        return critical_layers(self.layers, scores, self.config.layer_share)

    # ------------------------------------------------------------------ the adapters
    def _masks(self, base: State, layers: Sequence[Layer]) -> Tensors:
        return {
            layer.weight: sparse_mask(
                base.params[layer.weight].shape,
                self.config.density,
                derive_seed(self.seed, f"fused-{layer.name}"),
            )
            for layer in layers
        }

    @property
    def _adapter(self) -> Tensors:
        if not self._factors:
            for layer in self._chosen:
                seed = derive_seed(self.seed, f"fused-{layer.name}")
                down, up = low_rank_start(self._base.params[layer.weight], self.config.rank, seed)
                self._factors |= {f"{layer.name}.A": down, f"{layer.name}.B": up}
        return self._factors

    def _average_factors(self, round_: int, state: State, contributions: Sequence[Contribution]) -> Merged:
        usable = [c for c in contributions if "adapter" in c.arrays]
        if not usable:
            return super().merge(round_, state, contributions)
        total = sum(c.record.num_examples for c in usable)
        weights = {c.site: c.record.num_examples / total for c in usable}
        self._factors = average([c.arrays["adapter"] for c in usable], [weights[c.site] for c in usable])
        params = dict(self._base.params)
        scale = self.config.lora_alpha / self.config.rank
        for layer in self._chosen:
            down, up = self._factors[f"{layer.name}.A"], self._factors[f"{layer.name}.B"]
            params[layer.weight] = merged_weight(params[layer.weight], down, up, scale)
        after = State(params, self._base.float_buffers, self._base.int_buffers)
        stop = "; ".join(f"{c.site}: {c.diverged}" for c in usable if c.diverged)
        return Merged(after, weights=weights, stop=stop, server={"adapter": self._factors})


METHOD = Fused
