"""FedCARE (Li et al. 2026, arXiv 2601.22589; METHODS 1.9, a reconstruction): ascent that spares a reference loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from unlearning.divergence import GROWTH, widened
from unlearning.inputs import held, optimise_inputs
from unlearning.local import Batch, BatchNormMode, Engine, LocalRun, Objective, PlainTorch, run_epochs, set_modes
from unlearning.state import Tensors

SMALLEST = 1e-12
"""A reference gradient shorter than this constrains nothing."""
TV_WEIGHT, BN_WEIGHT, IMAGE_LR = 1e-3, 1e-2, 0.05
"""Of the pseudo-images: total variation, BatchNorm mismatch, Adam's rate (METHODS 1.9, our choice)."""
CONFIDENT = 0.5
"""Above this mean cross-entropy the gradient of pseudo-images is noise (METHODS 1.9)."""


def project(ascent: Sequence[Tensor], reference: Sequence[Tensor], margin: float = 0.0) -> list[Tensor]:
    """Return the direction closest to `ascent` along which the reference loss rises by at most `margin`.

    ``d = g_f - max(0, <g_f, g_r> - margin) / ||g_r||^2 * g_r`` over all tensors as one vector (METHODS 1.9,
    reconstructed; a projection tensor by tensor would be a weaker half-space). Products are accumulated in fp64.

    Parameters
    ----------
    ascent, reference : sequence of Tensor
        Gradients g_f of the forget loss and g_r of the reference loss, in the same order.
    margin : float
        First-order rise of the reference loss that is allowed for a step of rate 1; at least 0.
    """
    length = _dot(reference, reference)
    excess = _dot(ascent, reference) - margin
    if length < SMALLEST**2 or excess <= 0:
        return list(ascent)
    return [f - (excess / length) * r for f, r in zip(ascent, reference, strict=True)]


def suppress_rollback(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], rollback: Mapping[str, Tensor], kappa: float
) -> Tensors:
    """Return the parameters of a recovery round without (a share of) its motion back to the former model.

    ``U' = U - kappa * max(0, <U, b>) / ||b||^2 * b`` with ``U = after - before`` (METHODS 1.9, reconstructed).

    Parameters
    ----------
    before, after : mapping of str to Tensor
        Parameters before and after the round.
    rollback : mapping of str to Tensor
        b, from the unlearned model to the one before unlearning.
    kappa : float
        Share of the motion along b that is removed; 0 returns `after` as it is.
    """
    names = list(rollback)
    b = [rollback[n].double() for n in names]
    along = _dot([after[n].double() - before[n].double() for n in names], b)
    length = _dot(b, b)
    if kappa == 0 or along <= 0 or length == 0:
        return dict(after)
    scale = kappa * along / length
    moved = {n: (after[n].double() - scale * t).to(after[n].dtype) for n, t in zip(names, b, strict=True)}
    return {n: moved[n] for n in after}


def pseudo_images(
    model: nn.Module,
    shape: Sequence[int],
    classes: Sequence[int],
    *,
    per_class: int,
    steps: int,
    batch_size: int,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
    engine: Engine | None = None,
) -> tuple[Tensor, Tensor, float]:
    """Invert `model` into images of the given classes, from noise and without any data.

    Each batch minimises cross-entropy, total variation over the spatial axes and, over the BatchNorm layers, the
    squared distance of the batch's channel means and variances from the running ones.

    Parameters
    ----------
    model : nn.Module
        Gives class logits; held.
    shape : sequence of int
        Of one input.
    classes : sequence of int
        Labels to invert.
    per_class, steps : int
        Images of each class, and Adam steps at rate 0.05.
    batch_size : int
        Images optimised together; the classes are interleaved.
    generator : torch.Generator
        Of the noise, on the CPU.
    device : torch.device
        Of the model.
    engine : Engine, optional
        How a step is taken.

    Returns
    -------
    x : Tensor
        fp32, (per_class * len(classes), *shape).
    y : Tensor
        int64 labels.
    loss : float
        Their mean cross-entropy under `model`; above 0.5 their gradients are noise.
    """
    y = torch.tensor(list(classes), dtype=torch.int64).repeat(per_class)
    noise = torch.randn((len(y), *shape), generator=generator)
    made, losses = [], 0.0
    starts, parts = torch.split(noise.to(device), batch_size), torch.split(y.to(device), batch_size)
    for x, labels in zip(starts, parts, strict=True):
        made.append(_inverted(model, x, labels, steps, engine))
        with torch.no_grad(), held(model):
            losses += float(cross_entropy(model(made[-1]).float(), labels, reduction="sum"))
    return torch.cat(made), y.to(device), losses / len(y)


