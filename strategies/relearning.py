"""Relearning what was forgotten (METRICS 6): how soon a model that should have forgotten knows the records again."""

from __future__ import annotations

from dataclasses import replace

from strategies.federation import Federation
from strategies.history import HistoryWriter
from strategies.plans import Outcome, RequestPlan, Schedule
from strategies.recording import RecordingFedAvg
from unlearning.state import State

PURPOSE = "relearn"
"""Names the random streams, which every method and the retrained model share."""


class Relearning(RecordingFedAvg):
    """FedAvg on the forgotten records alone, one local epoch a round, at every site that holds some of them.

    Plain SGD with the training's learning rate, batch size, momentum and weight decay, whatever strategy trained the
    original; no clip. The optimiser is a fresh one in every round, BatchNorm is in train mode, and a site weighs as
    many records as it forgets. A site that departed takes part: it is the one that holds the records. Parameters as in
    `run_relearning`.
    """

    def __init__(
        self,
        federation: Federation,
        schedule: Schedule,
        request: RequestPlan,
        *,
        seed: int,
        work: HistoryWriter | None,
        label: str,
    ) -> None:
        super().__init__(
            federation,
            replace(schedule, local_epochs=1, strategy="fedavg", fraction_train=1.0),
            op="relearn",
            purpose=PURPOSE,
            seed=seed,
            participants=request.forget_holders,
            message_config={
                "records": "forget",
                "request": request.text,
                "request-seed": request.seed,
                "clean": True,  # without a trigger that the training planted
            },
            history=work,
            label=label,
        )


def run_relearning(
    federation: Federation,
    schedule: Schedule,
    request: RequestPlan,
    state: State,
    epochs: int,
    *,
    seed: int,
    work: HistoryWriter | None,
    label: str = "relearn",
) -> Outcome:
    """Relearn what the last step of a request forgot, from `state`, which stays as it is.

    Parameters
    ----------
    schedule : Schedule
        Its learning rate.
    request : RequestPlan
        Which records.
    epochs : int
        Rounds, of one local epoch each.
    seed : int
        Unlearning seed.
    work : HistoryWriter or None
        Where rounds are committed; the model after epoch j is ``work.read().after(j)``.

    Returns
    -------
    Outcome
        Diverged, at the last usable state, when no site could send a usable update.
    """
    return Relearning(federation, schedule, request, seed=seed, work=work, label=label).run(state, epochs)
