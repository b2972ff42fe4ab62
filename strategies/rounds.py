"""Rounds that are recorded and can be resumed, on top of Flower's own strategy loop; every strategy stands on it."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import INFO

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log

from partitions.errors import RunFailed
from strategies.federation import Federation, WatchedGrid
from strategies.history import History, HistoryWriter, RoundRecord, SiteRecord
from strategies.plans import Cost, Outcome, Status
from strategies.wire import Scalar, SiteReply, array_bytes, call_content, make_message, reply_of
from unlearning.state import State, Tensors, Update, all_finite, apply_updates, update_of


@dataclass(frozen=True)
class Ask:
    """What a round asks of whom.

    Attributes
    ----------
    op : str
        Operation of category "train".
    sites : tuple of str
        Nobody is asked when it is empty, and the round is the server's alone.
    config : mapping
        Scalars and flat lists with hyphenated keys; ``epochs`` and ``lr`` among them.
    states : mapping of str to State
        Further models by name, such as a teacher; encoded once for all sites.
    weight_key : str
        The metric that weighs a site in this round; empty: the strategy's.
    """

    op: str
    sites: tuple[str, ...]
    config: Mapping[str, Scalar | list[str]]
    states: Mapping[str, State] = field(default_factory=dict)
    weight_key: str = ""


@dataclass(frozen=True)
class Contribution:
    """One site's part in a round.

    Attributes
    ----------
    site : str
        Whose.
    record : SiteRecord
        What it did.
    update : Update or None
        What changed in its model; None when it sent none, or the record's status is not "ok".
    diverged : str
        Why the site stopped at its last usable state; empty otherwise.
    arrays : mapping of str to Tensors
        Statistics by name, such as importances; finite.
    metrics : mapping of str to number
        All numbers the site sent.
    """

    site: str
    record: SiteRecord
    update: Update | None
    diverged: str = ""
    arrays: Mapping[str, Tensors] = field(default_factory=dict)
    metrics: Mapping[str, int | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Merged:
    """What a round makes of its contributions.

    Attributes
    ----------
    state : State
        The next state; the last usable one when `stop` is set.
    updates : mapping of str to Update
        What was aggregated, by site; recorded.
    weights : mapping of str to float
        Share of each update.
    stop : str
        Why the rounds end here as diverged; empty to go on.
    server : mapping of str to Tensors
        What the server must remember to resume.
    disk_read : int
        Bytes read from a stored history.
    remarks : tuple of str
        What a reader of the result should know, such as the share of selected parameters.
    """

    state: State
    updates: Mapping[str, Update] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    stop: str = ""
    server: Mapping[str, Tensors] = field(default_factory=dict)
    disk_read: int = 0
    remarks: tuple[str, ...] = ()


class _Stop(Exception):
    """Ends Flower's loop before its last round."""


