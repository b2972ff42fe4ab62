"""Retraining without the forget records (METHODS 1.1): the gold model that every other one is compared with."""

from __future__ import annotations

from typing import ClassVar

from strategies.base import Needs, UnlearningStrategy
from strategies.plans import Outcome
from strategies.recording import RecordingFedAvg
from strategies.rounds import Ask
from unlearning.state import State


class Retrain(UnlearningStrategy):
    """Train again from the same initial weights, with the same random streams, on what the request retains.

    Its `seed` is the train seed and `run` starts from the initial model. With nothing to forget it gives the original
    model, bit for bit.
    """

    name: ClassVar[str] = "retrain"
    title: ClassVar[str] = "Retrain (gold)"
    citation: ClassVar[str] = "the reference, by definition"
    provenance: ClassVar[str] = "exact"
    family: ClassVar[str] = "gold"
    granularities: ClassVar[tuple[str, ...]] = ("client", "class", "patient", "sample")
    needs: ClassVar[Needs] = Needs(retain_data=True)

    @property
    def rounds(self) -> int:
        """Return the rounds of the original training."""
        return self.schedule.rounds

    def run(self, state: State) -> Outcome:
        """Train from the initial model `state`; see `RecordedRounds.run_rounds` for what it raises."""
        return self._training().run(state, self.rounds)

    def ask_for(self, round_: int) -> Ask:
        """Ask what the original training asked, of the sites that stay, on retained records."""
        return self._training().ask_for(round_)

    def _training(self) -> RecordingFedAvg:
        request = self.request
        return RecordingFedAvg(
            self.federation,
            self.schedule,
            seed=self.seed,
            participants=request.retain_holders,
            message_config={"records": "retain", "request": request.text, "request-seed": request.seed},
            history=self.work,
            label=self.label,
            stage="retrain",
        )


METHOD = Retrain
