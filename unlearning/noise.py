"""Gaussian noise on parameters, scaled to each tensor: what the noise methods share."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from unlearning.state import Tensors


def relative_noise(tensors: Mapping[str, Tensor], sigma: float, generator: torch.Generator) -> Tensors:
    """Return ``sigma * std(tensor) * n`` for each tensor, with n ~ N(0, I) drawn in the order given.

    Parameters
    ----------
    tensors : mapping of str to Tensor
        What the noise is scaled to. The deviation is the population one (divided by n): a tensor of one element, or of
        a constant value, gets no noise.
    sigma : float
        At least 0.
    generator : torch.Generator
        On the CPU.

    Returns
    -------
    dict of str to Tensor
        fp64.
    """
    return {name: gaussian(t, sigma * float(t.double().std(correction=0)), generator) for name, t in tensors.items()}


def gaussian(like: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """Return noise of deviation `sigma` in the shape of `like`, fp64."""
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).mul_(sigma)
