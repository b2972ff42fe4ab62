"""Sites that need no model or data: each pulls the weights towards a target of its own, deterministically."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from fake_grid import FakeGrid

from partitions.seeds import generator
from strategies.events import EventSink
from strategies.federation import Federation
from strategies.plans import RequestPlan, Schedule, SiteCounts
from strategies.roster import Roster
from strategies.wire import CallParts, reply_content
from unlearning.layers import Layer
from unlearning.state import State

SITES = ("site-a", "site-b", "site-c", "site-d")
SCHEDULE = Schedule(lr=0.1, rounds=4, local_epochs=2, unlearn_epochs=5, recovery_rounds=3, recovery_epochs=2)
LAYERS = (Layer("", "linear", "w", "", "", 3),)
"""Of the model whose state is `start_state`."""


def start_state(size: int = 3) -> State:
    """Return a small state with all three groups and 0-d tensors."""
    return State(
        {"w": torch.linspace(1.0, 2.0, size), "scale": torch.tensor(0.5)},
        {"bn.running_mean": torch.zeros(2), "bn.running_var": torch.ones(2)},
        {"bn.num_batches_tracked": torch.tensor(3)},
    )


@dataclass
class Hospitals:
    """The handler of a fake grid.

    Attributes
    ----------
    counts : mapping of str to (forget, retain)
        Records of each site.
    interfere : callable
        ``(site, op, call)``; may raise, or return a function that changes the reply's parts.
    """

    counts: Mapping[str, tuple[int, int]]
    interfere: Callable[[str, str, CallParts], Callable[[dict], dict] | None] = lambda *_: None
    targets: dict[str, np.ndarray] = field(default_factory=dict)

    def __call__(self, site: str, message_type: str, call: CallParts):
        changed = self.interfere(site, call.op, call)
        parts = self._describe(site) if call.op == "describe" else self._train(site, call)
        return reply_content(**(changed(parts) if changed else parts))

    def _describe(self, site: str) -> dict:
        return {"config": {"name": site}, "metrics": {"num-train": sum(self.counts[site])}}

    def _train(self, site: str, call: CallParts) -> dict:
        forget, retain = self.counts[site]
        records = str(call.config["records"])
        both = forget + retain
        n = {"all": both, "both": both, "forget": forget, "retain": retain if call.config["request"] else both}[records]
        metrics = {"num-examples": n, "num-forget": forget, "num-retain": retain, "num-batches": 0, "seconds": 0.0}
        config = {"site": site, "device": "cpu", "gpu": "", "status": "ok", "reason": ""}
        if n == 0:
            return {"metrics": {**metrics, "loss": math.nan, "metric": math.nan}, "config": config}
        epochs, state = int(call.config["epochs"]), pulled(call.state, site, call.config)
        did = {"num-batches": epochs * 2, "examples": n * epochs, "loss": 0.5, "metric": 0.25, "seconds": 0.125}
        return {"state": state, "metrics": {**metrics, **did}, "config": config}


def pulled(state: State, site: str, config: Mapping) -> State:
    """Return the state after noisy steps towards the site's target (away from it for `ascend`-like records)."""
    noise = generator(int(config["seed"]), str(config["purpose"]), site, int(config["round"]))
    target = float(generator(0, "target", site).normal())
    params = dict(state.params)
    for _ in range(int(config["epochs"])):
        params = {
            n: (t - float(config["lr"]) * (t - target + 0.1 * torch.tensor(noise.normal(size=t.shape)))).to(t.dtype)
            for n, t in params.items()
        }
    buffers = {n: t + float(config["lr"]) * 0.1 for n, t in state.float_buffers.items()}
    return State(params, buffers, {n: t + 5 for n, t in state.int_buffers.items()})


def federation(
    hospitals: Hospitals,
    *,
    shuffle_seed: int = 0,
    timeout: float = 5.0,
    failure_policy: str = "fail",
    node_offset: int = 100,
    events: EventSink | None = None,
) -> Federation:
    """Return a federation over a fake grid; node ids are arbitrary."""
    names: Sequence[str] = sorted(hospitals.counts)
    nodes = {site: node_offset + 7 * (len(names) - i) for i, site in enumerate(names)}
    grid = FakeGrid(nodes, hospitals, shuffle_seed)
    return Federation(grid, Roster(nodes, {}), events or EventSink(None), timeout, failure_policy)


def counts(request_site: str = "site-a", sites: Sequence[str] = SITES) -> dict[str, tuple[int, int]]:
    """Return a client request on one site: it holds only forget records, the others only retain records."""
    sizes = {site: 10 * (i + 1) for i, site in enumerate(sites)}
    return {site: (n, 0) if site == request_site else (0, n) for site, n in sizes.items()}


def spread(sites: Sequence[str] = SITES) -> dict[str, tuple[int, int]]:
    """Return a class request: all sites but the last hold forget records, and all hold retain records."""
    return {site: (0 if site == sites[-1] else 5 * (i + 1), 10 * (i + 1)) for i, site in enumerate(sites)}


def plan(held: Mapping[str, tuple[int, int]], departed: Sequence[str] = ("site-a",), text: str = "") -> RequestPlan:
    """Return the request plan that fits the counts."""
    return RequestPlan(
        text=text or f"client:{','.join(departed)}",
        seed=0,
        granularity="client",
        departed=tuple(departed),
        counts={site: SiteCounts(*c) for site, c in held.items()},
    )


def schedule(**changes) -> Schedule:
    """Return the common schedule with some values replaced."""
    return replace(SCHEDULE, **changes)
