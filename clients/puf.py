"""PUF at a site: ordinary local training on each kind of record, put together with its sign (METHODS 1.6)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from clients.ops import Call, Op, Reply, asked, local_plan, model_of, request_of, work_on
from clients.site import Site
from clients.training import LocalResult, train_locally
from partitions.seeds import derive_seed
from unlearning.puf import signed_model
from unlearning.state import State, update_of

KINDS: tuple[Literal["retain", "forget"], ...] = ("retain", "forget")


def run(site: Site, call: Call) -> Reply:
    """Train from the call's model on each kind of record apart, and answer the signed sum.

    Config as for `train` with records "forget" or "both", and eta. Each training is an ordinary one, so that a site
    without forget records answers what `train` would, with the buffers it received.
    """
    start, plan, request = model_of(call), local_plan(site, call), request_of(call)
    meant, eta = asked(call.config, "records", str, "forget"), asked(call.config, "eta", float)

    def work(_: np.ndarray) -> LocalResult:
        started = time.perf_counter()
        done: dict[str, LocalResult] = {}
        for kind in KINDS:
            found = site.records(kind, *request) if meant in (kind, "both") else np.zeros(0, np.int64)
            if len(found):
                own = replace(plan, seed=plan.seed if kind == "retain" else derive_seed(plan.seed, kind))
                done[kind] = train_locally(site.worker, start, site.train, found, own)
        return replace(_together(start, done, eta), seconds=time.perf_counter() - started)

    return work_on(site, call, meant, work)  # type: ignore[arg-type]


def _together(start: State, done: Mapping[str, LocalResult], eta: float) -> LocalResult:
    updates = {kind: update_of(result.state, start) for kind, result in done.items()}
    counts = {kind: done[kind].num_examples if kind in done else 0 for kind in KINDS}
    signed = signed_model(start, updates.get("retain"), updates.get("forget"), counts["retain"], counts["forget"], eta)
    results = list(done.values())
    wrong = [f"{kind} records: {result.reason}" for kind, result in done.items() if result.status != "ok"]
    steps, seen = sum(r.num_batches for r in results), sum(r.examples for r in results)
    return LocalResult(
        state=signed,
        num_examples=sum(counts.values()),
        num_batches=steps,
        examples=seen,
        loss=sum(r.loss * r.num_batches for r in results if r.num_batches) / steps if steps else float("nan"),
        metric=sum(r.metric * r.examples for r in results if r.examples) / seen if seen else float("nan"),
        seconds=0.0,
        status="not-finite" if wrong or not signed.is_finite() else "ok",
        reason="; ".join(wrong),
    )


OPS = [Op("pseudo_gradient", "train", run)]
