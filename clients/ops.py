"""What a site can be asked: the operations by name, from a decoded call to a reply. No Flower in here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd
import torch

from clients.scoring import Tables, score_records, score_some
from clients.site import Fact, Records, Site
from clients.training import LocalPlan, LocalResult, train_locally
from clients.worker import gpu_share
from partitions.errors import BadInput, Refused, RunFailed
from partitions.seeds import derive_seed
from unlearning.state import State

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """A question to a site.

    Attributes
    ----------
    op : str
        Name of the operation.
    state : State or None
        The model.
    config : mapping
        Scalars with hyphenated keys.
    states : mapping of str to State
        Further models by name.
    """

    op: str
    state: State | None
    config: Mapping[str, Any]
    states: Mapping[str, State] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """A site's answer.

    Attributes
    ----------
    state : State or None
        The model after the work; None when there was nothing to work on.
    metrics : dict
        Numbers.
    config : dict
        Other scalars and flat lists.
    tables : dict of str to DataFrame
        Tables by name.
    arrays : dict of str to dict of str to ndarray
        Further arrays by name.
    """

    state: State | None = None
    metrics: dict[str, int | float] = field(default_factory=dict)
    config: dict[str, Fact | float | bool] = field(default_factory=dict)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    arrays: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)


@dataclass(frozen=True)
class Op:
    """An operation.

    Attributes
    ----------
    name : str
        A Python identifier: it becomes the message type ``<category>.<name>``.
    category : {"train", "evaluate", "query"}
        Flower's kind of message.
    run : callable
        ``(site, call) -> reply``.
    """

    name: str
    category: Literal["train", "evaluate", "query"]
    run: Callable[[Site, Call], Reply]


def perform(op: Op, site: Site, call: Call) -> Reply:
    """Do an operation at a site; raises `Refused` where the site's policy is not to."""
    if op.name in site.refuses:
        raise Refused(f"{site.name} refuses {op.name} (`refuse` in its node config)")
    return op.run(site, call)


def asked(config: Mapping[str, Any], key: str, kind: type[T], default: T | None = None) -> T:
    """Return a value of a call's config as `kind`; raises `BadInput` when it is missing and has no default."""
    value = config.get(key, default)
    if value is None:
        raise BadInput(key, value, f"a {kind.__name__} in the message's config")
    return kind(value)  # type: ignore[call-arg]


def model_of(call: Call) -> State:
    """Return the call's model; raises `BadInput` when it has none."""
    if call.state is None:
        raise BadInput("op", call.op, "a message with a model", "send the arrays with it")
    return call.state


def request_of(call: Call) -> tuple[str, int]:
    """Return the call's request and request seed; an empty request forgets nothing."""
    return asked(call.config, "request", str, ""), asked(call.config, "request-seed", int, 0)


def asked_site(site: Site, call: Call) -> Site:
    """Return the site, or with config ``clean`` the same site without the backdoor that was planted in its records."""
    return site.clean if asked(call.config, "clean", bool, False) else site


def local_plan(site: Site, call: Call) -> LocalPlan:
    """Return how a site trains, from its own settings and the call's config.

    The seed is derived from the call's seed, purpose and round and the site's name.
    """
    config, settings = call.config, site.settings
    seed, purpose = asked(config, "seed", int), asked(config, "purpose", str, "train")
    return LocalPlan(
        lr=asked(config, "lr", float),
        epochs=asked(config, "epochs", int),
        seed=derive_seed(seed, purpose, site.name, asked(config, "round", int, 0)),
        batch_size=settings.batch_size,
        last_batch=settings.last_batch,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        max_norm=asked(config, "max-norm", float, 0.0),
        prox_mu=asked(config, "prox-mu", float, 0.0),
    )


def work_on(site: Site, call: Call, which: Records, work: Callable[[np.ndarray], LocalResult]) -> Reply:
    """Run `work` on the site's training records that are meant, and report it; no records, no work and no state.

    Raises
    ------
    RunFailed
        When the GPU has too little memory, naming site, batch and what to change.
    """
    request, seed = request_of(call)
    indices = site.records(which, request, seed)
    counts: dict[str, int | float] = {
        "num-examples": len(indices),
        "num-forget": len(site.records("forget", request, seed)),
        "num-retain": len(site.records("retain", request, seed)),
    }
    device = str(site.worker.device)
    who: dict[str, Fact | float | bool] = {"site": site.name, "device": device, "gpu": gpu_share()}
    if not len(indices):
        nothing = {"num-batches": 0, "examples": 0, "loss": math.nan, "metric": math.nan, "seconds": 0.0}
        return Reply(metrics=counts | nothing, config=who | {"status": "ok", "reason": f"no {which} records"})
    try:
        done = work(indices)
    except torch.cuda.OutOfMemoryError as error:
        raise RunFailed(
            f"site {site.name} ran out of memory on {device} at batch-size={site.settings.batch_size}: let fewer "
            f"workers share the GPU (--workers, a larger num-gpus a client) or take a smaller batch-size ({error})"
        ) from None
    did = {
        "num-batches": done.num_batches,
        "examples": done.examples,
        "loss": done.loss,
        "metric": done.metric,
        "seconds": done.seconds,
    }
    return Reply(done.state, counts | did, who | {"status": done.status, "reason": done.reason})


def describe(site: Site, call: Call) -> Reply:
    """Answer who the site is (`Site.describe`)."""
    return Reply(config=dict(site.describe()))


def select(site: Site, call: Call) -> Reply:
    """Answer how many records a request means here (`Site.selection_summary`)."""
    return Reply(config={"site": site.name, **site.selection_summary(*request_of(call))})


def train(site: Site, call: Call) -> Reply:
    """Train locally: config seed, lr, epochs, and if wanted round, purpose, records, clean, request, max-norm, prox-mu.

    A further model ``trainable`` holds masks of what may change, see `clients.training.PartlyTrainable`.
    """
    site = asked_site(site, call)
    plan, state = local_plan(site, call), model_of(call)
    which = asked(call.config, "records", str, "all")
    part = call.states["trainable"].params if "trainable" in call.states else None
    return work_on(site, call, which, lambda found: train_locally(site.worker, state, site.train, found, plan, part))  # type: ignore[arg-type]


def score(site: Site, call: Call) -> Reply:
    """Answer the ``scorecard`` of the site's records under the model, and its ``comparison`` with a model ``other``.

    Config: request, request-seed, clean.
    """
    started = time.perf_counter()
    site = asked_site(site, call)
    return scored(site, score_records(site, model_of(call), call.states.get("other"), *request_of(call)), started)


def score_forgotten(site: Site, call: Call) -> Reply:
    """Answer the ``scorecard`` of only those of the site's records that the request's last step forgets.

    Config: request, request-seed, clean.
    """
    started = time.perf_counter()
    site = asked_site(site, call)
    table = score_some(site, model_of(call), *request_of(call), lambda told: told["selected"])
    return scored(site, {"scorecard": table}, started)


def scored(site: Site, tables: Tables, started: float) -> Reply:
    """Answer with tables of records, how many the first has, and the seconds since `started` (`time.perf_counter`)."""
    return Reply(
        metrics={"num-examples": len(next(iter(tables.values()))), "seconds": time.perf_counter() - started},
        config={"site": site.name, "device": str(site.worker.device), "gpu": gpu_share()},
        tables=tables,
    )


OPS = [
    Op("describe", "query", describe),
    Op("select", "query", select),
    Op("train", "train", train),
    Op("recover", "train", train),
    Op("relearn", "train", train),
    Op("scorecard", "evaluate", score),
    Op("forgotten", "evaluate", score_forgotten),
]
