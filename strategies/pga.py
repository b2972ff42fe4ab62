"""PGA, server half: a reference model without the departed, then their ascent in a ball around it (METHODS 1.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from partitions.requests import parse_request
from strategies.base import MethodConfig, Needs, UnlearningStrategy
from strategies.plans import Outcome
from strategies.rounds import Ask, Contribution, Merged
from unlearning.pga import NOBODY, reference
from unlearning.state import State, Tensors


class PgaConfig(MethodConfig):
    """Settings of PGA."""

    rho: Annotated[
        Annotated[float, Field(ge=0)] | Literal["auto"],
        Field(
            description="radius of the ball, L2, not squared; 10 in the Lethe paper; auto: the authors', from the "
            "distance to initial models"
        ),
    ] = 10.0
    momentum: Annotated[
        float, Field(ge=0, lt=1, description="momentum of the ascent; 0.9 in the authors' code; 0 makes steps exact")
    ] = 0.9
    max_norm: Annotated[
        float, Field(ge=0, description="clip of the gradient's L2 norm; 0: none; 5 in the authors' code")
    ] = 5.0
    lr: Annotated[float, Field(ge=0, description="learning rate; 0: the training's, as in the Lethe paper")] = 0.0
    early_stop: Annotated[
        Literal["val", "distance", "none"],
        Field(description="end the ascent when the site's held-out metric fell [Lethe paper] or by distance [authors]"),
    ] = "val"
    min_val: Annotated[
        float, Field(ge=0, le=1, description="val: share of the original's held-out metric to keep; 0.5, our choice")
    ] = 0.5
    tau: Annotated[
        float,
        Field(
            ge=0,
            description="distance: how far from the site's last model, L2, not squared; the authors' 2.2 is squared",
        ),
    ] = 1.4832
    bn_mode: Annotated[
        Literal["eval", "train"], Field(description="BatchNorm during ascent; eval keeps the statistics")
    ] = "eval"


class Pga(UnlearningStrategy):
    """Climb the departed sites' loss inside a ball around the mean model of those that stay.

    That mean is taken from the last recorded round, with the weights it had; a departed site without a part in that
    round has none in its mean. Where this cannot be done (no record, updates thinned out, only departed sites in the
    round, FedAdam, whose model is no mean, or a later request of a sequence, whose model the record does not end with),
    the sites that stay train for one more round and their mean is taken. For class, patient and sample requests the
    ball is around the model at hand (ours): nobody leaves.
    """

    name: ClassVar[str] = "pga"
    title: ClassVar[str] = "PGA (projected gradient ascent)"
    citation: ClassVar[str] = "Halimi et al. 2022, arXiv 2207.05521"
    provenance: ClassVar[str] = (
        "authors' code for reference, projection, momentum, clip and distance; radius of 10 and the stop by validation "
        "from the Lethe paper; weights in the reference, how far the metric may fall, and the ball of class, patient "
        "and sample requests are ours; no distance is squared here, as some are there"
    )
    family: ClassVar[str] = "ascent"
    granularities: ClassVar[tuple[str, ...]] = ("client", "class", "patient", "sample")
    needs: ClassVar[Needs] = Needs(history_helps=True, forget_data=True, departed_online=True)
    Config = PgaConfig
    presets = {  # noqa: RUF012
        "lethe": {},
        "original": {"rho": "auto", "lr": 0.01, "early-stop": "distance"},
        "safe": {"rho": 1.0, "recovery-max-norm": 5.0},
    }

    config: PgaConfig

    _original: State
    _disk_read = 0

    def run(self, state: State) -> Outcome:
        """Unlearn; the stage starts at the reference where the record gives it."""
        self._original = state
        start = state
        if self._last_models:
            models, shares = zip(*self._last_models.values(), strict=True)
            start = replace(state, params=reference(state.params, models, shares))
        return self.run_rounds(start, self.rounds)

    @property
    def rounds(self) -> int:
        """Return 1, or 2 where the sites that stay have to train once more."""
        return 1 if self._last_models is not None else 2

    def ask_for(self, round_: int) -> Ask:
        """Ask the sites that stay to train where the reference is missing, then the forget holders to ascend."""
        if round_ < self.rounds:
            training = {**self.step_config(round_, "retain"), "epochs": self.schedule.local_epochs}
            return Ask("recover", self.request.retain_holders, training, weight_key="num-examples")
        config = self.config
        own = {
            "rho": -1.0 if config.rho == "auto" else config.rho,
            "momentum": config.momentum,
            "max-norm": config.max_norm,
            "lr": config.lr or self.schedule.lr,
            "early-stop": config.early_stop,
            "min-val": config.min_val,
            "tau": config.tau,
            "bn-mode": config.bn_mode,
        }
        message = {**self.step_config(round_, "forget"), **own}
        return Ask("ascend_in_ball", self.request.forget_holders, message, self._compared_with())

    def merge(self, round_: int, state: State, contributions: Sequence[Contribution]) -> Merged:
        """Average: the retained sites' models by their records, then the ascended ones by their forget records."""
        merged = super().merge(round_, state, contributions)
        if round_ < self.rounds:
            return replace(merged, remarks=("the sites that stay trained one more round for the reference model",))
        return replace(
            merged, disk_read=self._disk_read, remarks=(*merged.remarks, *self._remark(state, contributions))
        )

    def _compared_with(self) -> Mapping[str, State]:
        """Return the models that the sites' early stop compares with, where it is not the one they ascend from."""
        if self.request.granularity != "client" or self.config.early_stop == "none":
            return {}
        if self.config.early_stop == "val":
            return {"original": self._original}
        models = list((self._last_models or {}).values())
        lone = len(models) == len(self.request.forget_holders) == 1
        return {"last": replace(self._original, params=models[0][0]) if lone else self._original}

    def _remark(self, state: State, contributions: Sequence[Contribution]) -> tuple[str, ...]:
        ended = [c.metrics for c in contributions if c.update is not None and "rho" in c.metrics]
        size = state.norm()
        if not ended or not size:
            return ()
        radius = max(float(metrics["rho"]) for metrics in ended)
        distances = ", ".join(f"{float(metrics['distance']):.3g}" for metrics in ended)
        share = f"rho {radius:.3g} is {radius / size:.2g} of the reference's norm {size:.3g}"
        return (f"{share}; the ascent ended at distance {distances}",)

    @cached_property
    def _last_models(self) -> dict[str, tuple[Tensors, float]] | None:
        """The departed sites' models in the last recorded round and their shares in its mean; None: train once more."""
        if self.request.granularity != "client":
            return {}
        history = self.history
        if history is None or not history.rounds or self.schedule.strategy == "fedadam":
            return None
        if len(parse_request(self.request.text).steps) > 1:
            return None
        last = history.last_complete_round
        record, already_read = history.record(last), history.bytes_read
        shares = {s: record.sites[s].weight for s in record.participants if s in self.request.departed}
        thinned = bool(shares) and not history.has_updates(last)  # a history helps, and is not needed
        if 1.0 - sum(shares.values()) < NOBODY or thinned:
            return None
        updates = {site: history.update(last, site).params for site in shares}
        before = history.before(last).params if updates else {}
        self._disk_read = history.bytes_read - already_read
        return {
            site: ({name: t + update[name] for name, t in before.items()}, shares[site])
            for site, update in updates.items()
        }


METHOD = Pga
