"""PGA (Halimi et al. 2022, arXiv 2207.05521; METHODS 1.3): ascent inside a ball around the others' mean model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from unlearning.divergence import GROWTH, widened
from unlearning.ga import ascend
from unlearning.local import Batch, BatchNormMode, Engine, LocalRun, Objective
from unlearning.state import Tensors, norm

NOBODY = 1e-6
"""A share of the others below this is nobody's."""


def reference(model: Tensors, departed: Sequence[Tensors], shares: Sequence[float]) -> Tensors:
    """Return the weighted mean of the models of those that stay: ``(w - sum_u p_u w_u) / (1 - sum_u p_u)``.

    Parameters
    ----------
    model : dict of str to Tensor
        Parameters of the mean of all, ``w``.
    departed : sequence of dict of str to Tensor
        Parameters of the models to take out of it.
    shares : sequence of float
        Their weights in it.

    Returns
    -------
    dict of str to Tensor
        In the dtype of `model`, computed in fp64. For parameters only: an extrapolated variance can be negative.

    Raises
    ------
    ValueError
        When less than 1e-6 of the weights stays.
    """
    left = 1.0 - sum(shares)
    if left < NOBODY:
        raise ValueError(f"the models to take out have a share of {sum(shares):g}: nothing is left to start from")
    result: Tensors = {}
    for name, tensor in model.items():
        total = tensor.double()
        for other, share in zip(departed, shares, strict=True):
            total = total - share * other[name].double()
        result[name] = (total / left).to(tensor.dtype)
    return result


def auto_radius(centre: Tensors, drawn: Iterable[Tensors]) -> float:
    """Return the authors' radius ``sqrt(mean_i ||centre - drawn_i||^2 / 3)``, `drawn` being initial models."""
    squares = [norm({n: t.double() - other[n].double() for n, t in centre.items()}) ** 2 for other in drawn]
    return math.sqrt(sum(squares) / len(squares) / 3)


def gap(a: Iterable[Tensor], b: Iterable[Tensor]) -> float:
    """Return the L2 distance over pairs of tensors, accumulated in fp64 (fp32 where a device has no fp64)."""
    squares = [(widened(x) - widened(y)).pow(2).sum() for x, y in zip(a, b, strict=True)]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


class Ball:
    """All models within a distance of a model's present parameters.

    Parameters
    ----------
    model : nn.Module
        Its present parameters are the centre.
    radius : float
        L2, not squared; at least 0.
    """

    def __init__(self, model: nn.Module, radius: float) -> None:
        self.radius = radius
        self._parameters = list(model.parameters())
        self._centre = [p.detach().clone() for p in self._parameters]

    def distance(self) -> float:
        """Return how far the model is from the centre."""
        return gap(self._parameters, self._centre)

    @torch.no_grad()
    def project(self) -> None:
        """Move the model, in place, to the nearest point of the ball; a model within it stays as it is."""
        aim, distance = self.radius, self.distance()
        while distance > self.radius:
            self._shrink(aim / distance)
            distance = self.distance()
            # Rounding may leave it outside of a small ball: aim as far below the surface, down to the centre.
            aim = max(0.0, aim - 2 * max(0.0, distance - self.radius))

    def _shrink(self, share: float) -> None:
        for parameter, centre in zip(self._parameters, self._centre, strict=True):
            wide = widened(centre)
            parameter.copy_(wide + share * (widened(parameter) - wide))


def ascend_in_ball(
    model: nn.Module,
    loss: Objective,
    epochs: Iterable[Iterable[Batch]],
    ball: Ball,
    *,
    lr: float,
    momentum: float = 0.0,
    max_norm: float = 0.0,
    bn_mode: BatchNormMode = "eval",
    engine: Engine | None = None,
    growth: float = GROWTH,
    stop_step: Callable[[], bool] | None = None,
    stop_epoch: Callable[[int], bool] | None = None,
) -> LocalRun:
    """Climb the task loss on `model`, in place, projected to `ball` after every step.

    Parameters
    ----------
    model : nn.Module
        Changed in place, wrapped or not.
    loss : callable
        ``(model, x, y) -> scalar Tensor``, the mean task loss.
    epochs : iterable of iterables of (x, y)
        The forget batches of each epoch, on the model's device.
    ball : Ball
        Around the model's parameters at the start.
    lr, momentum, max_norm, bn_mode, engine, growth
        As in `unlearning.local.run_epochs`. Momentum keeps its outward part after a projection, as in the original.
    stop_step, stop_epoch : callable, optional
        Asked after each projected step, and told each finished epoch, from 1; True ends the ascent there.

    Returns
    -------
    LocalRun
        Its `loss` is the task loss (not the negated one), averaged over steps.
    """

    def project_and_ask() -> bool:
        ball.project()
        return stop_step is not None and stop_step()

    return ascend(
        model,
        loss,
        epochs,
        lr=lr,
        momentum=momentum,
        max_norm=max_norm,
        bn_mode=bn_mode,
        engine=engine,
        growth=growth,
        after_step=project_and_ask,
        after_epoch=stop_epoch,
    )