def ascend_beside(
    model: nn.Module,
    loss: Objective,
    epochs: Iterable[Iterable[Batch]],
    reference: Callable[[nn.Module, Batch], Tensor] | Sequence[Tensor],
    *,
    lr: float,
    momentum: float = 0.0,
    margin: float = 0.0,
    max_norm: float = 5.0,
    accuracy: Objective | None = None,
    floor: float = 0.0,
    bn_mode: BatchNormMode = "eval",
    engine: Engine | None = None,
    growth: float = GROWTH,
) -> LocalRun:
    """Climb the forget loss by ``w <- w + lr * clip(d)``, with d from `project`; the model is changed in place.

    Parameters
    ----------
    model : nn.Module
        Wrapped or not.
    loss : callable
        ``(model, x, y) -> scalar Tensor``, the mean task loss.
    epochs : iterable of iterables of (x, y, ...)
        The forget batches of each epoch; what follows x and y is for `reference`.
    reference : callable or sequence of Tensor
        ``(model, batch) -> scalar Tensor``, the reference loss of a step, whose gradient is taken with BatchNorm in
        eval mode; or a constant gradient, in the order of the parameters.
    margin : float
        See `project`.
    accuracy : callable, optional
        ``(model, x, y) -> scalar Tensor``. A batch on which it is at most `floor` right after its step ends the run.
    floor : float
        In [0, 1].
    lr, momentum, max_norm, bn_mode, engine, growth
        As in `unlearning.local.run_epochs`.

    Returns
    -------
    LocalRun
        Its `loss` is the task loss, averaged over steps.
    """
    engine = engine or PlainTorch()
    parameters = [p for p in model.parameters() if p.requires_grad]
    stepped_on: Batch = ()

    def negated(stepped: nn.Module, *batch: Tensor) -> Tensor:
        nonlocal stepped_on
        stepped_on = batch
        return -loss(stepped, *batch[:2])

    def spare_the_reference() -> None:
        ascent = [-_gradient(p) for p in parameters]
        if callable(reference):
            set_modes(model, "eval")
            for p in parameters:
                p.grad = None
            engine.backward(reference(model, stepped_on))
            direction = project(ascent, [_gradient(p) for p in parameters], margin)
        else:
            direction = project(ascent, reference, margin)
        for p, d in zip(parameters, direction, strict=True):
            p.grad = -d

    def at_the_floor() -> bool:
        if accuracy is None:
            return False
        model.eval()
        return float(accuracy(model, *stepped_on[:2])) <= floor + 1e-6  # an accuracy of 1/C in fp32 is at the floor 1/C

    run = run_epochs(
        model,
        negated,
        epochs,
        lr=lr,
        momentum=momentum,
        max_norm=max_norm,
        bn_mode=bn_mode,
        engine=engine,
        growth=growth,
        adjust=spare_the_reference,
        after_step=at_the_floor,
    )
    return LocalRun(run.status, run.reason, run.steps, run.examples, -run.loss)


def _inverted(model: nn.Module, start: Tensor, labels: Tensor, steps: int, engine: Engine | None) -> Tensor:
    with _mismatches(model) as mismatches:

        def objective(stepped: nn.Module, images: Tensor) -> Tensor:
            mismatches.clear()
            loss = cross_entropy(stepped(images).float(), labels) + TV_WEIGHT * _total_variation(images)
            return loss + BN_WEIGHT * torch.stack(mismatches).sum() if mismatches else loss

        return optimise_inputs(model, start, objective, steps=steps, lr=IMAGE_LR, engine=engine)


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return sum(float((widened(x) * widened(y)).sum()) for x, y in zip(a, b, strict=True))


def _total_variation(images: Tensor) -> Tensor:
    axes = range(2, images.dim())
    return sum((images.diff(dim=axis).abs().mean() for axis in axes), images.new_zeros(()))


@contextmanager
def _mismatches(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect, at every forward pass, how far each BatchNorm layer's input statistics are from its running ones."""
    found: list[Tensor] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, _BatchNorm)
        if layer.running_mean is None or layer.running_var is None:
            return
        x = inputs[0].float()
        axes = [axis for axis in range(x.dim()) if axis != 1]
        away = x.mean(axes) - layer.running_mean, x.var(axes, unbiased=False) - layer.running_var
        found.append(sum((a.pow(2).mean() for a in away), x.new_zeros(())))

    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    handles = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
