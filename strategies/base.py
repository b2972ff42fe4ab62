"""The server half of every unlearning method: a Flower Strategy with the method's own rounds, and its declaration.

A method is one file: a class that declares itself, says whom to ask for what (`ask_for`), makes of the answers what its
paper says (`merge`, by default a weighted average), and binds ``METHOD`` to itself.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from strategies.declaration import MethodConfig, MethodDeclaration, Needs
from strategies.federation import Federation
from strategies.plans import Cost, Outcome, RequestPlan, Schedule, SiteCounts
from strategies.recording import train_config
from strategies.recovery import RecoveryHook
from strategies.rounds import RecordedRounds
from strategies.wire import Scalar

if TYPE_CHECKING:
    from strategies.history import History, HistoryWriter
    from unlearning.layers import Layer
    from unlearning.state import State

__all__ = [
    "Cost",
    "MethodConfig",
    "MethodDeclaration",
    "Needs",
    "Outcome",
    "RequestPlan",
    "Schedule",
    "SiteCounts",
    "UnlearningStrategy",
]


class UnlearningStrategy(MethodDeclaration, RecordedRounds):
    """One method on one request.

    Parameters
    ----------
    federation : Federation
        The sites.
    schedule : Schedule
        The common schedule.
    request : RequestPlan
        What to forget.
    seed : int
        Unlearning seed.
    config : MethodConfig
        From `resolve_config`.
    history : History or None
        Rounds of the original training; kept only by a method that declared the need.
    work : HistoryWriter or None
        Where the method's own rounds are committed.
    layers : sequence of Layer
        The model's, in the order in which it runs them.
    label : str
        For the events; "<name> <request>" where it is not given.
    """

    def __init__(
        self,
        federation: Federation,
        schedule: Schedule,
        request: RequestPlan,
        *,
        seed: int,
        config: MethodConfig,
        history: History | None = None,
        work: HistoryWriter | None = None,
        layers: Sequence[Layer] = (),
        label: str = "",
    ) -> None:
        needs = self.needs_of(config)
        RecordedRounds.__init__(
            self,
            federation,
            work=work,
            stage="unlearn",
            label=label or f"{self.name} {request.text}",
            weight_key="num-forget" if needs.forget_data else "num-examples",
            accept_diverged=needs.forget_data,
        )
        self.schedule, self.request, self.seed, self.config = schedule, request, seed, config
        self.layers = tuple(layers)
        self.history = history if needs.history or needs.history_helps else None

    @property
    @abstractmethod
    def rounds(self) -> int:
        """Return how many rounds the unlearning step takes; 0 leaves the model as it is."""

    def run(self, state: State) -> Outcome:
        """Unlearn, starting from the model that is to forget; see `RecordedRounds.run_rounds` for what it raises."""
        return self.run_rounds(state, self.rounds)

    def recovery_hook(self, start: State, unlearned: State) -> RecoveryHook:
        """Return what this method changes about its recovery.

        It must follow from its arguments and the settings alone: a resumed recovery asks for it again.

        Parameters
        ----------
        start, unlearned : State
            The model before and after the unlearning step.
        """
        return RecoveryHook(self.config.recovery_max_norm)

    def step_config(self, round_: int, records: str) -> dict[str, Scalar]:
        """Return a message's common keys for the unlearning step on "forget", "retain" or "both" records."""
        return {
            **train_config(self.schedule, round_=round_, seed=self.seed, purpose=self.name),
            "epochs": self.schedule.unlearn_epochs,
            "records": records,
            "request": self.request.text,
            "request-seed": self.request.seed,
            "prox-mu": 0.0,
        }
