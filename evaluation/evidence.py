"""What a metric may look at: one model's scorecard, weights and costs, gold's, and which records a number is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd

from evaluation.metrics.intervals import Floats, stratified_mean
from evaluation.metrics.value import Value, undefined
from evaluation.shadows import Shadows
from unlearning.state import State

SplitName = Literal["forget", "retain", "forget_train", "retain_train", "test"]
SPLITS: tuple[SplitName, ...] = ("forget", "retain", "forget_train", "retain_train", "test")

DIVERGENCES = ("kl", "kl_t4", "js", "js_supreme", "actdist", "agree")
"""Columns of a comparison of two models, one row a record."""
COVERED = 0.5
"""Share of a set's labels that the reference set must have to stand in for a missing holdout (METRICS 0.1)."""


@dataclass(frozen=True, eq=False)
class ScoredModel:
    """One checkpoint of one model with all that was measured on it.

    Attributes
    ----------
    method, preset, checkpoint : str
        ``original`` is ``trained``; ``retrain`` (gold) and every method are ``unlearned`` or ``recovered``.
    status, reason : str
        ``ok``, or what became of the run (``diverged``) and why.
    scorecard : DataFrame or None
        Rows of all sites and of the reference set: record, site, patient, split, stratum, selected, retained, step,
        metric, loss, phi, entropy, hinge. None when the model was not scored.
    state : State or None
        Weights.
    cost : mapping, or None
        Of the unlearning step (original: its training; gold: the retraining): seconds, client_seconds, client_examples,
        gradient_steps, bytes_down, bytes_up, disk_read, and the conditions of the timing: host, workers, threads, jobs.
        The same keys after ``recovery_`` for the recovery rounds of checkpoint ``recovered``.
    tables : mapping of str to DataFrame
        What else was measured on it, by name of the probe; empty where nothing was.
    """

    method: str
    preset: str
    checkpoint: str
    status: str
    reason: str
    scorecard: pd.DataFrame | None
    state: State | None
    cost: Mapping[str, Any] | None
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """The records a number is about.

    Attributes
    ----------
    rows : DataFrame
        Rows of `Evidence.frame`.
    weights : dict of str to float, or None
        Weight of each stratum where the records only stand in for others.
    note : str
        What to keep in mind about them; for an empty sample, why it is empty.
    """

    rows: pd.DataFrame
    weights: dict[str, float] | None = None
    note: str = ""


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that a metric may use about one model.

    Attributes
    ----------
    model, gold, other_gold : ScoredModel
        The model; the retrained model at the same checkpoint; the retrained model at the other one. None: not given.
    comparison : DataFrame or None
        Model against gold, one row a record: record, split, selected, retained, and `DIVERGENCES`.
    granularity : str
        ``client``, ``class``, ``patient`` or ``sample``: of the request's last step.
    metric_name : str
        The task's metric, for example ``accuracy``.
    higher_is_better : bool
        Direction of the task's metric.
    has_reference : bool
        Whether there is a reference set.
    seed : int
        The evaluate seed.
    shadows : Shadows or None
        Other models to attack with; None where none were trained.
    """

    model: ScoredModel
    gold: ScoredModel | None
    other_gold: ScoredModel | None
    comparison: pd.DataFrame | None
    granularity: str
    metric_name: str
    higher_is_better: bool
    has_reference: bool
    seed: int
    shadows: Shadows | None = None

    def of_step(self, step: int, granularity: str) -> Evidence:
        """Return the same view of an earlier step of the request: what that step forgot is now what is forgotten.

        Parameters
        ----------
        step : int
            Which, from 1.
        granularity : str
            Of that step.
        """
        model = _selecting(self.model, step)
        gold = model if self.gold is self.model else self.gold and _selecting(self.gold, step)
        return replace(self, model=model, gold=gold, granularity=granularity, shadows=None)

    @cached_property
    def of_gold(self) -> Evidence | None:
        """The same view of the gold model; None without one."""
        return None if self.gold is None else replace(self, model=self.gold, comparison=None)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """Scorecard in order of record, with gold's ``gold_metric`` and ``gold_loss`` and the divergences to it.

        Raises
        ------
        ValueError
            When a record was scored twice.
        """
        assert self.model.scorecard is not None
        frame = _by_record(self.model.scorecard, "scorecard")
        if self.gold is not None and self.gold.scorecard is not None:
            gold = _by_record(self.gold.scorecard, "gold scorecard")[["metric", "loss"]]
            frame = frame.join(gold.add_prefix("gold_"))
        if self.model is self.gold:
            frame = frame.assign(**dict.fromkeys(DIVERGENCES, 0.0)).assign(agree=1.0)
        elif self.comparison is not None:
            frame = frame.join(_by_record(self.comparison, "comparison")[list(DIVERGENCES)].astype(np.float64))
        return frame.assign(actdist_squared=frame["actdist"] ** 2) if "actdist" in frame else frame

    @cached_property
    def problem(self) -> str:
        """Why no number can be had from the scorecard; empty when all is well."""
        if self.model.scorecard is None:
            return "not scored"
        bad = int((self.frame["metric"].isna() | ~np.isfinite(self.frame["loss"])).sum())
        return f"non-finite outputs on {bad} of {len(self.frame)} records" if bad else ""

    def sample(self, which: SplitName) -> Sample:
        """Return the records that `which` means for this request.

        ``forget`` and ``retain`` are holdout records; for sample requests the removed records and ``test``. Where no
        holdout record is marked, reference records re-weighted to the labels of the trained ones stand in.
        """
        if which not in self._samples:
            self._samples[which] = self._sample(which)
        return self._samples[which]

    @cached_property
    def _samples(self) -> dict[SplitName, Sample]:
        return {}  # every metric asks for the same few

    def _sample(self, which: SplitName) -> Sample:
        if self.granularity == "sample" and which in ("forget", "retain"):
            return self.sample("forget_train" if which == "forget" else "test")
        if which == "test":
            return self._test()
        side = "selected" if which.startswith("forget") else "retained"
        if which.endswith("_train"):
            return _or_empty(self._rows("train", side), f"empty {which} set")
        rows = self._rows("holdout", side)
        return self._stand_in(which, side) if rows.empty else Sample(rows)

    def mean(self, column: str, which: SplitName) -> Value:
        """Return the mean of `column` over a split with its interval, or why there is none."""
        if self.problem:
            return undefined(self.problem)
        if column not in self.frame.columns:
            return undefined("needs gold" if self.gold is None else "not compared with gold")
        sample = self.sample(which)
        return self._mean_of(sample, sample.rows[column].to_numpy(np.float64), shares=column in ("metric", "agree"))

    def mean_difference(self, column: str, which: SplitName) -> Value:
        """Return the mean over a split of the model's `column` minus gold's, record by record."""
        if self.gold is None or self.of_gold is None:
            return undefined("needs gold")
        if problem := self.problem or self.of_gold.problem:
            return undefined(problem)
        sample = self.sample(which)
        model, gold = (sample.rows[name].to_numpy(np.float64) for name in (column, f"gold_{column}"))
        same = np.isinf(model) & (model == gold)
        with np.errstate(invalid="ignore"):
            return self._mean_of(sample, np.where(same, 0.0, model - gold))

    @cached_property
    def attack_sets(self) -> tuple[pd.DataFrame, pd.DataFrame, str]:
        """Forget records, records never trained on, and a note: the two sides of a population attack.

        Both sides are matched as far as the request allows: holdout records of the departing client, class or patient;
        for sample requests holdout records of the sites that held the removed ones; without any, reference records of
        the same strata. The note counts identities on both sides: at a site whose holdout shares its patients
        with training (one patient a site, say) an attack may recognise the patient, not the training.
        """
        forget = self._rows("train", "selected")
        if self.granularity == "sample":
            holdout = self._rows("holdout")
            unseen = holdout[holdout["site"].isin(forget["site"].unique())]
        else:
            unseen = self._rows("holdout", "selected")
        notes = []
        if unseen.empty and self.has_reference:
            reference = self._rows("reference")
            unseen = reference[reference["stratum"].isin(forget["stratum"].unique())]
            notes.append("unseen records are the reference set's")
        patients = set(forget["patient"])
        if shared := len(patients & set(unseen["patient"])):
            notes.append(f"{shared} of {len(patients)} forget patients are also among the unseen records")
        return forget, unseen, "; ".join(notes)

    def _rows(self, split: str, side: str | None = None) -> pd.DataFrame:
        mask = self.frame["split"] == split
        return self.frame[mask if side is None else mask & self.frame[side]]

    def _test(self) -> Sample:
        if self.has_reference:
            return _or_empty(self._rows("reference"), "the reference set was not scored")
        return _or_empty(self._rows("holdout"), "no holdout and no reference set", "test is the sites' holdouts")

    def _stand_in(self, which: SplitName, side: str) -> Sample:
        """Return reference records re-weighted to the label histogram of the trained records of `side`."""
        reference = self._rows("reference")
        if side == "retained":
            reference = reference[~reference["selected"]]
        trained = self._rows("train", side)["stratum"].value_counts(normalize=True)
        weights = {str(k): float(v) for k, v in trained.items() if k in set(reference["stratum"])}
        covered = sum(weights.values())
        if covered < COVERED:
            cover = f", and the reference set covers {covered:.2f} of its labels" if self.has_reference else ""
            return Sample(reference.iloc[:0], note=f"empty {which} set{cover}")
        rows = reference[reference["stratum"].isin(list(weights))]
        note = f"no holdout: reference records weighted to the labels of {which}_train, {covered:.2f} covered"
        return Sample(rows, weights, note)

    def _mean_of(self, sample: Sample, values: Floats, shares: bool = False) -> Value:
        """Average over a sample; infinite values (PSNR of a perfect image) are left out and counted."""
        if not values.size:
            return undefined(sample.note)
        if missing := int(np.isnan(values).sum()):
            return undefined(f"no finite value for {missing} of {values.size} records", int(values.size))
        finite = np.isfinite(values)
        strata = sample.rows["stratum"].to_numpy(dtype=str)
        value = stratified_mean(values[finite], strata[finite], sample.weights, seed=self.seed, shares=shares)
        left_out = int((~finite).sum())
        return value.because(sample.note).because(f"{left_out} infinite values left out" if left_out else "")


def _selecting(model: ScoredModel, step: int) -> ScoredModel:
    card = model.scorecard
    return model if card is None else replace(model, scorecard=card.assign(selected=card["step"] == step))


def _or_empty(rows: pd.DataFrame, empty: str, note: str = "") -> Sample:
    return Sample(rows, note=empty if rows.empty else note)


def _by_record(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    indexed = frame.set_index("record").sort_index()
    if not indexed.index.is_unique:
        raise ValueError(f"{name}: record {indexed.index[indexed.index.duplicated()][0]!r} appears twice")
    return indexed
