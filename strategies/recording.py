"""Federated averaging that records every round: the training and retraining of the whole project, and recovery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partitions.seeds import derive_seed
from strategies.fedadam import ServerAdam
from strategies.federation import Federation
from strategies.history import History, HistoryWriter
from strategies.plans import Outcome, Schedule
from strategies.rounds import Ask, Merged, RecordedRounds
from strategies.wire import Scalar
from unlearning.state import State, Update


class RecordingFedAvg(RecordedRounds):
    """FedAvg (McMahan et al. 2017, arXiv 1602.05629), FedProx or FedAdam as the schedule says.

    Parameters
    ----------
    federation : Federation
        The sites.
    schedule : Schedule
        Learning rate, local epochs, share of sites, strategy.
    op : str
        "train" or "recover".
    purpose : str
        Names the random streams; retraining shares "train" with training.
    seed : int
        Run seed of those streams.
    participants : sequence of str
        Sites that may take part.
    message_config : mapping
        Added to every message: ``records`` ("all" or "retain"), ``request``, ``request-seed``.
    history : HistoryWriter or None
        Where rounds are committed.
    label : str
        For the events.
    stage : str
        For the events; the purpose where it is not given.
    """

    def __init__(
        self,
        federation: Federation,
        schedule: Schedule,
        *,
        op: str = "train",
        purpose: str = "train",
        seed: int,
        participants: Sequence[str],
        message_config: Mapping[str, Scalar],
        history: HistoryWriter | None,
        label: str,
        stage: str = "",
    ) -> None:
        super().__init__(federation, work=history, stage=stage or purpose, label=label)
        self.schedule, self.op, self.purpose, self.seed = schedule, op, purpose, seed
        self.participants, self._message_config = tuple(sorted(participants)), dict(message_config)
        self._adam = ServerAdam(schedule.server_lr)
        self.memory_copies = 4 if schedule.strategy == "fedadam" else 0  # two moments in fp64

    def run(self, state: State, rounds: int) -> Outcome:
        """Train from `state` up to round `rounds`, going on where an earlier process stopped.

        See `RecordedRounds.run_rounds` for what it raises.
        """
        return self.run_rounds(state, rounds)

    def begin(self, state: State) -> None:
        """Forget the moments of an earlier run."""
        self._adam = ServerAdam(self.schedule.server_lr)

    def ask_for(self, round_: int) -> Ask:
        """Ask the sites sampled for this round to train."""
        sites = sample_sites(self.participants, self.schedule.fraction_train, self.seed, self.purpose, round_)
        config = train_config(self.schedule, round_=round_, seed=self.seed, purpose=self.purpose)
        return Ask(self.op, sites, {**config, **self._message_config})

    def aggregate(
        self, round_: int, state: State, updates: Mapping[str, Update], weights: Mapping[str, float]
    ) -> Merged:
        """Take the weighted mean, or FedAdam's step along it."""
        if self.schedule.strategy != "fedadam":
            return super().aggregate(round_, state, updates, weights)
        order = sorted(updates)
        after = self._adam.step(state, [updates[s] for s in order], [weights[s] for s in order], round_)
        moments = {"first": self._adam.first, "second": self._adam.second}
        return Merged(after, updates, weights, server=moments)

    def restore(self, history: History, round_: int) -> None:
        """Take up the moments."""
        self._adam.first, self._adam.second = history.server(round_, "first"), history.server(round_, "second")


def train_config(schedule: Schedule, *, round_: int, seed: int, purpose: str) -> dict[str, Scalar]:
    """Return the keys that every training message has; 0 means none for ``max-norm`` and ``prox-mu``."""
    return {
        "round": round_,
        "seed": seed,
        "purpose": purpose,
        "lr": schedule.lr,
        "epochs": schedule.local_epochs,
        "records": "all",
        "request": "",
        "request-seed": 0,
        "max-norm": 0.0,
        "prox-mu": schedule.prox_mu if schedule.strategy == "fedprox" else 0.0,
    }


def sample_sites(sites: Sequence[str], fraction: float, seed: int, purpose: str, round_: int) -> tuple[str, ...]:
    """Return the sites of one round: those whose own hash lies below `fraction`, else the one with the smallest hash.

    Each site's hash depends on nothing but its name, so that leaving one out moves no other. The number of sites varies
    from round to round around ``fraction * len(sites)``.
    """
    hashes = {site: derive_seed(seed, f"sample-{purpose}", site, round_) / 2**63 for site in sites}
    chosen = sorted(site for site, value in hashes.items() if value < fraction)
    return tuple(chosen) or ((min(hashes, key=lambda site: hashes[site]),) if hashes else ())
