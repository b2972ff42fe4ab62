"""The federated wrapper of methods that were made for one machine and run inside the sites (METHODS 2).

Where every holder of forget records keeps retain records, one round does it: each runs the method on its own records.
Where one keeps none, as in the removal of a client, forget steps at the holders and retain steps at the sites that stay
take turns (`AlternatingSite`), or the method says that it cannot be run (`InsideSite`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from strategies.base import MethodConfig, UnlearningStrategy
from strategies.plans import RequestPlan
from strategies.rounds import Ask, Contribution, Merged
from strategies.wire import Scalar
from unlearning.divergence import growth_of
from unlearning.state import State

Turn = Literal["forget", "retain"]

MUFAC: dict[str, Any] = {"epochs": 2, "lr": 1e-3, "momentum": 0.0, "weight-decay": 0.0, "batch-size": 64}
"""How the MUFAC notebooks train (Choi & Na 2023, arXiv 2311.02240; METHODS 2): plain SGD, BatchNorm in train mode."""


class InsideConfig(MethodConfig):
    """Settings of a method that runs inside a site; the defaults are the training's own optimiser."""

    epochs: Annotated[int, Field(ge=0, description="local epochs; 0: the schedule's unlearn-epochs")] = 0
    lr: Annotated[float, Field(ge=0, description="learning rate; 0: the training's")] = 0.0
    optimizer: Annotated[Literal["sgd", "adam"], Field(description="sgd, as in training, or adam")] = "sgd"
    momentum: Annotated[float | None, Field(ge=0, lt=1, description="momentum of SGD; null: the training's")] = None
    weight_decay: Annotated[float | None, Field(ge=0, description="weight decay; null: the training's")] = None
    batch_size: Annotated[int, Field(ge=0, description="records in a batch; 0: the training's")] = 0
    max_norm: Annotated[float, Field(ge=0, description="clip of the gradient's L2 norm; 0: none")] = 0.0
    bn_mode: Annotated[
        Literal["eval", "train"], Field(description="BatchNorm while stepping; eval keeps the statistics")
    ] = "train"


class AlternatingConfig(InsideConfig):
    """Settings of a method that can also take turns."""

    rounds: Annotated[
        int,
        Field(
            ge=0,
            description="pairs of a forget and a retain round of one epoch each, where a holder of forget records "
            "keeps no other; 0: as many as local epochs",
        ),
    ] = 0


class InsideSite(UnlearningStrategy):
    """One round in which each holder of forget records runs the method on its own records.

    Attributes
    ----------
    op : str
        What it runs.
    opens : {"forget", "both"}
        The records that it needs for that.
    driven_by : {"num-forget", "num-retain", "num-examples"}
        The count that weighs its result.
    """

    op: ClassVar[str]
    opens: ClassVar[Literal["forget", "both"]] = "both"
    driven_by: ClassVar[str] = "num-forget"

    config: InsideConfig

    @classmethod
    def unfit_for(cls, request: RequestPlan) -> str:
        """Return that some holder lacks retain records, where the method needs both kinds in one batch."""
        lacking = without_retain(request) if cls.opens == "both" else ()
        if not lacking:
            return ""
        return (
            f"not applicable to {request.text}: {cls.name} needs forget and retain records at the same site, "
            f"and {', '.join(lacking)} has forget records only"
        )

    @property
    def rounds(self) -> int:
        """Return 1."""
        return 1

    def ask_for(self, round_: int) -> Ask:
        """Ask the holders of forget records to run the whole method."""
        config = {**self.message(round_, self.opens, self.epochs), **self.own_settings()}
        return Ask(self.op, self.request.forget_holders, config, self.further_states(), self.driven_by)

    def own_settings(self) -> dict[str, Scalar]:
        """Return what the method's own message says beyond `message`; nothing here."""
        return {}

    def further_states(self) -> Mapping[str, State]:
        """Return further models to send; none here."""
        return {}

    @property
    def epochs(self) -> int:
        """Return the local epochs of the whole method."""
        return self.config.epochs or self.schedule.unlearn_epochs

    def message(self, round_: int, records: str, epochs: int) -> dict[str, Scalar]:
        """Return a message's common keys: which records, how many epochs, which optimiser."""
        config = self.config
        message = {
            **self.step_config(round_, records),
            "epochs": epochs,
            "lr": config.lr or self.schedule.lr,
            "optimizer": config.optimizer,
            "max-norm": config.max_norm,
            "bn-mode": config.bn_mode,
        }
        instead = {
            "momentum": config.momentum,
            "weight-decay": config.weight_decay,
            "batch-size": config.batch_size or None,
        }
        return message | {key: value for key, value in instead.items() if value is not None}


