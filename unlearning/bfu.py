"""BFU (Wang et al. 2023, ASIA CCS; METHODS 1.11): leave the erased likelihood while a KL anchor holds the posterior."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from torch import Tensor, nn

from unlearning.divergence import GROWTH
from unlearning.local import Batch, BatchNormMode, Engine, LocalRun, run_epochs

LossAndAccuracy = Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, Tensor]]
SMALLEST_SCALE = 1e-3
"""Of the posterior over a tensor whose entries are (nearly) all the same."""


def gaussian_kl(mean: Tensor, variance: Tensor, mean_0: Tensor, variance_0: Tensor) -> Tensor:
    """Return ``KL(N(mean, variance) || N(mean_0, variance_0))`` entry by entry, in nats."""
    ratio = variance / variance_0
    return (ratio - ratio.log() - 1 + (mean - mean_0).pow(2) / variance_0) / 2


def posterior_scales(parameters: Sequence[Tensor], relative: float) -> list[Tensor]:
    """Return one standard deviation a tensor: `relative` times that of its entries, at least 1e-3 (our choice)."""
    stds = [t.detach().float().std(unbiased=False) for t in parameters]
    return [(relative * std).clamp_min(SMALLEST_SCALE) for std in stds]


def anchor(parameters: Sequence[Tensor], start: Sequence[Tensor], scales: Sequence[Tensor]) -> Tensor:
    """Return the mean over all entries of ``(w - w_0)^2 / (2 s^2)``.

    That is the KL divergence of a mean-field Gaussian around `parameters` from the one around `start` when both have
    the standard deviations `scales`: a portable form of the original's anchor (METHODS 1.11, our choice), for networks
    without a variational layer.
    """
    total = sum(
        (gaussian_kl(w, s * s, w_0, s * s).sum() for w, w_0, s in zip(parameters, start, scales, strict=True)),
        parameters[0].new_zeros(()),
    )
    return total / sum(w.numel() for w in parameters)


def unlearn(
    model: nn.Module,
    loss_and_accuracy: LossAndAccuracy,
    epochs: Iterable[Iterable[Batch]],
    *,
    beta: float,
    eta_forget: float,
    eta_share: float,
    scale: float,
    loss_cap: float,
    stop: float,
    lr: float,
    momentum: float = 0.0,
    optimizer: Literal["sgd", "adam"] = "sgd",
    max_norm: float = 5.0,
    bn_mode: BatchNormMode = "eval",
    engine: Engine | None = None,
    growth: float = GROWTH,
) -> LocalRun:
    """Minimise ``beta A(w) - eta_forget min(L(forget), loss_cap) + eta_share L(retain)`` on `model`, in place.

    Parameters
    ----------
    model : nn.Module
        Wrapped or not; its weights at the call are the anchor's centre.
    loss_and_accuracy : callable
        ``(model, x, y) -> (loss, accuracy)``, two scalar Tensors.
    epochs : iterable of iterables of (x, y) or (x, y, x_retain, y_retain)
        Forget batches, each with a retained batch where the site shares with itself.
    beta, eta_forget, eta_share : float
        Weights of the anchor, the forget loss and the retained loss, at least 0.
    scale : float
        See `posterior_scales`.
    loss_cap : float
        Above it the forget loss pushes no further; ``inf``: none, and the model collapses.
    stop : float
        Two epochs in a row with a mean batch accuracy on forget records below this end the run.
    lr, momentum, optimizer, max_norm, bn_mode, engine, growth
        As in `unlearning.local.run_epochs`.

    Returns
    -------
    LocalRun
        Its `loss` is the whole objective.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in parameters]
    scales = posterior_scales(parameters, scale)
    accuracies: list[float] = []
    low = 0

    def objective(stepped: nn.Module, x: Tensor, y: Tensor, *retain: Tensor) -> Tensor:
        forget_loss, accuracy = loss_and_accuracy(stepped, x, y)
        accuracies.append(float(accuracy.detach()))
        total = beta * anchor(parameters, start, scales) - eta_forget * forget_loss.clamp(max=loss_cap)
        return total + eta_share * loss_and_accuracy(stepped, *retain)[0] if retain else total

    def forgotten_twice(_: int) -> bool:
        nonlocal low
        mean = sum(accuracies) / len(accuracies) if accuracies else 1.0
        low = low + 1 if mean < stop else 0
        accuracies.clear()
        return low == 2

    return run_epochs(
        model,
        objective,
        epochs,
        lr=lr,
        momentum=momentum,
        optimizer=optimizer,
        max_norm=max_norm,
        bn_mode=bn_mode,
        engine=engine,
        growth=growth,
        after_epoch=forgotten_twice,
    )
