"""Fine-tuning (METHODS 2.1): no unlearning step at all, so that recovery alone is the control arm of every table."""

from __future__ import annotations

from typing import ClassVar

from strategies.base import Needs, UnlearningStrategy
from strategies.rounds import Ask


class FineTuning(UnlearningStrategy):
    """Leave the model as it is and let recovery train it on the retained records."""

    name: ClassVar[str] = "fine-tuning"
    title: ClassVar[str] = "Fine-tuning (recovery alone)"
    citation: ClassVar[str] = "baseline of Golatkar et al. 2020, arXiv 1911.04933"
    provenance: ClassVar[str] = "the shared recovery, nothing else"
    family: ClassVar[str] = "fine-tuning"
    granularities: ClassVar[tuple[str, ...]] = ("client", "class", "patient", "sample")
    needs: ClassVar[Needs] = Needs()

    @property
    def rounds(self) -> int:
        """Return 0."""
        return 0

    def ask_for(self, round_: int) -> Ask:
        """Ask nobody."""
        return Ask("recover", (), {})


METHOD = FineTuning
