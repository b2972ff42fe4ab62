"""Sites with real records, networks and operations behind a fake grid: what a method does, end to end, in moments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

from clients.catalogue import MODELS, OPERATIONS, TASKS
from clients.ops import Call
from clients.site import Site, SiteSettings
from partitions.partition import SplitSpec
from partitions.records import LoadedData
from partitions.requests import parse_request
from strategies.base import UnlearningStrategy
from strategies.events import EventSink
from strategies.federation import Federation
from strategies.plans import RequestPlan, Schedule, SiteCounts
from strategies.registry import METHODS
from strategies.roster import Roster
from strategies.wire import CallParts, reply_content
from tests.strategies.fake_grid import FakeGrid
from unlearning.layers import Layer, layers_of
from unlearning.state import State

CLASSES = 4
SIZES = {"site-a": 14, "site-b": 22, "site-c": 31}
SCHEDULE = Schedule(lr=0.05, rounds=3, local_epochs=1, unlearn_epochs=2, recovery_rounds=2, recovery_epochs=1)


class Tiny:
    """Two convolutions, a hidden linear layer and a head for 3x32x32 inputs, with or without BatchNorm."""

    def __init__(self, name: str, norm: bool) -> None:
        self.name, self.title, self._norm = name, name, norm

    def build(self, input_shape: tuple[int, int, int], outputs: int) -> nn.Module:
        def norm(width: int) -> list[nn.Module]:
            return [nn.BatchNorm2d(width)] if self._norm else []

        return nn.Sequential(
            *(nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=not self._norm), *norm(6), nn.ReLU()),
            *(nn.Conv2d(6, 10, 3, stride=2, padding=1), *norm(10), nn.ReLU(), nn.AdaptiveAvgPool2d(4)),
            *(nn.Flatten(), nn.Linear(160, 12), nn.ReLU(), nn.Linear(12, outputs)),
        )


def site(
    name: str = "site-a", size: int | None = None, model: str = "tiny", seed: int | None = None, **settings
) -> Site:
    """Return a site whose classes light up in a place of their own."""
    n = SIZES[name] if size is None else size
    rng = np.random.default_rng(sum(map(ord, name)) if seed is None else seed)
    targets = rng.integers(0, CLASSES, n).astype(np.int64)
    inputs = rng.integers(0, 90, (n, 12, 12), dtype=np.uint8)
    for i, target in enumerate(targets):
        inputs[i, 3 * target : 3 * target + 3, 2:10] += 120
    table = pd.DataFrame(
        {
            "record": [f"{name}-{i * 7919 % 1009:04d}" for i in range(n)],
            "patient": [f"patient-{i % 3}" for i in range(n)],
            "stratum": [str(t) for t in targets],
            "site": "",
            "split": "",
            "position": -1,
        }
    )
    data = LoadedData("toy", inputs, targets, table, tuple("abcd"), "none", "made up", "", "ab" * 32, n)
    spec = SplitSpec(name="iid", sites=1, alpha=0.1, sole_holder="", holdout=0.2, seed=0)
    MODELS._components.setdefault("tiny", Tiny("tiny", False))
    MODELS._components.setdefault("tiny-bn", Tiny("tiny-bn", True))
    chosen = {"batch_size": 8, "device": "cpu", "model": model, **settings}
    made = SiteSettings(home=Path("nowhere"), dataset="toy", cap=0, split=spec, **chosen)
    return Site(name, made, data, {"train": np.arange(n), "holdout": np.arange(0)})


def built(model: str = "tiny", seed: int = 0) -> nn.Module:
    """Return a network with seeded weights and statistics that are not those of a fresh one."""
    site(size=1)
    torch.manual_seed(seed)
    network = TASKS.get("classification").build(model, (12, 12), CLASSES)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            module.running_mean.uniform_(-0.1, 0.1)
    return network


def start(model: str = "tiny", seed: int = 0) -> State:
    """Return the weights of `built`."""
    return State.from_module(built(model, seed))


def layers(model: str = "tiny") -> tuple[Layer, ...]:
    """Return the layers of `built`."""
    return layers_of(built(model), torch.zeros(1, 3, 32, 32))


def sites(model: str = "tiny", **settings) -> dict[str, Site]:
    """Return three unequal sites."""
    return {name: site(name, model=model, **settings) for name in SIZES}


def clinics(
    found: Mapping[str, Site],
    interfere: Callable[[str, CallParts], None] = lambda *_: None,
    *,
    shuffle_seed: int = 3,
    events: EventSink | None = None,
) -> Federation:
    """Return a federation of real sites; `interfere` may raise before a site works."""

    def answer(name: str, message_type: str, call: CallParts):
        interfere(name, call)
        reply = OPERATIONS.get(call.op).run(found[name], Call(call.op, call.state, call.config, call.states))
        return reply_content(
            state=reply.state, metrics=reply.metrics, config=reply.config, tables=reply.tables, arrays=reply.arrays
        )

    nodes = {name: 100 + 7 * (len(found) - i) for i, name in enumerate(sorted(found))}
    return Federation(FakeGrid(nodes, answer, shuffle_seed), Roster(nodes, {}), events or EventSink(None), 60.0, "fail")


def request(found: Mapping[str, Site], text: str, seed: int = 0) -> RequestPlan:
    """Return the plan of a request on these sites."""
    parsed = parse_request(text)
    counted = {name: one.selection_summary(parsed.text, seed) for name, one in found.items()}
    return RequestPlan(
        text=parsed.text,
        seed=seed,
        granularity=parsed.steps[-1].granularity,
        departed=parsed.departed,
        counts={n: SiteCounts(int(c["num-forget"]), int(c["num-retain"])) for n, c in counted.items()},
    )


def method(
    name: str,
    fed: Federation,
    plan: RequestPlan,
    *,
    model: str = "tiny",
    preset: str = "lethe",
    schedule: Schedule = SCHEDULE,
    seed: int = 7,
    overrides: Mapping[str, object] | None = None,
    **kwargs,
) -> UnlearningStrategy:
    """Return a method on a request."""
    cls = METHODS.get(name)
    config = cls.resolve_config(preset, overrides or {})
    return cls(fed, schedule, plan, seed=seed, config=config, layers=layers(model), **kwargs)


def asked(fed: Federation) -> list[tuple[str, str]]:
    """Return who was asked for what."""
    return [(name, kind) for name, kind, _ in fed.grid.calls()]
