"""What a strategy is told (schedule, request plan) and what it gives back (outcome, cost)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

from unlearning.state import State

Status = Literal["ok", "diverged"]
ServerStrategy = Literal["fedavg", "fedprox", "fedadam"]


@dataclass(frozen=True)
class Schedule:
    """The common schedule of training, unlearning and recovery (METHODS 0.2).

    Attributes
    ----------
    lr : float
        Learning rate of every local step, in training, unlearning and recovery alike.
    rounds, local_epochs : int
        Training rounds, and local epochs in each.
    unlearn_epochs : int
        Local epochs of the unlearning step.
    recovery_rounds, recovery_epochs : int
        Recovery rounds, and local epochs in each.
    recovery_max_norm : float or None
        Gradient clip of recovery; None or 0: none.
    fraction_train : float
        Share of the sites that take part in a training or recovery round.
    strategy : {"fedavg", "fedprox", "fedadam"}
        Of training and retraining; recovery is FedAvg always.
    prox_mu, server_lr : float
        FedProx proximal weight; FedAdam server learning rate.
    """

    lr: float
    rounds: int
    local_epochs: int
    unlearn_epochs: int = 5
    recovery_rounds: int = 5
    recovery_epochs: int = 2
    recovery_max_norm: float | None = None
    fraction_train: float = 1.0
    strategy: ServerStrategy = "fedavg"
    prox_mu: float = 0.0
    server_lr: float = 0.01


@dataclass(frozen=True)
class SiteCounts:
    """How many training records of a site the request's last step marks as forget, and how many stay."""

    num_forget: int
    num_retain: int


@dataclass(frozen=True)
class RequestPlan:
    """A request as the server sees it: the text the sites resolve, and their counts.

    Attributes
    ----------
    text : str
        The request, normalised.
    seed : int
        Request seed (sample requests).
    granularity : str
        Of the last step: client, class, patient or sample.
    departed : tuple of str
        Every site that has left, over all steps.
    counts : mapping of str to SiteCounts
        By site.
    """

    text: str
    seed: int
    granularity: str
    departed: tuple[str, ...]
    counts: Mapping[str, SiteCounts]

    @property
    def forget_holders(self) -> tuple[str, ...]:
        """Return the sites that hold forget records, sorted; a departing site is one of them."""
        return tuple(sorted(site for site, count in self.counts.items() if count.num_forget > 0))

    @property
    def retain_holders(self) -> tuple[str, ...]:
        """Return the sites that stay and hold retain records, sorted."""
        return tuple(
            sorted(
                site for site, count in self.counts.items() if count.num_retain > 0 and site not in set(self.departed)
            )
        )


@dataclass(frozen=True)
class Cost:
    """What some rounds cost; costs add up.

    Attributes
    ----------
    seconds : float
        Wall time of the rounds, waiting for the sites included.
    client_seconds : float
        Work time reported by the sites, summed.
    client_examples, gradient_steps : int
        Records processed by gradient steps at the sites (a record counts once an epoch), and those steps.
    bytes_down, bytes_up : int
        Array payload sent to and received from the sites, counted for each recipient.
    disk_read : int
        Bytes read from a stored history.
    """

    seconds: float = 0.0
    client_seconds: float = 0.0
    client_examples: int = 0
    gradient_steps: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    disk_read: int = 0

    def __add__(self, other: Cost) -> Cost:
        """Add field by field."""
        return Cost(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(Cost)})

    def to_dict(self) -> dict[str, float]:
        """Return the fields by name."""
        return {f.name: getattr(self, f.name) for f in fields(Cost)}


@dataclass(frozen=True)
class Outcome:
    """What a strategy ended with.

    Attributes
    ----------
    state : State
        The model; on "diverged" the last usable one.
    status : {"ok", "diverged"}
        A diverged method is a result, not an error.
    reason : str
        Why it diverged; empty otherwise.
    rounds : int
        Rounds done, those of earlier runs of the same stage included.
    cost : Cost
        Of all those rounds.
    notes : tuple of str
        What a reader should know: rejected updates, failed sites, a truncated round.
    """

    state: State
    status: Status = "ok"
    reason: str = ""
    rounds: int = 0
    cost: Cost = field(default_factory=Cost)
    notes: tuple[str, ...] = ()