class RecordedRounds(Strategy):
    """A Flower Strategy whose rounds are committed one by one and go on where an earlier process stopped.

    A subclass says whom to ask for what (`ask_for`) and, where it is not a weighted average, what to make of the
    answers (`merge`). Replies are sorted by site before anything is summed, so the result does not depend on the order
    in which they come.

    Parameters
    ----------
    federation : Federation
        The sites.
    work : HistoryWriter or None
        Where rounds are committed; None keeps nothing.
    stage, label : str
        Names for the events.
    weight_key : str
        The metric that weighs a site: "num-examples", or "num-forget" for forget-driven steps.
    accept_diverged : bool
        Whether a site that stopped at its last usable state still counts; the stage then ends as diverged.
    """

    memory_copies = 0
    """What `Merged.server` holds in a round, in updates."""

    def __init__(
        self,
        federation: Federation,
        *,
        work: HistoryWriter | None,
        stage: str,
        label: str,
        weight_key: str = "num-examples",
        accept_diverged: bool = False,
    ) -> None:
        self.federation, self.work, self.stage, self.label = federation, work, stage, label
        self._weight_key, self._accept_diverged = weight_key, accept_diverged
        self._grid = WatchedGrid(federation, stage, label, heard=self._hear)
        self._heard: dict[str, Contribution] = {}
        self._offset = self._rounds = self._down = 0
        self._clock = 0.0
        self._ask: Ask
        self._state: State
        self._records: list[RoundRecord] = []
        self._notes: tuple[str, ...] = ()

    # ------------------------------------------------------------------ what a subclass says
    @abstractmethod
    def ask_for(self, round_: int) -> Ask:
        """Return what round `round_` (from 1) asks of whom."""

    def merge(self, round_: int, state: State, contributions: Sequence[Contribution]) -> Merged:
        """Average the contributions, sorted by site, by their weights.

        Raises
        ------
        RunFailed
            When no site had anything to contribute.
        """
        weights = self.weights_of(round_, contributions)
        updates = {c.site: c.update for c in contributions if c.update is not None}
        if not weights:
            return Merged(state, {}, {}, stop=_all_rejected(contributions))
        merged = self.aggregate(round_, state, updates, weights)
        diverged = [f"{c.site}: {c.diverged}" for c in contributions if c.diverged]
        return replace(merged, stop="; ".join(diverged)) if diverged else merged

    def aggregate(
        self, round_: int, state: State, updates: Mapping[str, Update], weights: Mapping[str, float]
    ) -> Merged:
        """Make the next state of at least one update; FedAvg here."""
        order = sorted(updates)
        after = apply_updates(state, [updates[s] for s in order], [weights[s] for s in order])
        return Merged(after, updates, weights)

    def restore(self, history: History, round_: int) -> None:
        """Take up what the server remembered after `round_`; nothing here."""

    def begin(self, state: State) -> None:
        """Look at the start state of the whole stage, before a fresh or resumed run; nothing here."""

    # ------------------------------------------------------------------ what callers use
    def run_rounds(self, state: State, rounds: int) -> Outcome:
        """Run up to round `rounds`, starting after the last committed one.

        Parameters
        ----------
        state : State
            The start of the stage, also when it resumes.
        rounds : int
            Rounds of the whole stage; 0 returns `state`.

        Raises
        ------
        RunFailed
            When the sites cannot be relied on, or the committed rounds started from another state.
        BadInput
            When the rounds would not fit on the disk.
        """
        self._rounds = rounds
        self.begin(state)
        if (planned := self.federation.rehearse(self.ask_for, state, rounds)) is not None:
            return Outcome(state=planned, rounds=rounds)
        current = self._resume(state)
        self._tell("stage-started", rounds=rounds, round=self._offset)
        if self._offset < rounds and self._status == "ok":
            self._check_space(state)
            current = self._loop(current)
        if self.work is not None and self._records:
            self.work.read().write_table()
        self._tell("stage-finished", status=self._status)
        return Outcome(
            state=current,
            status=self._status,
            reason=self._records[-1].reason if self._records else "",
            rounds=len(self._records),
            cost=sum((record.cost for record in self._records), Cost()),
            notes=(*self._notes, *(note for record in self._records for note in record.notes)),
        )

    # ------------------------------------------------------------------ Flower's interface
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Make the messages of a round; Flower counts from 1 after a resume too, so the offset is added."""
        round_ = self._offset + server_round
        self._clock = time.monotonic()
        self._grid.round, self._heard = round_, {}
        self._ask = self.ask_for(round_)
        self._tell("round-started", round=round_, rounds=self._rounds)
        content = call_content(self._state, self._ask.config, self._ask.states, self.federation.handover)
        self._down = array_bytes(content)
        roster = self.federation.roster
        return [
            make_message("train", self._ask.op, roster.node(site), content, str(round_))
            for site in sorted(self._ask.sites)
        ]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[None, MetricRecord]:
        """Merge, record and commit a round; `replies` were taken up as they arrived, and the model stays a state."""
        round_ = self._offset + server_round
        before = self._state
        contributions, self._heard = [self._heard[site] for site in sorted(self._heard)], {}
        merged = self.merge(round_, before, contributions)
        record = self._record(round_, contributions, merged)
        if self.work is not None:
            self.work.write(record, before, merged.state, merged.updates, merged.server)
        self._records.append(record)
        self._state = merged.state
        self._tell(
            "round-finished",
            round=round_,
            rounds=self._rounds,
            seconds=record.seconds,
            loss=record.loss,
            metric=record.metric,
            client_seconds=record.cost.client_seconds,
            examples=record.cost.client_examples,
            bytes_down=record.cost.bytes_down,
            bytes_up=record.cost.bytes_up,
        )
        if merged.stop:
            raise _Stop
        known = {"loss": record.loss, "metric": record.metric}
        return None, MetricRecord({k: v for k, v in known.items() if math.isfinite(v)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nobody: models are scored when a stage is done."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        """Have nothing to aggregate."""

    def summary(self) -> None:
        """Log what this is."""
        log(INFO, "\t└──> %s: %s (%s)", self.stage, self.label, type(self).__name__)

    # ------------------------------------------------------------------ inside
    @property
    def _weighed_by(self) -> str:
        return self._ask.weight_key or self._weight_key

    @property
    def _status(self) -> Status:
        return self._records[-1].status if self._records else "ok"

    def _resume(self, state: State) -> State:
        self._records, self._notes, self._offset = [], (), 0
        if self.work is None:
            return state
        history = self.work.read()
        self._notes = history.notes
        for note in history.notes:
            self._tell("note", text=note)
        self._offset = min(history.last_complete_round, self._rounds)
        if not self._offset:
            return state
        if not _same(history.before(1), state):
            raise RunFailed(f"the rounds in {history.folder} started from another model; remove that folder")
        self._records = [history.record(round_) for round_ in range(1, self._offset + 1)]
        self.restore(history, self._offset)
        return history.after(self._offset)

    def _loop(self, state: State) -> State:
        self._state = state
        try:
            self.start(
                grid=self._grid,
                initial_arrays=ArrayRecord(),  # `configure_train` encodes the state
                num_rounds=self._rounds - self._offset,
                timeout=self.federation.timeout,
                train_config=ConfigRecord(),
                evaluate_config=ConfigRecord(),
            )
        except _Stop:
            log(INFO, "%s ends early: %s", self.label, self._records[-1].reason)
        return self._state

    def _check_space(self, state: State) -> None:
        if self.work is not None:
            copies = len(self.federation.sites) + self.memory_copies
            self.work.check_space(state, copies, self._rounds - self._offset)

    def _hear(self, site: str, message: Message) -> None:
        """Take up one reply as it arrives; of a decoded model only the update stays in memory."""
        self._heard[site] = self._contribution(self._state, reply_of(message, site, self._down))

    def _contribution(self, before: State, reply: SiteReply) -> Contribution:
        record = _site_record(reply)
        if reply.error:
            record = replace(record, status="failed", reason=reply.error, traceback=reply.traceback)
            return Contribution(reply.site, record, None)
        arrays = {name: {n: torch.from_numpy(a) for n, a in group.items()} for name, group in reply.arrays.items()}
        if (reply.state is None and not arrays) or reply.count(self._weighed_by) == 0:
            return Contribution(reply.site, replace(record, status="empty"), None, metrics=reply.metrics)
        status = reply.text("status") or "ok"
        if status != "ok" and not (self._accept_diverged and status == "diverged"):
            reason = f"{status}: {reply.text('reason')}"
            return Contribution(reply.site, replace(record, status="rejected", reason=reason), None)
        if not (reply.state is None or reply.state.is_finite()) or not all(map(all_finite, arrays.values())):
            return Contribution(reply.site, replace(record, status="rejected", reason="the update is not finite"), None)
        diverged = reply.text("reason") or status if status != "ok" else ""
        update = None if reply.state is None else _update(reply.site, reply.state, before)
        return Contribution(reply.site, record, update, diverged, arrays, reply.metrics)

    def weights_of(self, round_: int, contributions: Sequence[Contribution]) -> dict[str, float]:
        """Return the share of every usable contribution; empty when there is none."""
        key = self._weighed_by.replace("-", "_")
        counts = {c.site: int(getattr(c.record, key)) for c in contributions if c.update is not None}
        total = sum(counts.values())
        return {site: count / total for site, count in counts.items()}

    def _record(self, round_: int, contributions: Sequence[Contribution], merged: Merged) -> RoundRecord:
        return RoundRecord(
            round=round_,
            lr=float(str(self._ask.config.get("lr", math.nan))),
            seconds=time.monotonic() - self._clock,
            disk_read=merged.disk_read,
            sites={c.site: replace(c.record, weight=merged.weights.get(c.site, 0.0)) for c in contributions},
            status="diverged" if merged.stop else "ok",
            reason=merged.stop,
            remarks=merged.remarks,
        )

    def _tell(self, kind: str, **fields: object) -> None:
        self.federation.events.emit(kind, stage=self.stage, label=self.label, **fields)


def _site_record(reply: SiteReply) -> SiteRecord:
    return SiteRecord(
        num_examples=reply.count("num-examples"),
        num_forget=reply.count("num-forget"),
        num_retain=reply.count("num-retain"),
        num_batches=reply.count("num-batches"),
        examples=reply.count("examples"),
        loss=reply.number("loss"),
        metric=reply.number("metric"),
        seconds=reply.number("seconds"),
        bytes_down=reply.bytes_down,
        bytes_up=reply.bytes_up,
        device=reply.text("device"),
        gpu=reply.text("gpu"),
    )


def _update(site: str, after: State, before: State) -> Update:
    shapes = {n: t.shape for n, t in (before.params | before.float_buffers).items()}
    if {n: t.shape for n, t in (after.params | after.float_buffers).items()} != shapes:
        raise RunFailed(f"{site} sent back another model than it was given")
    return update_of(after, before)


def _all_rejected(contributions: Sequence[Contribution]) -> str:
    """Return why a round without a usable update is a divergence; raises `RunFailed` when it is not one."""
    by_status = {
        status: [c for c in contributions if c.record.status == status] for status in ("rejected", "failed", "empty")
    }
    if by_status["rejected"]:
        return "; ".join(f"{c.site}: {c.record.reason}" for c in by_status["rejected"])
    if by_status["failed"]:
        raise RunFailed("no site is left: " + "; ".join(f"{c.site}: {c.record.reason}" for c in by_status["failed"]))
    asked = ", ".join(c.site for c in contributions) or "nobody"
    raise RunFailed(f"no site that was asked has a record to learn from (asked: {asked})")


def _same(a: State, b: State) -> bool:
    pairs = ((a.params, b.params), (a.float_buffers, b.float_buffers), (a.int_buffers, b.int_buffers))
    return all(
        x.keys() == y.keys() and all(x[n].shape == y[n].shape and torch.equal(x[n], y[n]) for n in x) for x, y in pairs
    )
