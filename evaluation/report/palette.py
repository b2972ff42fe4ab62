"""Every method keeps one colour and shape through the report; the colours are told apart by colour-blind readers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from evaluation.report.sections import CONTROL, GOLD, ORIGINAL

MUTED = ("#332288", "#88CCEE", "#117733", "#DDCC77", "#CC6677", "#AA4499", "#44AA99", "#999933", "#882255")
"""Paul Tol's muted scheme (SRON/EPS/TN/09-002, 2021)."""
SHAPES = ("o", "s", "^", "v", "P")
INK = "#1a1a1a"


class Look(NamedTuple):
    """How a method is drawn."""

    colour: str
    marker: str
    size: float


FIXED = {
    GOLD: Look("#FFD700", "*", 420),
    ORIGINAL: Look(INK, "X", 150),
    CONTROL: Look("#C8C8C8", "D", 85),
}


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """Return the look of every method: the models to compare with have their own, the others take theirs by name.

    Parameters
    ----------
    methods : iterable of str
        All methods of the report; more than there are colours share one, with another shape.
    """
    others = sorted(set(methods) - set(FIXED))
    return FIXED | {
        name: Look(MUTED[place % len(MUTED)], SHAPES[place // len(MUTED) % len(SHAPES)], 48)
        for place, name in enumerate(others)
    }
