"""Loss-free SSD, server half: as SSD, with importances that need no label (METHODS 2.7)."""

from __future__ import annotations

from typing import ClassVar

from strategies.ssd import Dampening, DampeningConfig


class LossFreeDampening(Dampening):
    """Dampen the parameters to which the outputs for the forget records are more sensitive than those for all."""

    name: ClassVar[str] = "lfssd"
    title: ClassVar[str] = "Loss-free selective synaptic dampening"
    citation: ClassVar[str] = "Foster et al. 2024, loss-free variant"
    provenance: ClassVar[str] = (
        "importance (absolute gradient of the squared output norm) and defaults from the authors' code, which takes "
        "alpha 5 for a class and 3.5 for samples of CIFAR-20; record order and the safe preset are our choice"
    )
    Config = DampeningConfig
    presets = {"lethe": {}, "safe": {"alpha": 2.0}}  # noqa: RUF012
    op: ClassVar[str] = "sensitivity"


METHOD = LossFreeDampening
