"""What a metric of the panel is. A module of this package takes part by binding ``METRIC`` to one or a list of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from evaluation.evidence import Evidence
from evaluation.metrics.value import Value, undefined


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
    of_forgotten : bool
        Whether it is about the forgotten records, so that it is measured again for each earlier request of a sequence.
    clock : bool
        Whether it depends on how long something took: no two runs of the same agree on it.
    """

    name: str
    title: str
    unit: str
    low: float
    high: float
    better: str
    compute: Callable[[Evidence], Value]
    difference: Callable[[Evidence], Value] | None = None
    of_forgotten: bool = False
    clock: bool = False

    def rows(self, evidence: Evidence, prefix: str = "") -> Iterator[tuple[str, Value]]:
        """Yield the name, after `prefix`, and the value of each row that a model has of it."""
        name = prefix + self.name.format(metric=evidence.metric_name)
        yield name, self.compute(evidence)
        if self.difference is not None:
            yield f"delta_{name}", self.difference(evidence)


@dataclass(frozen=True)
class Family:
    """Metrics that are one and the same but for something that only the model knows, such as its layers.

    Attributes
    ----------
    name, title : str
        As of `Metric`; ``{each}`` stands for what tells the members apart (``gap_{each}`` becomes ``gap_conv1``). A
        family without it has one member at most: a metric that a model may go without.
    unit, low, high, better, of_forgotten, clock
        Of every member, as of `Metric`.
    several : callable
        From `Evidence` to the members' values by what stands for ``{each}`` (text without meaning where there is
        none); empty for a model that has no such thing, which then has no row. Never raises for a model that cannot be
        scored.
    difference : callable, optional
        The same of signed model minus gold, reported as ``delta_<name>``.
    """

    name: str
    title: str
    unit: str
    low: float
    high: float
    better: str
    several: Callable[[Evidence], Mapping[str, Value]]
    difference: Callable[[Evidence], Mapping[str, Value]] | None = None
    of_forgotten: bool = False
    clock: bool = False

    def rows(self, evidence: Evidence, prefix: str = "") -> Iterator[tuple[str, Value]]:
        """Yield the name, after `prefix`, and the value of each row that a model has of it."""
        for compute, before in ((self.several, prefix), (self.difference, f"delta_{prefix}")):
            for each, value in compute(evidence).items() if compute is not None else ():
                yield before + self.name.format(metric=evidence.metric_name, each=each), value


def where(
    asked: Callable[[Evidence], bool], compute: Callable[[Evidence], Value]
) -> Callable[[Evidence], dict[str, Value]]:
    """Make the one member of a `Family` without ``{each}``: there where the run asked for what it is made of."""
    return lambda evidence: {"": compute(evidence)} if asked(evidence) else {}


def has_table(name: str) -> Callable[[Evidence], bool]:
    """Make the question whether a probe's table is there, of the model or of gold."""
    return lambda evidence: any(one is not None and name in one.tables for one in (evidence.model, evidence.gold))


def difference_to_gold(compute: Callable[[Evidence], Value]) -> Callable[[Evidence], Value]:
    """Make the signed difference to gold of `compute`; it has no interval, as both sides share their records."""

    def difference(evidence: Evidence) -> Value:
        if evidence.of_gold is None:
            return undefined("needs gold")
        mine, gold = compute(evidence), compute(evidence.of_gold)
        if math.isnan(mine.value):
            return Value(math.nan, status=mine.status, reason=mine.reason)
        if math.isnan(gold.value):
            return Value(math.nan, status=gold.status, reason=f"gold: {gold.reason}")
        worse = mine if mine.status != "ok" else gold
        return Value(mine.value - gold.value, mine.n, status=worse.status, reason=worse.reason)

    return difference
