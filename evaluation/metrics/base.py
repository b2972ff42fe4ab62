"""What a metric of the panel is. A module of this package takes part by binding ``METRIC`` to one or a list of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evaluation.evidence import Evidence
from evaluation.metrics.value import Value


@dataclass(frozen=True)
class Metric:
    """One metric of the panel.

    Attributes
    ----------
    name : str
        Name in the results; ``{metric}`` stands for the task's (``forget_{metric}`` becomes ``forget_accuracy``).
    title : str
        What it is, in a few words.
    unit : str
        ``fraction``, ``nats``, ``s``, ``bytes``, ``records``, or empty for the task metric's own unit and plain ratios.
    low, high : float
        Range of the value.
    better : str
        ``gold`` (the value nearest to the retrained model's), ``low``, ``high`` or ``none``.
    compute : callable
        From `Evidence` to `Value`; never raises for a model that cannot be scored.
    difference : callable, optional
        Signed model minus gold, reported as ``delta_<name>``.
    asked : callable
        Whether the run measured what it is made of; where it did not, there is no row.
    of_forgotten : bool
        Whether it is about the forgotten records, so that it is measured again for each earlier request of a sequence.
    """

    name: str
    title: str
    unit: str
    low: float
    high: float
    better: str
    compute: Callable[[Evidence], Value]
    difference: Callable[[Evidence], Value] | None = None
    asked: Callable[[Evidence], bool] = lambda _: True
    of_forgotten: bool = False
