"""Classification: cross-entropy, top-1 accuracy, and the scores and divergences of class probabilities (METRICS)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, pad

from clients.catalogue import MODELS

SIDE = 32
"""Smaller images are padded to this side."""


class Classification:
    """One class a record.

    Images smaller than 32x32 are padded with black, evenly on all sides, to 32x32; larger ones keep their size. Grey
    images are repeated to three channels. Values 0..255 become -1..1.
    """

    name = "classification"
    title = "one class a record"
    metric_name = "accuracy"
    higher_is_better = True
    has_logits = True
    preparation = f"padded with black to {SIDE}x{SIDE} where smaller, grey repeated to 3 channels, 0..255 to -1..1"

    def build(self, model_name: str, data_shape: Sequence[int], num_classes: int) -> nn.Module:
        """Return a freshly initialised model; see `Task.build`."""
        height, width = (max(SIDE, int(side)) for side in data_shape[:2])
        return MODELS.get(model_name).build((3, height, width), int(num_classes))

    def to_inputs(self, batch: np.ndarray | Tensor) -> Tensor:
        """Turn images (n, H, W) or (n, H, W, C) uint8 into (n, 3, H', W') float32 in -1..1, channels_last."""
        images = torch.as_tensor(batch)
        if images.dim() == 3:
            images = images.unsqueeze(-1)
        scaled = images.to(torch.float32).div_(127.5).sub_(1.0)
        height, width = (_margins(side) for side in images.shape[1:3])
        padded = pad(scaled, (0, 0, *width, *height), value=-1.0)
        return padded.expand(-1, -1, -1, 3).contiguous().permute(0, 3, 1, 2)

    def to_targets(self, batch: np.ndarray) -> Tensor:
        """Return class indices, int64 of shape (n,)."""
        return torch.as_tensor(np.asarray(batch, dtype=np.int64))

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats."""
        return cross_entropy(_wide(model(x)), y)

    def loss_and_metric(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy and the top-1 accuracy of the batch."""
        logits = _wide(model(x))
        return cross_entropy(logits, y), logits.detach().argmax(1).eq(y).float().mean()

    def outputs(self, model: nn.Module, x: Tensor) -> Tensor:
        """Return the logits of `x`, on the CPU."""
        logits: Tensor = model(x)
        return logits.detach().cpu()

    def scores(self, outputs: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return correctness (0 or 1), cross-entropy, phi, entropy and hinge of each record (METRICS 1.1).

        From logits, in float64, in nats. With one class, phi and hinge are NaN.
        """
        return class_scores(outputs, y)

    def divergences(self, outputs: Tensor, others: Tensor) -> dict[str, Tensor]:
        """Return each record's divergences of `outputs` from `others` (METRICS 3.1-3.3, 5.2); `outputs` is p."""
        return class_divergences(outputs, others)


def class_scores(logits: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return the scores of `Classification.scores` from logits (n, C) and classes (n,)."""
    z = _double(logits)
    y = y.to(z.device)
    log_p = torch.log_softmax(z, dim=1)
    true = z.gather(1, y[:, None]).squeeze(1)
    others = z.scatter(1, y[:, None], -torch.inf)
    found = {
        "metric": z.argmax(1).eq(y).double(),
        "loss": -log_p.gather(1, y[:, None]).squeeze(1),
        "phi": true - torch.logsumexp(others, dim=1),
        "entropy": torch.special.entr(log_p.exp()).sum(1),
        "hinge": true - others.amax(1),
    }
    if z.shape[1] < 2:
        found["phi"] = found["hinge"] = torch.full_like(true, torch.nan)
    return {name: _where_finite(values, z) for name, values in found.items()}


def class_divergences(logits_a: Tensor, logits_b: Tensor) -> dict[str, Tensor]:
    """Return the divergences of `Classification.divergences` from two logits (n, C)."""
    a, b = _double(logits_a), _double(logits_b)
    p, q = torch.softmax(a, dim=1), torch.softmax(b, dim=1)
    middle = (p + q) / 2
    found = {
        "kl": _kl(a, b),
        "kl_t4": _kl(a / 4, b / 4),
        "js": (_relative(p, middle) + _relative(q, middle)) / 2,
        "js_supreme": (_relative(middle, p.clamp_min(1e-12)) + _relative(middle, q.clamp_min(1e-12)))
        / (2 * a.shape[1]),
        "actdist": torch.linalg.vector_norm(p - q, dim=1),
        "agree": a.argmax(1).eq(b.argmax(1)).double(),
    }
    return {name: _where_finite(values, a + b) for name, values in found.items()}


def _margins(side: int) -> tuple[int, int]:
    missing = max(SIDE - side, 0)
    return missing // 2, missing - missing // 2


def _kl(a: Tensor, b: Tensor) -> Tensor:
    log_p, log_q = torch.log_softmax(a, dim=1), torch.log_softmax(b, dim=1)
    divergence: Tensor = kl_div(log_q, log_p, reduction="none", log_target=True).sum(1)
    return divergence


def _relative(p: Tensor, q: Tensor) -> Tensor:
    divergence: Tensor = (torch.special.xlogy(p, p) - torch.special.xlogy(p, q)).sum(1)
    return divergence


def _where_finite(values: Tensor, outputs: Tensor) -> Tensor:
    return torch.where(torch.isfinite(outputs).all(dim=1), values, torch.nan)


def _wide(logits: Tensor) -> Tensor:
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def _double(logits: Tensor) -> Tensor:
    return logits.detach().cpu().double()


TASK = Classification()
