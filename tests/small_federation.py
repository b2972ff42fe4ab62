"""Four unequal sites in the test's process: real operations, sites, wire and strategies, no Flower app."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from clients.catalogue import OPERATIONS, TASKS
from clients.ops import Call, Reply, perform
from clients.site import Site, SiteSettings
from flower_apps.sites import request_plan
from partitions.partition import SplitSpec
from partitions.records import LoadedData
from strategies.base import UnlearningStrategy
from strategies.events import EventSink
from strategies.federation import Federation
from strategies.history import History, HistoryWriter, RoundRecord
from strategies.plans import Outcome, RequestPlan, Schedule
from strategies.recording import RecordingFedAvg
from strategies.recovery import run_recovery
from strategies.registry import METHODS
from strategies.roster import Roster
from strategies.wire import array_bytes, call_of, error_reply, reply_content
from unlearning.layers import Layer, layers_of
from unlearning.state import State

CLASSES = ("air", "lung", "bone")
SIZES = {"site-a": 9, "site-b": 17, "site-c": 25, "site-d": 34}
HOLDOUT = 4
SIDE = 32
"""No padding, and grey on average: black everywhere would kill the rectified units of a network without norm."""
REQUESTS = {"client": "client:site-b", "class": "class:0", "patient": "patient:p-0", "sample": "sample:0.3"}
"""One of each kind. All records of site-a are of class 0 and patient p-0: it keeps none, yet has not departed."""
SCHEDULE = Schedule(
    lr=0.01, rounds=3, local_epochs=1, unlearn_epochs=2, recovery_rounds=2, recovery_epochs=1, fraction_train=1.0
)


def made_up_data(sizes: Mapping[str, int]) -> tuple[LoadedData, dict[str, np.ndarray]]:
    """Return a separable toy data set and the positions of each site's records; the last of each are held out."""
    rng = np.random.default_rng(0)
    n = sum(size + HOLDOUT for size in sizes.values())
    ends = np.cumsum([size + HOLDOUT for size in sizes.values()])
    places = dict(zip(sizes, np.split(np.arange(n), ends[:-1]), strict=True))
    targets = rng.integers(0, len(CLASSES), n).astype(np.int64)
    patients = rng.integers(0, 3, n)
    if len(sizes) > 1:
        targets[places["site-a"]] = patients[places["site-a"]] = 0
    inputs = rng.integers(90, 165, (n, SIDE, SIDE), dtype=np.uint8)
    inputs[np.arange(n), targets] += 90
    table = pd.DataFrame(
        {
            "record": [f"{i:016x}" for i in range(n)],
            "patient": [f"p-{i}" for i in patients],
            "stratum": [str(t) for t in targets],
            "site": "",
            "split": "",
            "position": -1,
        }
    )
    facts = {"classes": CLASSES, "licence": "none", "source": "made up", "citation": "", "fingerprint": "ab" * 32}
    return LoadedData(name="toy", inputs=inputs, targets=targets, table=table, available=n, **facts), places


def make_sites(model: str, sizes: Mapping[str, int] = SIZES, **settings: Any) -> dict[str, Site]:
    """Return sites of their own, on data of their own."""
    data, places = made_up_data(sizes)
    split = SplitSpec(name="iid", sites=len(sizes), alpha=0.1, sole_holder="", holdout=0.2, seed=0)
    chosen = {"batch_size": 8, "device": "cpu", **settings}
    made = SiteSettings(home=Path("nowhere"), dataset="toy", cap=0, split=split, model=model, **chosen)
    return {
        name: Site(name, made, data, {"train": found[:-HOLDOUT], "holdout": found[-HOLDOUT:]})
        for name, found in places.items()
    }


@dataclass
class Asked:
    """One message: to whom, what, and what came back."""

    site: str
    kind: str
    config: Mapping[str, Any]
    reply: Reply
    down: int
    up: int


@dataclass
class SiteGrid(Grid):
    """Answers each message with the real operation at the real site, and gives the replies back in any order.

    Attributes
    ----------
    asked : list of Asked
        What was sent.
    opened : dict of str to set of int
        The records that each site read, as positions in the data set.
    """

    sites: Mapping[str, Site]
    asked: list[Asked] = field(default_factory=list)
    opened: dict[str, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self._shuffle = random.Random()
        names = list(self.sites)
        self._shuffle.shuffle(names)
        self.nodes = dict(sorted((name, 100 + 7 * number) for number, name in enumerate(names)))
        self._replies: dict[str, Message] = {}

    def federation(self) -> Federation:
        """Return the federation of the sites."""
        described = {name: _described(site) for name, site in self.sites.items()}
        return Federation(self, Roster(self.nodes, described), EventSink(None), timeout=60.0)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"{len(self.asked)}-{len(self._replies)}-{len(ids)}"
            self._replies[message.metadata.message_id] = self._answer(message)
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = [self._replies.pop(one) for one in message_ids if one in self._replies]
        self._shuffle.shuffle(found)
        return found

    def _answer(self, message: Message) -> Message:
        name = next(site for site, node in self.nodes.items() if node == message.metadata.dst_node_id)
        site, call = self.sites[name], call_of(message)
        try:
            with _watched(site, self.opened.setdefault(name, set())):
                reply = perform(OPERATIONS.get(call.op), site, Call(call.op, call.state, call.config, call.states))
        except Exception as error:
            return error_reply(message, error)
        parts = {"metrics": reply.metrics, "config": reply.config, "tables": reply.tables, "arrays": reply.arrays}
        content = reply_content(state=reply.state, **parts)
        down, up = array_bytes(message.content), array_bytes(content)
        self.asked.append(Asked(name, message.metadata.message_type, call.config, reply, down, up))
        return Message(content, reply_to=message)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes.values())

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise AssertionError("it hides unanswered messages")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError("not used")

    def set_run(self, run: Any) -> None:
        raise AssertionError("not used")

    @property
    def run(self) -> Any:
        raise AssertionError("not used")


