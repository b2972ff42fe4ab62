"""Local SGD at a site: the one training loop that training, retraining and recovery share."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD

from clients.site import LastBatch, View
from clients.worker import Worker
from partitions.errors import BadInput
from unlearning.local import set_modes
from unlearning.state import State

Status = Literal["ok", "diverged", "not-finite"]


@dataclass(frozen=True)
class LocalPlan:
    """How a site trains.

    Attributes
    ----------
    lr, momentum, weight_decay : float
        Of SGD.
    epochs, batch_size : int
        Passes over the records, and records in a batch.
    last_batch : {"keep", "drop", "merge"}
        See `batch_order`.
    seed : int
        Of the batch order and of torch's random streams, derived for this site and round.
    max_norm : float
        Clip of the gradients' L2 norm; 0: none.
    prox_mu : float
        FedProx: weight of half the squared distance to the weights received; 0: none.
    """

    lr: float
    epochs: int
    seed: int
    batch_size: int = 64
    last_batch: LastBatch = "merge"
    momentum: float = 0.0
    weight_decay: float = 0.0
    max_norm: float = 0.0
    prox_mu: float = 0.0


@dataclass(frozen=True)
class LocalResult:
    """What a local training ended with.

    Attributes
    ----------
    state : State
        The weights after the last step taken; fp32, fp64 under 64-true.
    num_examples, num_batches, examples : int
        Records trained on (each counted once), gradient steps taken, and records processed by those steps.
    loss, metric : float
        Task loss averaged over steps, and task metric averaged over the records of all steps, both as seen in train
        mode before each step; NaN without a step.
    seconds : float
        Wall time.
    status : {"ok", "diverged", "not-finite"}
        "not-finite" when a loss or the weights were: the server must not use the state.
    reason : str
        What was wrong; empty for "ok".
    """

    state: State
    num_examples: int
    num_batches: int
    examples: int
    loss: float
    metric: float
    seconds: float
    status: Status = "ok"
    reason: str = ""


def batch_order(n: int, epochs: int, batch_size: int, last_batch: LastBatch, seed: int) -> list[np.ndarray]:
    """Return the positions (0 to n-1) of each batch, one epoch after the other; depends on nothing but its arguments.

    Parameters
    ----------
    n : int
        Records; 0 gives no batches.
    epochs, batch_size : int
        Each epoch is a new permutation cut into batches.
    last_batch : {"keep", "drop", "merge"}
        What becomes of a last batch of a single record, which BatchNorm cannot train on: merge it with the one before,
        drop it, or keep it. It stays where it is the only batch, and where every batch has one record.
    seed : int
        Seeds ``numpy.random.default_rng``.
    """
    rng = np.random.default_rng(seed)
    ends = list(range(batch_size, n, batch_size))
    lone = n % batch_size == 1 and n > 1 and batch_size > 1
    if lone and last_batch == "merge":
        ends.pop()
    batches: list[np.ndarray] = []
    for _ in range(epochs if n else 0):
        epoch = np.split(rng.permutation(n), ends)
        batches += epoch[:-1] if lone and last_batch == "drop" else epoch
    return batches


def batches(
    worker: Worker, view: View, indices: np.ndarray, order: Sequence[np.ndarray]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and targets of each batch of `order`, positions in `indices`, on the worker's device."""
    for positions in order:
        yield worker.batch(view.inputs, view.targets, indices[positions])