class AlternatingSite(InsideSite):
    """A method whose forget and retain steps can also take turns, one epoch each, at different sites.

    Departed sites take no retain step. The rounds end as diverged, at the state before the round, when the parameter
    norm reaches ten times the start's, as a local step does.

    Attributes
    ----------
    retain_op : str
        The retain step; plain training here.
    """

    retain_op: ClassVar[str] = "recover"

    config: AlternatingConfig
    original: State
    """The model that is to forget."""

    @classmethod
    def unfit_for(cls, request: RequestPlan) -> str:
        """Return nothing: it takes turns where it must."""
        return ""

    @property
    def rounds(self) -> int:
        """Return 1, or the number of turns."""
        return len(self._turns) if self.alternates else 1

    @property
    def alternates(self) -> bool:
        """Tell whether some holder of forget records keeps no other, so that the steps take turns."""
        return bool(without_retain(self.request))

    def turns_of(self, pair: int) -> Sequence[Turn]:
        """Return the turns of a pair, numbered from 1 as epochs are, in their order."""
        return ("forget", "retain")

    def begin(self, state: State) -> None:
        """Remember the model that is to forget, also when the rounds resume."""
        super().begin(state)
        self.original = state
        self._start_norm = state.norm()

    def ask_for(self, round_: int) -> Ask:
        """Ask for the whole method, or for the turn of this round."""
        if not self.alternates:
            return super().ask_for(round_)
        pair, turn = self._turns[round_ - 1]
        config = {**self.message(round_, turn, 1), **self.turn_settings(pair)}
        states = self.turn_states(turn, round_)
        if turn == "forget":
            return Ask(self.op, self.request.forget_holders, config, states, "num-forget")
        return Ask(self.retain_op, self.request.retain_holders, config, states, "num-retain")

    def turn_settings(self, pair: int) -> dict[str, Scalar]:
        """Return what the message of a turn says beyond `message`; `own_settings` here."""
        return self.own_settings()

    def turn_states(self, turn: Turn, round_: int) -> Mapping[str, State]:
        """Return further models for a turn; none here."""
        return {}

    def merge(self, round_: int, state: State, contributions: Sequence[Contribution]) -> Merged:
        """Average by the records of the turn, and go back when the model went too far."""
        merged = super().merge(round_, state, contributions)
        if not self.alternates:
            return merged
        if round_ == 1:
            merged = replace(merged, remarks=(*merged.remarks, self._remark))
        why = growth_of(self._start_norm, merged.state.norm())
        return replace(merged, state=state, stop=why) if why and not merged.stop else merged

    @cached_property
    def _turns(self) -> tuple[tuple[int, Turn], ...]:
        pairs = self.config.rounds or self.epochs
        return tuple((pair, turn) for pair in range(1, pairs + 1) for turn in self.turns_of(pair))

    @property
    def _remark(self) -> str:
        lacking = ", ".join(without_retain(self.request))
        return f"forget and retain steps take turns over {self.rounds} rounds: {lacking} has forget records only"


def without_retain(request: RequestPlan) -> tuple[str, ...]:
    """Return the holders of forget records that keep no other: those that leave, and those that have none."""
    return tuple(
        site for site in request.forget_holders if site in request.departed or not request.counts[site].num_retain
    )
