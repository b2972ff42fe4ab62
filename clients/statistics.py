"""What a site answers when it is asked for statistics of its records instead of a trained model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from clients.forgetting import Records
from clients.ops import Call, Reply, model_of, request_of, work_on
from clients.site import Site
from clients.training import LocalResult, batches


@dataclass(frozen=True)
class Statistics:
    """What was measured.

    Attributes
    ----------
    arrays : mapping of str to mapping of str to Tensor
        By name, then by parameter or layer; floats are sent in 32 bits.
    metrics : mapping of str to number
        More numbers to send.
    batches, examples : int
        Backward passes (a forward pass alone is none), and records processed; they count as the work of a step does.
    """

    arrays: Mapping[str, Mapping[str, Tensor]]
    metrics: Mapping[str, int | float] = field(default_factory=dict)
    batches: int = 0
    examples: int = 0


Measure = Callable[[nn.Module, Records, Records], Statistics]


def measure_locally(site: Site, call: Call, measure: Measure) -> Reply:
    """Run `measure` on the call's model and report it; a site without records has nothing to report.

    Parameters
    ----------
    site : Site
        Where.
    call : Call
        Model and request.
    measure : callable
        ``(model, everything, forget) -> Statistics``: an fp32 model in eval mode, without TF32, as models are scored;
        all records that no earlier request forgot; those of them to forget.
    """
    state, worker = model_of(call), site.worker
    measured: list[Statistics] = []

    def work(everything: np.ndarray) -> LocalResult:
        started = time.perf_counter()
        forget = site.records("forget", *request_of(call))
        with worker.scoring():
            model = worker.scorer(state)
            done = measure(model, Records(site, everything, "both"), Records(site, forget, "forget"))
        measured.append(done)
        nan = float("nan")
        seconds = time.perf_counter() - started
        return LocalResult(state, len(everything), done.batches, done.examples, nan, nan, seconds)

    reply = work_on(site, call, "both", work)
    if not measured:
        return reply
    arrays = {name: {n: _on_the_wire(t) for n, t in group.items()} for name, group in measured[0].arrays.items()}
    return replace(reply, state=None, arrays=arrays, metrics={**reply.metrics, **measured[0].metrics})


def in_fixed_order(records: Records, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and targets in batches of `size`, in the order of the records' ids; the last may be shorter.

    Ids are hashes: this order mixes the classes, and is the same wherever a record lies and whatever the seed is.
    """
    order = np.argsort(np.array(records.ids()), kind="stable")
    cut = [order[begin : begin + size] for begin in range(0, len(order), size)]
    return batches(records.site.worker, records.site.train, records.indices, cut)


def _on_the_wire(tensor: Tensor) -> np.ndarray:
    wide = tensor.to(torch.float32) if tensor.is_floating_point() else tensor
    return np.asarray(wide.cpu().contiguous().numpy())
