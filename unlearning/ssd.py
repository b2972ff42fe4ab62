"""SSD (Foster et al. 2024, AAAI; METHODS 2.6): shrink the parameters that matter more for the forget records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unlearning.local import Batch, Objective
from unlearning.state import Tensors


@dataclass(frozen=True)
class Importance:
    """How much parameters matter for some records, as a sum over batches that can be added up over sites.

    Attributes
    ----------
    sums : dict of str to Tensor
        By parameter name, in its shape, at least 0.
    batches, examples : int
        What was summed over, and the records in it.
    """

    sums: Tensors
    batches: int
    examples: int = 0

    @property
    def mean(self) -> Tensors:
        """Return the mean over batches, fp64; a short batch weighs as much as a full one, as in the authors' code."""
        return {name: total.double() / max(self.batches, 1) for name, total in self.sums.items()}


def importance(
    model: nn.Module, objective: Objective, batches: Iterable[Batch], amount: Callable[[Tensor], Tensor] = torch.square
) -> Importance:
    """Sum the size of each batch's gradient, squared by default.

    The gradient is that of the batch's *mean* loss, so this is no per-record Fisher information unless batches have one
    record: its size falls with the batch's. Take the same batch size for the sets that are compared.

    Parameters
    ----------
    model : nn.Module
        Not wrapped; put in eval mode, its parameters and what of them takes gradients are left as they are.
    objective : callable
        ``(model, *batch) -> scalar Tensor``.
    batches : iterable of tuples of Tensor
        On the model's device.
    amount : callable
        What is summed of a gradient, elementwise.

    Returns
    -------
    Importance
        CPU tensors, fp64 (fp32 on devices without it).
    """
    model.eval()
    named = dict(model.named_parameters())
    before = {name: p.requires_grad for name, p in named.items()}
    sums = {name: torch.zeros_like(p, dtype=_widest(p)) for name, p in named.items()}
    count = examples = 0
    try:
        model.requires_grad_(True)
        for batch in batches:
            with torch.enable_grad():
                loss = objective(model, *batch)
            found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
            for name, gradient in zip(named, found, strict=True):
                if gradient is not None:
                    sums[name] += amount(gradient.to(sums[name].dtype))
            count, examples = count + 1, examples + len(batch[0])
    finally:
        for name, parameter in named.items():
            parameter.requires_grad_(before[name])
    return Importance({name: total.cpu() for name, total in sums.items()}, count, examples)


def pooled(parts: Sequence[Importance]) -> Importance:
    """Add up the importances of several sites, in the order given, in fp64; at least one."""
    sums = {name: torch.zeros_like(first, dtype=torch.float64) for name, first in parts[0].sums.items()}
    for part in parts:
        for name, total in sums.items():
            total += part.sums[name]
    return Importance(sums, sum(p.batches for p in parts), sum(p.examples for p in parts))


@dataclass(frozen=True)
class Dampened:
    """What dampening made of the parameters.

    Attributes
    ----------
    params : dict of str to Tensor
        In the dtypes they had.
    selected, total : int
        Entries that were dampened, and all of them.
    """

    params: Tensors
    selected: int
    total: int

    @property
    def share(self) -> float:
        """Return the selected share, 0 to 1."""
        return self.selected / max(self.total, 1)


def dampen(
    params: Mapping[str, Tensor], forget: Importance, everything: Importance, alpha: float, strength: float
) -> Dampened:
    """Multiply by ``min(1, strength * I_all / I_forget)`` where ``I_forget > alpha * I_all``.

    Parameters
    ----------
    params : mapping of str to Tensor
        Named parameters; buffers are never dampened.
    forget, everything : Importance
        Of the records to forget, and of all records, those to forget among them.
    alpha : float
        Selects, above 0: an entry is dampened when it matters more than this many times as much; infinity selects none.
    strength : float
        The paper's lambda, at least 0; 0 sets what is selected to zero.
    """
    i_forget, i_all = forget.mean, everything.mean
    damped: Tensors = {}
    selected = 0
    for name, parameter in params.items():
        chosen = i_forget[name] > alpha * i_all[name]
        # An entry that is not selected may have 0/0: divide by 1 there.
        factor = (strength * i_all[name] / torch.where(chosen, i_forget[name], 1.0)).clamp(max=1.0)
        damped[name] = torch.where(chosen, (parameter.double() * factor).to(parameter.dtype), parameter)
        selected += int(chosen.sum())
    return Dampened(damped, selected, sum(p.numel() for p in params.values()))


def _widest(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.device.type == "mps" else torch.float64
