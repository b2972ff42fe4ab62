"""A federation in the test's process: real ServerApp code, strategies, wire and ClientApp, no Flower transport."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from flower_apps.client_app import app as client_app
from flower_apps.evaluators import scoring
from flower_apps.executor import GroupExecutor
from flower_apps.preflight import check_groups
from flower_apps.runs import RunFolder
from flower_apps.settings import GroupSettings
from flower_apps.sites import FederatedSites, LocalSites, partition_of
from strategies.events import EventSink
from strategies.federation import Federation
from strategies.roster import meet_sites

MODEL_NODES = 2**40


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


def kill_at(kind: str, count: int) -> Callable[[Message], None]:
    """Return what ends the run at the `count`-th message of a kind."""
    seen = [0]

    def before(message: Message) -> None:
        if message.metadata.message_type == kind:
            seen[0] += 1
            if seen[0] == count:
                raise Killed

    return before


class InProcessGrid(Grid):
    """Answers each message with the ClientApp at once, and gives the replies back in a shuffled order.

    Parameters
    ----------
    run_config : mapping
        Of every node.
    nodes : int
        How many; their ids are random.
    before : callable, optional
        Called with each message before the site works on it; raising `Killed` there ends the run as a kill would.
    refuse : mapping of int to str
        What a node's config refuses, by its number.
    """

    def __init__(
        self,
        run_config: dict[str, Any],
        nodes: int,
        before: Callable[[Message], None] | None = None,
        refuse: Mapping[int, str] | None = None,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self._shuffle = random.Random()
        self._contexts = {
            self._shuffle.randrange(MODEL_NODES): Context(
                run_id=1,
                node_id=number,
                node_config={
                    "partition-id": number,
                    "num-partitions": nodes,
                    "refuse": (refuse or {}).get(number, ""),
                },
                state=RecordDict(),
                run_config=run_config,
            )
            for number in range(nodes)
        }
        self._replies: dict[str, Message] = {}
        self._before = before
        self.sent: Counter[str] = Counter()

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = f"{len(self.sent)}-{sum(self.sent.values())}-{number}"
            self.sent[message.metadata.message_type] += 1
            if self._before is not None:
                self._before(message)
            reply = client_app(message, self._contexts[message.metadata.dst_node_id])
            self._replies[message.metadata.message_id] = reply
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = [self._replies.pop(one) for one in message_ids if one in self._replies]
        self._shuffle.shuffle(found)
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError("not used")

    def set_run(self, run: Any) -> None:
        raise AssertionError("not used")

    @property
    def run(self) -> Any:
        raise AssertionError("not used")


def run_group(
    settings: GroupSettings,
    home: Path,
    out: Path,
    before: Callable[[Message], None] | None = None,
    refuse: Mapping[int, str] | None = None,
) -> InProcessGrid:
    """Execute one group as the ServerApp does and return the grid, which knows what was sent."""
    check_groups([settings])
    nodes = len(partition_of(settings, home).sites)
    grid = InProcessGrid({**settings.to_run_config(), "home": str(home)}, nodes, before, refuse)
    run = RunFolder(out)
    with closing(EventSink(run.path / "events.jsonl")) as events:
        federation = Federation(grid, meet_sites(grid, nodes, {}, events), events, 60.0, settings.failure_policy)
        with scoring(settings, run.path, lambda text: events.emit("note", text=text)) as evaluator:
            GroupExecutor(settings, home, run, FederatedSites(federation), federation, events, evaluator).execute()
    return grid


def read_group(settings: GroupSettings, home: Path, out: Path) -> None:
    """Execute one group from the cache alone."""
    run = RunFolder(out)
    with scoring(settings, run.path, lambda text: None) as evaluator:
        GroupExecutor(settings, home, run, LocalSites(settings, home), None, EventSink(None), evaluator).execute()
