"""All that scoring one checkpoint of one model needs: what the evaluator is handed, in process or over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from evaluation.evidence import ScoredModel
from evaluation.panel import Row, score_model
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
        The retrained model at the same checkpoint, and at the other one.
    comparison : DataFrame or None
        Divergences of the outputs from gold's.
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
        """Return the rows of ``results.csv``; see `evaluation.panel.score_model`."""
        return [
            {**self.labels, "evaluate_seed": seed, **value} for seed in self.evaluate_seeds for value in self._of(seed)
        ]

    def _of(self, seed: int) -> list[Row]:
        return score_model(
            self.model,
            self.gold,
            self.comparison,
            granularity=self.granularity,
            metric_name=self.metric_name,
            higher_is_better=self.higher_is_better,
            has_reference=self.has_reference,
            evaluate_seed=seed,
            gold_other_checkpoint=self.other_gold,
            earlier=self.earlier,
            shadows=self.shadows,
        )
