"""What the server does for the method."""

from __future__ import annotations

from typing import ClassVar

from strategies.base import Needs, UnlearningStrategy
from strategies.rounds import Ask


class NextLabel(UnlearningStrategy):
    """Teach the forget records the next class's label, at the sites that hold them."""

    name: ClassVar[str] = "next-label"
    title: ClassVar[str] = "Next label"
    citation: ClassVar[str] = "none"
    provenance: ClassVar[str] = "made up"
    family: ClassVar[str] = "overwriting"
    granularities: ClassVar[tuple[str, ...]] = ("client", "class", "patient", "sample")
    needs: ClassVar[Needs] = Needs(forget_data=True, logits=True, departed_online=True)

    @property
    def rounds(self) -> int:
        """Return 1."""
        return 1

    def ask_for(self, round_: int) -> Ask:
        """Ask the forget holders."""
        return Ask("learn_next_label", self.request.forget_holders, self.step_config(round_, "forget"))
