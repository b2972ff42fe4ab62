"""FedRecovery, server half: one round of the server alone, over the recorded rounds (METHODS 1.10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field

from partitions.errors import RunFailed
from partitions.seeds import derive_seed
from strategies.base import MethodConfig, Needs, UnlearningStrategy
from strategies.history import History
from strategies.rounds import Ask, Contribution, Merged
from unlearning.divergence import growth_of
from unlearning.federaser import mean_update
from unlearning.fedrecovery import Correction, aggregate_without, corrected, privacy_sigma, residual
from unlearning.noise import gaussian, relative_noise
from unlearning.state import State, Tensors, norm, update_of


class FedRecoveryConfig(MethodConfig):
    """Settings of FedRecovery."""

    strength: Annotated[float, Field(ge=0, description="lambda, of the correction; 1, our choice")] = 1.0
    weights: Annotated[
        Literal["norm", "sum"],
        Field(description="rounds by the squared norm of their step, summing to one, or each in full (our ablation)"),
    ] = "norm"
    noise: Annotated[
        Literal["relative", "dp"],
        Field(description="noise relative to each tensor's deviation [Lethe paper], or of one size [third-party code]"),
    ] = "relative"
    sigma: Annotated[
        float, Field(ge=0, description="relative noise over the tensor's deviation; 0.01 in the Lethe paper")
    ] = 0.01
    sensitivity: Annotated[
        float, Field(ge=0, description="dp noise: your bound on the distance to the retrained model; nobody checks it")
    ] = 1.0
    epsilon: Annotated[float, Field(gt=0, description="dp noise: epsilon; 1, our choice")] = 1.0
    beta: Annotated[float, Field(gt=0, lt=1, description="dp noise: beta; 1e-5, our choice")] = 1e-5


class FedRecovery(UnlearningStrategy):
    """Subtract the departed sites' residuals, the part of each recorded round that only they explain, and add noise.

    In a sequence of requests it goes on from the model at hand, and a residual is what the sites of this request add to
    the rounds of those that had not left before.
    """

    name: ClassVar[str] = "fedrecovery"
    title: ClassVar[str] = "FedRecovery"
    citation: ClassVar[str] = "Zhang et al. 2023, IEEE TIFS"
    provenance: ClassVar[str] = (
        "weights of rounds and dp formula from third-party code, which disagrees with itself; the residual's algebra "
        "is derived from its definition; relative noise from the Lethe paper; the noise is DP-style only: there is no "
        "guarantee without the paper's perturbed training"
    )
    family: ClassVar[str] = "noise"
    granularities: ClassVar[tuple[str, ...]] = ("client",)
    needs: ClassVar[Needs] = Needs(history=True, every_round=True)
    not_for: ClassVar[dict[str, str]] = dict.fromkeys(
        ("class", "patient", "sample"),
        "a recorded round says what a site added to it, and not what some of its records did",
    )
    Config = FedRecoveryConfig
    presets = {  # noqa: RUF012
        "lethe": {},
        "dp": {"noise": "dp"},
        "safe": {"recovery-max-norm": 5.0},
    }

    config: FedRecoveryConfig

    @property
    def rounds(self) -> int:
        """Return 1, the server's own."""
        return 1

    def ask_for(self, round_: int) -> Ask:
        """Ask nobody."""
        return Ask("", (), {})

    def merge(self, round_: int, state: State, contributions: Sequence[Contribution]) -> Merged:
        """Correct the model and add noise; buffers stay.

        Raises
        ------
        RunFailed
            When there are no recorded rounds, or their updates were thinned out.
        """
        already_read = self._recorded.bytes_read
        correction = self._correction()
        params = corrected(state.params, correction, self.config.strength)
        noise = self._noise(params, round_)
        noisy = {name: (t.double() + noise[name]).to(t.dtype) for name, t in params.items()}
        after = State(noisy, state.float_buffers, state.int_buffers)
        remarks = (
            f"correction of norm {self.config.strength * norm(correction):.3g} on a model of norm {state.norm():.3g}",
            f"DP-style noise, without a guarantee, of norm {norm(noise):.3g}",
            *self._doubts(),
        )
        disk_read = self._recorded.bytes_read - already_read
        if why := growth_of(state.norm(), after.norm()):
            return Merged(state, stop=why, disk_read=disk_read, remarks=remarks)
        return Merged(after, disk_read=disk_read, remarks=remarks)

    def _correction(self) -> Tensors:
        correction = Correction(self.config.weights)
        for recorded in self._recorded.rounds:
            step = self._step(recorded)
            correction.add(norm(step) ** 2, self._residual(recorded, step))
        return correction.value()

    def _step(self, recorded: int) -> Tensors:
        """Return a round's weighted mean update; with FedAvg (and FedProx) that is what the round did."""
        history = self._recorded
        if self.schedule.strategy != "fedadam":
            return update_of(history.after(recorded), history.before(recorded)).params
        record = history.record(recorded)
        updates = [history.update(recorded, site) for site in record.participants]
        return mean_update(updates, [record.sites[site].weight for site in record.participants]).params

    def _residual(self, recorded: int, step: Tensors) -> Tensors | None:
        """Return what the sites of this request added to a round; None where they took no part."""
        found = self._recorded.record(recorded)
        gone = [site for site in found.participants if site in self.request.departed]
        earlier = [site for site in gone if site not in self.request.forget_holders]
        if gone == earlier:
            return None
        updates = {site: self._recorded.update(recorded, site).params for site in gone}

        def without(sites: Sequence[str]) -> Tensors:
            return aggregate_without(step, [updates[s] for s in sites], [found.sites[s].weight for s in sites])

        return residual(without(earlier), without(gone))

    def _noise(self, params: Tensors, round_: int) -> Tensors:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, f"{self.name}-noise", round_=round_))
        config = self.config
        if config.noise == "relative":
            return relative_noise(params, config.sigma, generator)
        sigma = privacy_sigma(config.sensitivity, config.epsilon, config.beta)
        return {name: gaussian(t, sigma, generator) for name, t in params.items()}

    def _doubts(self) -> tuple[str, ...]:
        if self.schedule.strategy != "fedadam":
            return ()
        return ("trained with FedAdam: the residuals are of the sites' mean updates, not of the server's steps",)

    @property
    def _recorded(self) -> History:
        if self.history is None or not self.history.rounds:
            raise RunFailed("FedRecovery needs the recorded rounds of the original training, and there are none")
        return self.history


METHOD = FedRecovery
