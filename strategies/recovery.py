"""The one recovery that every unlearned model, and the retrained one, goes through (METHODS 0.2 and 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from partitions.errors import RunFailed
from strategies.federation import Federation
from strategies.history import HistoryWriter
from strategies.plans import Outcome, RequestPlan, Schedule
from strategies.recording import RecordingFedAvg
from strategies.rounds import Ask, Contribution, Merged
from strategies.wire import Scalar
from unlearning.divergence import growth_of
from unlearning.state import State


@dataclass(frozen=True)
class RecoveryHook:
    """What a method may change about its recovery; as it stands, nothing but the clip. Subclass it for more.

    Attributes
    ----------
    max_norm : float
        Clip of the gradients' L2 norm; 0: the schedule's.
    """

    max_norm: float = 0.0

    def message_config(self, round_: int) -> Mapping[str, Scalar]:
        """Return keys to add to, or put in place of, a recovery round's message."""
        return {"max-norm": self.max_norm} if self.max_norm else {}

    def message_states(self, round_: int) -> Mapping[str, State]:
        """Return further models for a recovery round's message: ``trainable`` holds masks of what may change."""
        return {}

    def after_round(self, round_: int, before: State, after: State) -> State:
        """Return the state to go on with."""
        return after


class Recovery(RecordingFedAvg):
    """FedAvg on the retained records of the sites that stay, from an unlearned (or retrained) model.

    It ends as diverged, at the state before the round, when the parameter norm reaches ten times the start's.
    Parameters as in `run_recovery`.
    """

    def __init__(
        self,
        federation: Federation,
        schedule: Schedule,
        request: RequestPlan,
        *,
        seed: int,
        work: HistoryWriter | None,
        hook: RecoveryHook | None,
        label: str,
    ) -> None:
        super().__init__(
            federation,
            replace(schedule, local_epochs=schedule.recovery_epochs, strategy="fedavg"),
            op="recover",
            purpose="recovery",
            seed=seed,
            participants=request.retain_holders,
            message_config={
                "records": "retain",
                "request": request.text,
                "request-seed": request.seed,
                "max-norm": schedule.recovery_max_norm or 0.0,
            },
            history=work,
            label=label,
            stage="recover",
        )
        self._hook, self._start_norm = hook, 0.0

    def begin(self, state: State) -> None:
        """Remember how large the start was."""
        super().begin(state)
        self._start_norm = state.norm()

    def ask_for(self, round_: int) -> Ask:
        """Ask as FedAvg does, with what the hook changes."""
        ask, hook = super().ask_for(round_), self._hook
        if hook is None:
            return ask
        config = {**ask.config, **hook.message_config(round_)}
        return replace(ask, config=config, states=hook.message_states(round_))

    def merge(self, round_: int, state: State, contributions: Sequence[Contribution]) -> Merged:
        """Average, let the hook act, and go back when the model went too far."""
        merged = super().merge(round_, state, contributions)
        if merged.stop:
            return merged
        after = merged.state if self._hook is None else self._hook.after_round(round_, state, merged.state)
        why = growth_of(self._start_norm, after.norm())
        return replace(merged, state=state, stop=why) if why else replace(merged, state=after)


def run_recovery(
    federation: Federation,
    schedule: Schedule,
    request: RequestPlan,
    state: State,
    *,
    seed: int,
    work: HistoryWriter | None,
    hook: RecoveryHook | None = None,
    label: str = "recover",
) -> Outcome:
    """Run the shared recovery from `state`.

    Parameters
    ----------
    schedule : Schedule
        Its recovery part; FedAvg whatever the training strategy.
    request : RequestPlan
        Departed sites never take part; the others train on what the request retains.
    seed : int
        Unlearning seed. Recovery has random streams of its own, the same for every method.
    work : HistoryWriter or None
        Where rounds are committed.
    hook : RecoveryHook or None
        From `UnlearningStrategy.recovery_hook`.

    Raises
    ------
    RunFailed
        When no site that stays has a retained record.
    """
    if schedule.recovery_rounds and not request.retain_holders:
        raise RunFailed(f"no site is left to recover from {request.text}: none that stays has a retained record")
    recovery = Recovery(federation, schedule, request, seed=seed, work=work, hook=hook, label=label)
    return recovery.run(state, schedule.recovery_rounds)