@lru_cache(maxsize=64)
def _described(site: Site) -> Mapping[str, Any]:
    return site.describe()


@contextmanager
def _watched(site: Site, opened: set[int]) -> Iterator[None]:
    """Note the records that the site's worker, the only way to them, reads."""
    worker = site.worker
    read = worker.batch

    def batch(inputs: np.ndarray, targets: np.ndarray, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        opened.update(int(index) for index in indices)
        return read(inputs, targets, indices)

    worker.batch = batch  # type: ignore[method-assign]
    try:
        yield
    finally:
        del worker.batch


def plan_of(sites: Mapping[str, Site], text: str) -> RequestPlan:
    """Return what a server knows of a request."""
    return request_plan(text, 0, {name: site.selection_summary(text, 0) for name, site in sites.items()})


@dataclass(frozen=True)
class Run:
    """One method on one request: what it was given, what it ended with, and everything that was sent."""

    strategy: UnlearningStrategy
    start: State
    outcome: Outcome
    grid: SiteGrid
    recovery: Outcome | None = None
    recovery_grid: SiteGrid | None = None
    recovery_records: tuple[RoundRecord, ...] = ()


class Original:
    """A model trained over all sites, with its history, and everything that may then be done to forget.

    Parameters
    ----------
    model : str
        Registry name of the network.
    sizes : mapping of str to int
        Training records of each site.
    rounds : int
        Of the training.
    settings : Any
        Of the sites, such as the batch size.
    """

    def __init__(self, model: str, sizes: Mapping[str, int] = SIZES, rounds: int = SCHEDULE.rounds, **settings: Any):
        self.model, self.sizes, self.settings = model, sizes, settings
        self.schedule = replace(SCHEDULE, rounds=rounds)
        self._folder = tempfile.TemporaryDirectory()
        self.history = History(Path(self._folder.name) / "history")
        strategy = RecordingFedAvg(
            SiteGrid(self.sites()).federation(),
            self.schedule,
            seed=0,
            participants=list(sizes),
            message_config={"records": "all"},
            history=HistoryWriter(self.history.folder),
            label="original",
        )
        self.state = strategy.run(self.initial, rounds).state
        self.history = History(self.history.folder)

    def sites(self) -> dict[str, Site]:
        """Return fresh sites."""
        return make_sites(self.model, self.sizes, **self.settings)

    @cached_property
    def initial(self) -> State:
        """The weights before training."""
        torch.manual_seed(0)
        return State.from_module(self.built())

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The model's layers."""
        return layers_of(self.built(), TASKS.get("classification").to_inputs(np.zeros((1, SIDE, SIDE), np.uint8)))

    def built(self) -> torch.nn.Module:
        """Return a network with fresh weights."""
        return TASKS.get("classification").build(self.model, (SIDE, SIDE), len(CLASSES))

    def unlearn(
        self,
        name: str,
        text: str,
        *,
        seed: int = 7,
        recover: bool = False,
        overrides: Mapping[str, Any] | None = None,
        sites: Mapping[str, Site] | None = None,
        plan: RequestPlan | None = None,
        start: State | None = None,
        **schedule: Any,
    ) -> Run:
        """Run a method on a request, and the recovery behind it where asked."""
        method, grid = METHODS.get(name), SiteGrid(sites or self.sites())
        plan = plan or plan_of(grid.sites, text)
        given = replace(self.schedule, **schedule)
        config = method.resolve_config("lethe", overrides or {})
        strategy = method(
            grid.federation(), given, plan, seed=seed, config=config, history=self.history, layers=self.layers
        )
        start = start or (self.initial if name == "retrain" else self.state)
        run = Run(strategy, start, strategy.run(start), grid)
        if not recover or run.outcome.status != "ok":
            return run
        behind = SiteGrid(grid.sites)
        with tempfile.TemporaryDirectory() as folder:
            hook = strategy.recovery_hook(start, run.outcome.state)
            work = HistoryWriter(Path(folder))
            recovery = run_recovery(
                behind.federation(), given, plan, run.outcome.state, seed=seed, work=work, hook=hook
            )
            history = work.read()
            records = tuple(history.record(round_) for round_ in history.rounds)
        return replace(run, recovery=recovery, recovery_grid=behind, recovery_records=records)
