"""FedDNI (Usmani et al. 2025; METHODS 1.12), a reconstruction: noise on the weights, or on the forget inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool1d, avg_pool2d, avg_pool3d

from unlearning.divergence import GROWTH
from unlearning.local import Batch, BatchNormMode, Engine, LocalRun, run_epochs
from unlearning.noise import relative_noise
from unlearning.outputs import at_least_fp32
from unlearning.state import State


def perturb(state: State, sigma: float, steps: int, generator: torch.Generator) -> State:
    """Return `state` with Gaussian noise on its parameters, in `steps` sub-steps of equal variance.

    Parameters
    ----------
    state : State
        The model; not changed. Its buffers get no noise.
    sigma : float
        Deviation of all the noise on a tensor, over the standard deviation of that tensor at the start.
    steps : int
        At least 1; the deviation of the sum does not depend on it.
    generator : torch.Generator
        On the CPU.
    """
    params = {name: t.to(torch.float64, copy=True) for name, t in state.params.items()}
    for _ in range(steps):
        for name, noise in relative_noise(state.params, sigma / math.sqrt(steps), generator).items():
            params[name] += noise
    kept = {name: t.to(state.params[name].dtype) for name, t in params.items()}
    return State(kept, state.float_buffers, state.int_buffers)


def diffusion_levels(levels: int, last: float) -> list[float]:
    """Return ``abar_0 .. abar_levels``: the share of an input's variance that is left, falling linearly from 1."""
    return [1.0 - level * (1.0 - last) / levels for level in range(levels + 1)]


def levels_of_epochs(epochs: int, levels: int) -> list[int]:
    """Return the level of each epoch: rising, ending with the last, one each where there are as many of both. Ours."""
    return [math.ceil(epoch * levels / epochs) for epoch in range(1, epochs + 1)]


def structured_noise(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return low-pass noise in the shape of `x`, with unit variance at every place, the margins included. Ours.

    White noise is summed over the 3x3 neighbourhood (3 or 3x3x3 for one or three dimensions) and divided by the root of
    the number of neighbours. Inputs without spatial dimensions get white noise.
    """
    white = torch.randn(x.shape, generator=generator, dtype=torch.float32).to(x.device, x.dtype)
    pools = {1: avg_pool1d, 2: avg_pool2d, 3: avg_pool3d}
    dimensions = x.dim() - 2
    if dimensions not in pools:
        return white

    def summed(values: Tensor) -> Tensor:
        pooled: Tensor = pools[dimensions](values, 3, stride=1, padding=1)
        return pooled * float(3**dimensions)

    neighbours = summed(torch.ones_like(white[:1, :1]))
    return summed(white) * neighbours.rsqrt()


def diffuse(x: Tensor, left: float, noise: Tensor) -> Tensor:
    """Return ``sqrt(abar) x + sqrt(1 - abar) eps``, not clamped: inputs are normalised, and have no range to keep."""
    return math.sqrt(left) * x + math.sqrt(1.0 - left) * noise


def uniform_loss(logits: Tensor) -> Tensor:
    """Return ``KL(uniform || softmax(logits))``, classes in dimension 1, averaged over records (and positions).

    In nats; 0 where all logits of a record are equal.
    """
    return -torch.log_softmax(at_least_fp32(logits), dim=1).mean(dim=1).mean() - math.log(logits.shape[1])


def forget_inputs(
    model: nn.Module,
    epochs: Sequence[Iterable[Batch]],
    *,
    levels: int,
    last: float,
    generator: torch.Generator,
    lr: float,
    momentum: float = 0.0,
    max_norm: float = 0.0,
    bn_mode: BatchNormMode = "eval",
    engine: Engine | None = None,
    growth: float = GROWTH,
) -> LocalRun:
    """Train `model`, in place, towards the uniform distribution on ever noisier forget inputs.

    The noise and its schedule are METHODS 1.12's; that the target is uniform is our choice: heavy noise with the true
    label would teach robustness.

    Parameters
    ----------
    model : nn.Module
        Gives class logits.
    epochs : sequence of iterables of (x, y)
        The forget batches of each epoch; y is not looked at.
    levels, last : int, float
        Of `diffusion_levels`.
    generator : torch.Generator
        Of the noise; on the CPU, so that every device gets the same.
    lr, momentum, max_norm, bn_mode, engine, growth
        As in `unlearning.local.run_epochs`.
    """
    left = diffusion_levels(levels, last)
    chosen = [left[level] for level in levels_of_epochs(len(epochs), levels)]

    def noisy(epoch: Iterable[Batch], share: float) -> Iterator[Batch]:
        for x, y in epoch:
            yield diffuse(x, share, structured_noise(x, generator)), y

    def objective(stepped: nn.Module, x: Tensor, _: Tensor) -> Tensor:
        return uniform_loss(stepped(x))

    return run_epochs(
        model,
        objective,
        [noisy(epoch, share) for epoch, share in zip(epochs, chosen, strict=True)],
        lr=lr,
        momentum=momentum,
        max_norm=max_norm,
        bn_mode=bn_mode,
        engine=engine,
        growth=growth,
    )
