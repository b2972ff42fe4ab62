"""The door to the sites: ask some of them something, or give Flower's strategy loop a grid that hides no failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from strategies.events import EventSink
from strategies.exchange import FailurePolicy, exchange
from strategies.handover import Handover
from strategies.roster import Roster
from strategies.wire import (
    METRICS,
    Category,
    SiteReply,
    array_bytes,
    call_content,
    make_message,
    reply_of,
)

if TYPE_CHECKING:
    from flwr.supercore.run import Run

    from strategies.rounds import Ask
    from unlearning.state import State


class Federation:
    """The sites, how long they may take, and what happens when one fails.

    Parameters
    ----------
    grid : Grid
        Flower's.
    roster : Roster
        Site names and nodes.
    events : EventSink
        Gets one ``reply`` event a site.
    timeout : float
        Seconds one exchange may take; a site that has not answered by then ends the run.
    failure_policy : {"fail", "continue"}
        After a site raised: end the run, or go on without it. Anything else that goes wrong ends the run.
    handover : Handover, optional
        Hands the models to the sites in files; None sends them in every message.
    """

    def __init__(
        self,
        grid: Grid,
        roster: Roster,
        events: EventSink,
        timeout: float = 3600.0,
        failure_policy: FailurePolicy = "fail",
        handover: Handover | None = None,
    ) -> None:
        self.grid, self.roster, self.events = grid, roster, events
        self.handover = handover
        self.timeout: float = timeout
        self.failure_policy: FailurePolicy = failure_policy

    @property
    def sites(self) -> tuple[str, ...]:
        """Return the site names, sorted."""
        return self.roster.sites

    def rehearse(self, ask_for: Callable[[int], Ask], state: State, rounds: int) -> State | None:
        """Return what stands for the model after rounds that are only planned; None here, where they are run."""
        return None

    def ask(
        self,
        category: Category,
        op: str,
        sites: Sequence[str],
        *,
        state: State | None = None,
        states: Mapping[str, State] | None = None,
        config: Mapping[str, Any] | None = None,
        stage: str = "",
        label: str = "",
        round_: int = 0,
    ) -> list[SiteReply]:
        """Ask `sites` for ``<category>.<op>`` and return their answers sorted by site.

        Parameters
        ----------
        state, states : State, mapping of str to State
            The model and further models; encoded, or handed over, once for all sites.
        config : mapping
            Scalars and flat lists with hyphenated keys.
        stage, label, round_ : str, str, int
            Written into the ``reply`` events.

        Raises
        ------
        RunFailed
            See `strategies.exchange.exchange`. Under ``failure_policy="continue"`` a site that raised gives a reply
            whose `error` is set instead.
        """
        asked = sorted(set(sites))
        content = call_content(state, config or {}, states, self.handover)
        messages = [make_message(category, op, self.roster.node(site), content, str(round_)) for site in asked]
        down, replies = array_bytes(content), dict[str, SiteReply]()

        def hear(site: str, message: Message) -> None:
            replies[site] = reply_of(message, site, down)

        WatchedGrid(self, stage, label, round_, hear).send_and_receive(messages, timeout=self.timeout)
        return [replies[site] for site in asked]

    def ask_all(
        self,
        category: Category,
        op: str,
        config: Mapping[str, Any] | None = None,
        *,
        state: State | None = None,
        states: Mapping[str, State] | None = None,
        stage: str = "",
        label: str = "",
    ) -> list[SiteReply]:
        """Ask every site (arguments as in `ask`)."""
        return self.ask(category, op, self.sites, state=state, states=states, config=config, stage=stage, label=label)


class WatchedGrid(Grid):
    """A grid whose `send_and_receive` answers for every message or raises, and writes the events.

    Parameters
    ----------
    federation : Federation
        Whose grid, roster, events and policy to use.
    stage, label, round_ : str, str, int
        For the events; set `round_` before each exchange.
    heard : callable, optional
        Gets site and reply as each arrives: what is done with it then is done while other sites are still at work.
    """

    def __init__(
        self,
        federation: Federation,
        stage: str,
        label: str,
        round_: int = 0,
        heard: Callable[[str, Message], None] = lambda site, message: None,
    ) -> None:
        self._federation, self._stage, self._label, self._heard = federation, stage, label, heard
        self.round = round_

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Exchange `messages` and return the replies in their order (no messages: no replies)."""
        sent = list(messages)
        federation = self._federation
        return exchange(
            federation.grid,
            sent,
            [federation.roster.site(message.metadata.dst_node_id) for message in sent],
            timeout=federation.timeout if timeout is None else timeout,
            failure_policy=federation.failure_policy,
            on_reply=self._tell,
            during=f"round {self.round} of {self._label}" if self.round else self._label,
        )

    def _tell(self, site: str, reply: Message, elapsed: float) -> None:
        seconds = reply.content.metric_records[METRICS].get("seconds", elapsed) if _has_metrics(reply) else elapsed
        self._federation.events.emit(
            "reply",
            stage=self._stage,
            label=self._label,
            round=self.round,
            site=site,
            seconds=seconds,
            failed=reply.has_error(),
        )
        self._heard(site, reply)

    def set_run(self, run: Run) -> None:
        """Pass on to Flower's grid."""
        self._federation.grid.set_run(run)

    @property
    def run(self) -> Run:
        """Return the run of Flower's grid."""
        return self._federation.grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Make a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the roster's nodes in order of site names."""
        return list(self._federation.roster.nodes.values())

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pass on to Flower's grid."""
        return self._federation.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pass on to Flower's grid."""
        return self._federation.grid.pull_messages(message_ids)


def _has_metrics(reply: Message) -> bool:
    return reply.has_content() and METRICS in reply.content.metric_records
