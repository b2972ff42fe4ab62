"""The recorded rounds of one training of a run: read one at a time, with its models ready to use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from torch import nn

from partitions.errors import BadInput
from strategies.history import History, RoundRecord
from unlearning.state import State, Update, apply_updates


class RunHistory(History):
    """A history that names what it lacks, and makes models.

    Iterating gives a `Round` at a time; nothing is read before it is asked for, and nothing is kept.

    Parameters
    ----------
    folder : Path
        Of the round files; an absent one is a history of no rounds.
    about : str
        Whose it is, for errors.
    build : callable
        Makes a module of a state.
    """

    def __init__(self, folder: Path, about: str, build: Callable[[State], nn.Module]) -> None:
        super().__init__(folder)
        self._about, self._build = about, build

    def __iter__(self) -> Iterator[Round]:
        return (Round(self, number) for number in self.rounds)

    def __len__(self) -> int:
        return self.last_complete_round

    def record(self, round_: int) -> RoundRecord:
        """Return a round's record; raises `BadInput` for a round that is not there."""
        if round_ not in self.rounds:
            raise self._lacks(round_)
        return super().record(round_)

    def update(self, round_: int, site: str) -> Update:
        """Return a site's aggregated update; raises `BadInput` when it has none in that round or was thinned out."""
        sites = self.record(round_).participants
        if site not in sites:
            allowed = f"a site whose update was aggregated in round {round_}: {', '.join(sites) or 'none was'}"
            raise BadInput("site", site, allowed)
        if not self.has_updates(round_):
            kept = [number for number in self.rounds if self.has_updates(number)]
            allowed = "a round whose updates were kept: " + (", ".join(map(str, kept)) or "none was")
            remedy = "the original keeps all with history-every=1, the others with keep-histories=true"
            raise BadInput("round", round_, allowed, remedy)
        return super().update(round_, site)

    def state(self, round_: int) -> State:
        """Return the whole state after a round; round 0 is what the first one started from."""
        return self.before(1) if round_ == 0 else self.after(round_)

    def model(self, round_: int) -> nn.Module:
        """Return the network with the weights after a round, in evaluation mode; round 0 has the initial ones."""
        return self._build(self.state(round_))

    def _lacks(self, round_: int) -> BadInput:
        if len(self):
            return BadInput("round", round_, f"1 to {len(self)}, the rounds of {self._about}")
        remedy = "the original's are; run with keep-histories=true for the others"
        return BadInput(
            "round", round_, f"a round of a training whose rounds were kept, and {self._about} has none", remedy
        )


@dataclass(frozen=True)
class Round:
    """One recorded round; every property reads its part of the file when it is asked for.

    Attributes
    ----------
    history : RunHistory
        Where it is recorded.
    number : int
        From 1.
    """

    history: RunHistory
    number: int

    @property
    def record(self) -> RoundRecord:
        """Who took part, with which weight, loss, seconds and bytes."""
        return self.history.record(self.number)

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites whose update was aggregated, sorted."""
        return self.record.participants

    @property
    def weights(self) -> dict[str, float]:
        """The share of each of these sites in the aggregate; they sum to one."""
        return {site: self.record.sites[site].weight for site in self.sites}

    @property
    def before(self) -> State:
        """The state that was sent out."""
        return self.history.before(self.number)

    @property
    def after(self) -> State:
        """The state that the round ended with."""
        return self.history.after(self.number)

    @property
    def model(self) -> nn.Module:
        """The network after the round."""
        return self.history.model(self.number)

    def update(self, site: str) -> Update:
        """Return what a site's training added."""
        return self.history.update(self.number, site)

    def without(self, site: str) -> State:
        """Return what the round would have ended with, had a site's update not been averaged in.

        The others' weights are scaled to sum to one again; FedAvg, whatever the server's optimiser was. Raises
        `BadInput` when the site had no update in the round, or was the only one.
        """
        others = {name: weight for name, weight in self.weights.items() if name != site}
        if site not in self.sites or not others:
            raise BadInput(
                "site", site, f"one of several with an update in round {self.number}: {', '.join(self.sites)}"
            )
        whole = sum(others.values())
        shares = [weight / whole for weight in others.values()]
        return apply_updates(self.before, [self.update(name) for name in others], shares)

    @property
    def frame(self) -> pd.DataFrame:
        """One row a site that was asked: the columns of `strategies.history.SiteRecord`."""
        table = self.history.frame()
        return table[table["round"] == self.number].reset_index(drop=True)
