"""All that scoring one checkpoint of one model needs: what the evaluator is handed, in process or over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from evaluation.curves import ABOUT, curves_of
from evaluation.evidence import Evidence, ScoredModel
from evaluation.panel import Row, measure
from evaluation.shadows import Shadows


@dataclass(frozen=True, eq=False)
class Submission:
    """One checkpoint of one model, with the retrained ones to read it against.

    Attributes
    ----------
    labels : mapping
        What the rows are about: the columns of ``results.csv`` from cell to unlearn_seed.
    model : ScoredModel
        The model.
    gold, other_gold : ScoredModel or None
        The retrained model of the same seed at the model's checkpoint (as trained for the original and for
        ``unlearned``, after the same recovery for ``recovered``), and at the other one. The retrained model itself may
        be given or left out as its own gold.
    comparison : DataFrame or None
        Divergences of the outputs, model first, from gold's; None for gold itself or where not compared.
    granularity : str
        Of the request's last step.
    metric_name, higher_is_better : str, bool
        The task's metric and its direction.
    has_reference : bool
        Whether there is a reference set.
    evaluate_seeds : tuple of int
        Each gives rows of its own.
    earlier : tuple of str
        Granularities of the request's earlier steps.
    shadows : Shadows or None
        For the attacks that need other models; None where none were trained.
    """

    labels: Mapping[str, Any]
    model: ScoredModel
    gold: ScoredModel | None
    other_gold: ScoredModel | None
    comparison: pd.DataFrame | None
    granularity: str
    metric_name: str
    higher_is_better: bool
    has_reference: bool
    evaluate_seeds: tuple[int, ...] = (0,)
    earlier: tuple[str, ...] = ()
    shadows: Shadows | None = None

    def rows(self) -> list[Row]:
        """Return the rows of ``results.csv``; see `evaluation.panel.measure`."""
        found = self._evidence.items()
        return [self._about(seed) | row for seed, evidence in found for row in measure(evidence, self.earlier)]

    def curves(self) -> list[Row]:
        """Return the rows of ``curves.csv``; see `evaluation.curves`."""
        return [
            {name: about[name] for name in ABOUT} | point
            for seed, evidence in self._evidence.items()
            for about in [self._about(seed)]
            for point in curves_of(evidence)
        ]

    def _about(self, seed: int) -> Row:
        return {**self.labels, "evaluate_seed": seed}

    @cached_property
    def _evidence(self) -> dict[int, Evidence]:
        """By evaluate seed; rows and curves look at the same, and each attack on it is made once."""
        return {seed: self._of(seed) for seed in self.evaluate_seeds}

    def _of(self, seed: int) -> Evidence:
        retrained = self.model.method == "retrain"
        return Evidence(
            model=self.model,
            gold=self.model if self.gold is None and retrained else self.gold,
            other_gold=self.other_gold,
            comparison=self.comparison,
            granularity=self.granularity,
            metric_name=self.metric_name,
            higher_is_better=self.higher_is_better,
            has_reference=self.has_reference,
            seed=seed,
            shadows=self.shadows,
        )
