"""FedEraser, server half: replay the recorded rounds without the departed, in fresh directions (METHODS 1.4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from partitions.errors import RunFailed
from strategies.base import MethodConfig, Needs, UnlearningStrategy
from strategies.history import History
from strategies.plans import Outcome
from strategies.rounds import Ask, Contribution, Merged
from unlearning.federaser import calibrate, calibration_epochs, mean_update, retained_rounds
from unlearning.state import State, Update, apply_updates


class FedEraserConfig(MethodConfig):
    """Settings of FedEraser."""

    calibration_ratio: Annotated[
        float, Field(gt=0, le=1, description="calibration epochs over local epochs; 0.5 in paper and code")
    ] = 0.5
    interval: Annotated[int, Field(ge=1, description="replay every n-th recorded round; 2 in the paper, 1 in code")] = 2
    norm_scope: Annotated[
        Literal["tensor", "model"], Field(description="one length a tensor (original) or one for the model")
    ] = "tensor"
    calibrate_on: Annotated[
        Literal["client", "mean"], Field(description="calibrate each site (paper) or the mean update (code)")
    ] = "client"


class FedEraser(UnlearningStrategy):
    """Accumulate the retained sites' recorded updates again, each turned into the direction they take today."""

    name: ClassVar[str] = "federaser"
    title: ClassVar[str] = "FedEraser"
    citation: ClassVar[str] = "Liu et al. 2021, IWQoS"
    provenance: ClassVar[str] = "copy of the authors' code; interval from memory of the paper"
    family: ClassVar[str] = "replay"
    granularities: ClassVar[tuple[str, ...]] = ("client",)
    needs: ClassVar[Needs] = Needs(history=True, retain_data=True)
    Config = FedEraserConfig
    presets = {  # noqa: RUF012
        "lethe": {},
        "original": {"interval": 1, "calibrate-on": "mean"},
    }

    config: FedEraserConfig

    def run(self, state: State) -> Outcome:
        """Replay from the initial model of the original training; `state` is not looked at."""
        return self.run_rounds(self._recorded.before(1), self.rounds)

    @property
    def rounds(self) -> int:
        """Return the number of recorded rounds to replay."""
        return len(self._replayed)

    def ask_for(self, round_: int) -> Ask:
        """Ask the retained sites of the recorded round to calibrate; in the first round the record is enough."""
        recorded = self._recorded.record(self._replayed[round_ - 1])
        config = {
            **self.step_config(recorded.round, "retain"),
            "epochs": calibration_epochs(self.schedule.local_epochs, self.config.calibration_ratio),
            "lr": recorded.lr if math.isfinite(recorded.lr) else self.schedule.lr,
        }
        return Ask("recover", self._stayed(recorded.round) if round_ > 1 else (), config)

    def merge(self, round_: int, state: State, contributions: Sequence[Contribution]) -> Merged:
        """Add the calibrated updates of one recorded round, weighted by the records they were computed on."""
        recorded = self._replayed[round_ - 1]
        already_read = self._recorded.bytes_read
        if round_ == 1:
            merged = self._accumulated(recorded, state)
        else:
            fresh = {c.site: c.update for c in contributions if c.update is not None}
            if not fresh:
                return super().merge(round_, state, contributions)
            merged = self._calibrated(recorded, state, fresh)
        return replace(merged, disk_read=self._recorded.bytes_read - already_read)

    def _accumulated(self, recorded: int, state: State) -> Merged:
        """Add the recorded updates as they are."""
        sites = self._stayed(recorded)
        stored = [self._recorded.update(recorded, site) for site in sites]
        return Merged(apply_updates(state, stored, self._weights(recorded, sites)), {}, {})

    def _calibrated(self, recorded: int, state: State, fresh: Mapping[str, Update]) -> Merged:
        """Add the recorded lengths in the fresh directions."""
        sites = sorted(fresh)
        weights = self._weights(recorded, sites)
        by_site = dict(zip(sites, weights, strict=True))
        stored = [self._recorded.update(recorded, site) for site in sites]
        directions = [fresh[site] for site in sites]
        if self.config.calibrate_on == "mean":
            mean = calibrate(mean_update(stored, weights), mean_update(directions, weights), self.config.norm_scope)
            return Merged(apply_updates(state, [mean], [1.0]), fresh, by_site)
        scaled = [calibrate(s, d, self.config.norm_scope) for s, d in zip(stored, directions, strict=True)]
        return Merged(apply_updates(state, scaled, weights), dict(zip(sites, scaled, strict=True)), by_site)

    @property
    def _recorded(self) -> History:
        if self.history is None or not self.history.rounds:
            raise RunFailed("FedEraser needs the recorded rounds of the original training, and there are none")
        return self.history

    @cached_property
    def _replayed(self) -> list[int]:
        recorded = self._recorded
        usable = [round_ for round_ in recorded.rounds if self._stayed(round_) and recorded.has_updates(round_)]
        if not usable:
            raise RunFailed(f"no recorded round has a site that stays after {self.request.text}")
        return retained_rounds(usable, self.config.interval)

    def _stayed(self, recorded: int) -> tuple[str, ...]:
        departed = set(self.request.departed)
        return tuple(site for site in self._recorded.record(recorded).participants if site not in departed)

    def _weights(self, recorded: int, sites: Sequence[str]) -> list[float]:
        counts = [self._recorded.record(recorded).sites[site].num_examples for site in sites]
        return [count / sum(counts) for count in counts]


METHOD = FedEraser