def train_locally(
    worker: Worker,
    state: State,
    view: View,
    indices: np.ndarray,
    plan: LocalPlan,
    trainable: Mapping[str, Tensor] | None = None,
) -> LocalResult:
    """Train from `state` on the records at `indices`, with a fresh optimiser.

    A batch of one record is trained with BatchNorm in eval mode. The first loss that is not finite ends the training.

    Parameters
    ----------
    worker : Worker
        Its training model is overwritten.
    state : State
        The weights to start from.
    view : View
        Where the records lie.
    indices : ndarray
        Which records, as positions in the view's arrays; not empty.
    plan : LocalPlan
        How.
    trainable : mapping of str to Tensor, optional
        What may change, see `PartlyTrainable`; everything where it is not given.
    """
    started = time.perf_counter()
    order = batch_order(len(indices), plan.epochs, plan.batch_size, plan.last_batch, plan.seed)
    model = worker.load(state)
    part = None if trainable is None else PartlyTrainable(worker.module, trainable)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = worker.optimizer(SGD(parameters, lr=plan.lr, momentum=plan.momentum, weight_decay=plan.weight_decay))
    pull = Proximal(parameters, plan.prox_mu) if plan.prox_mu else None
    losses: list[float] = []
    correct, seen = 0.0, 0
    mode = ""
    reason = ""
    with worker.computing(plan.seed):
        for x, y in batches(worker, view, indices, order):
            wanted: Literal["eval", "train"] = "eval" if len(x) == 1 else "train"
            if mode != wanted:
                set_modes(model, wanted)
                mode = wanted
                if part is not None:
                    part.keep_statistics()
            optimizer.zero_grad()
            loss, metric = worker.task.loss_and_metric(model, x, y)
            value, hit = torch.stack([loss.detach(), metric.to(loss.dtype)]).tolist()
            if not math.isfinite(value):
                reason = f"the loss of step {len(losses) + 1} is {value}"
                break
            worker.fabric.backward(loss if pull is None else loss + pull())
            if part is not None:
                part.mask_gradients()
            if plan.max_norm:
                worker.fabric.clip_gradients(model, optimizer, max_norm=plan.max_norm, error_if_nonfinite=False)
            optimizer.step()
            if part is not None:
                part.put_back()
            losses.append(value)
            correct, seen = correct + hit * len(x), seen + len(x)
    after = worker.state()
    if not reason and not after.is_finite():
        reason = f"the weights after step {len(losses)} are not finite"
    return LocalResult(
        state=after,
        num_examples=len(indices),
        num_batches=len(losses),
        examples=seen,
        loss=sum(losses) / len(losses) if losses else math.nan,
        metric=correct / seen if seen else math.nan,
        seconds=time.perf_counter() - started,
        status="not-finite" if reason else "ok",
        reason=reason,
    )


class PartlyTrainable:
    """Holds part of a model as it is while the rest trains.

    Parameters
    ----------
    module : nn.Module
        The model as loaded. Parameters that are not named stop taking gradients until it is loaded again.
    masks : mapping of str to Tensor
        By parameter name, booleans that broadcast to the parameter: where True it may change. BatchNorm layers without
        a parameter of their own that may change keep their statistics.
    """

    def __init__(self, module: nn.Module, masks: Mapping[str, Tensor]) -> None:
        named = dict(module.named_parameters())
        if unknown := sorted(masks.keys() - named.keys()):
            raise BadInput("trainable", unknown[0], "names of parameters of the model")
        for name, parameter in named.items():
            parameter.requires_grad_(name in masks)
        self._kept = [(p, m) for p, m in _masked(named, masks) if not bool(m.all())]
        self._start = [p.detach().clone() for p, _ in self._kept]
        self._fixed = [
            layer
            for name, layer in module.named_modules()
            if isinstance(layer, _BatchNorm) and not {f"{name}.weight", f"{name}.bias"} & masks.keys()
        ]

    def keep_statistics(self) -> None:
        """Put the BatchNorm layers that are held in eval mode; to be called after every change of mode."""
        for layer in self._fixed:
            layer.eval()

    def mask_gradients(self) -> None:
        """Zero the gradients of what is held."""
        for parameter, mask in self._kept:
            if parameter.grad is not None:
                parameter.grad.mul_(mask)

    @torch.no_grad()
    def put_back(self) -> None:
        """Undo what momentum or weight decay did to what is held."""
        for (parameter, mask), start in zip(self._kept, self._start, strict=True):
            parameter.copy_(torch.where(mask, parameter, start))


def _masked(named: Mapping[str, nn.Parameter], masks: Mapping[str, Tensor]) -> Iterator[tuple[nn.Parameter, Tensor]]:
    for name, mask in masks.items():
        yield named[name], mask.to(device=named[name].device, dtype=torch.bool)


class Proximal:
    """FedProx's pull towards the weights received: ``mu / 2 * ||w - w_received||^2`` (Li et al. 2020, eq. 2)."""

    def __init__(self, parameters: Sequence[nn.Parameter], mu: float) -> None:
        self._parameters, self._mu = parameters, mu
        self._received = [p.detach().clone() for p in parameters]

    def __call__(self) -> Tensor:
        """Return the term for the present weights."""
        squares = [(p - r).pow(2).sum() for p, r in zip(self._parameters, self._received, strict=True)]
        return self._mu / 2 * torch.stack(squares).sum()
