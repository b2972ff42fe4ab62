"""Refuses a bundle that cannot be scored, naming the field at fault, before anything of it is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import pandas as pd

from evaluation.evidence import DIVERGENCES
from evaluation.service.formats import TABLE, TENSORS, BadBlob, read_table
from evaluation.service.limits import Limits
from evaluation.service.tensors import read_arrays, read_state
from evaluation.service.wire import Bundle, ModelPart, ShadowsPart
from partitions.errors import BadInput

Kind = Literal["text", "flag", "count", "number"]
SCORECARD: dict[str, Kind] = {
    "record": "text",
    "site": "text",
    "patient": "text",
    "split": "text",
    "stratum": "text",
    "selected": "flag",
    "retained": "flag",
    "step": "count",
    "metric": "number",
    "loss": "number",
    "phi": "number",
    "entropy": "number",
    "hinge": "number",
}
"""Columns that every scorecard has (`clients.scoring.score_records`)."""
COMPARISON: dict[str, Kind] = {
    "record": "text",
    "split": "text",
    "selected": "flag",
    "retained": "flag",
    **dict.fromkeys(DIVERGENCES, "number"),
}
SHADOW_RECORDS: dict[str, Kind] = {"record": "text", "client": "text", "unlearned": "flag"}
REMEMBERED = 64
"""Blobs of each kind of which it is remembered what they hold."""
SPLITS = ("train", "holdout", "reference")
_WORDS = {"text": "text", "flag": "booleans", "count": "whole numbers", "number": "floating-point numbers"}
_DTYPES = {"flag": "b", "count": "iu", "number": "f"}

Read = Callable[[str, str], bytes]


@dataclass(frozen=True)
class Tensors:
    """What two models must agree on: the shape of every tensor by name."""

    shapes: dict[str, tuple[int, ...]]


class Checker:
    """Checks bundles; what a blob was found to be is remembered, since gold's are in every bundle of a case.

    Parameters
    ----------
    read : callable
        Returns the bytes of a blob by its SHA-256 and kind; raises `KeyError` when the store lacks it.
    limits : Limits
        Of tables and tensors.
    """

    def __init__(self, read: Read, limits: Limits) -> None:
        self._read, self._limits = read, limits
        self._scorecard = lru_cache(REMEMBERED)(self._read_scorecard)
        self._comparison = lru_cache(REMEMBERED)(self._read_comparison)
        self._state = lru_cache(REMEMBERED)(self._read_state)
        self._any_table = lru_cache(REMEMBERED)(self._read_any)

    def check(self, bundle: Bundle) -> None:
        """Raise `BadInput` at the first field that cannot be scored; its key is the field's path."""
        labels, model = bundle.labels, bundle.model
        for name in ("method", "preset", "checkpoint"):
            if getattr(labels, name) != getattr(model, name):
                raise BadInput(f"labels.{name}", getattr(labels, name), f"what the model says ({getattr(model, name)})")
        if labels.granularity != bundle.granularity:
            raise BadInput("labels.granularity", labels.granularity, f"the bundle's own ({bundle.granularity})")
        records = self._model("model", model)
        for field, gold in (("gold", bundle.gold), ("other_gold", bundle.other_gold)):
            if isinstance(gold, ModelPart):
                if gold.method != "retrain":
                    raise BadInput(f"{field}.method", gold.method, "retrain: gold is the retrained model")
                self._model(field, gold)
                self._fit(model, field, gold)
        if bundle.comparison is not None:
            compared = _named("comparison", self._comparison, bundle.comparison)
            if records is not None and (strays := compared - records):
                allowed = "the records of model.scorecard"
                raise BadInput("comparison.record", min(strays), allowed, f"{len(strays)} are not among them")
        if bundle.shadows is not None:
            self._shadows(bundle.shadows)

    def _model(self, field: str, part: ModelPart) -> frozenset[str] | None:
        """Check a model's blobs and return its records; None when it was not scored."""
        records = None
        if part.scorecard is not None:
            records = _named(f"{field}.scorecard", self._scorecard, part.scorecard)
        if part.state is not None:
            _named(f"{field}.state", self._state, part.state)
        for name, sha in part.tables.items():
            _named(f"{field}.tables.{name}", self._any_table, sha)
        return records

    def _fit(self, model: ModelPart, field: str, gold: ModelPart) -> None:
        if model.state is None or gold.state is None:
            return
        mine, golds = self._state(model.state).shapes, self._state(gold.state).shapes
        for name in sorted(mine.keys() ^ golds.keys()):
            where = "model.state" if name in mine else f"{field}.state"
            raise BadInput(where, name, f"the tensors of the other: model.state and {field}.state must have the same")
        for name, shape in mine.items():
            if shape != golds[name]:
                raise BadInput("model.state", f"{name}: shape {shape}", f"the shape {golds[name]} of {field}.state")

    def _shadows(self, part: ShadowsPart) -> None:
        count = _named("shadows.records", self._read_shadow_records, part.records)
        arrays = _named("shadows.arrays", lambda sha: read_arrays(self._read(sha, TENSORS), self._limits), part.arrays)
        wanted = {"forgotten", "trained", "retrained", "seed_gaps"}
        for name in sorted(wanted - arrays.keys()) + sorted(arrays.keys() - wanted - {"forgot"}):
            said = "is missing" if name in wanted else "is not one of them"
            raise BadInput("shadows.arrays", name, f"{', '.join(sorted(wanted))} and forgot", f"{name} {said}")
        for name, array in arrays.items():
            _check_array(name, array, count, len(arrays["trained"]))

    # ------------------------------------------------------------------ one blob each, remembered by its hash
    def _read_scorecard(self, sha: str) -> frozenset[str]:
        return _records(self._table(sha, SCORECARD), SPLITS)

    def _read_comparison(self, sha: str) -> frozenset[str]:
        return _records(self._table(sha, COMPARISON), SPLITS)

    def _read_shadow_records(self, sha: str) -> int:
        return len(_records(self._table(sha, SHADOW_RECORDS)))

    def _read_any(self, sha: str) -> None:
        read_table(self._read(sha, TABLE), self._limits)

    def _read_state(self, sha: str) -> Tensors:
        state = read_state(self._read(sha, TENSORS), self._limits)
        named = state.params | state.float_buffers | state.int_buffers
        return Tensors({name: tuple(tensor.shape) for name, tensor in named.items()})

    def _table(self, sha: str, columns: dict[str, Kind]) -> pd.DataFrame:
        table = read_table(self._read(sha, TABLE), self._limits)
        for name in columns:
            if name not in table.columns:
                raise BadField(name, "missing", "columns " + ", ".join(columns))
        for name in table.columns:
            if name not in columns:
                raise BadField(str(name), "unknown column", "columns " + ", ".join(columns))
            _check_column(table[name], columns[name])
        return table


class BadField(ValueError):
    """What is wrong inside a blob; the field of the bundle is put before it.

    Parameters
    ----------
    name : str
        Column or tensor.
    value : object
        What was found.
    allowed : str
        What would have been accepted.
    """

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(name)
        self.name, self.value, self.allowed = name, value, allowed


def _named(field: str, check: Callable[[str], Any], sha: str) -> Any:
    """Run a check on a blob; its complaint gets the name of the field."""
    try:
        return check(sha)
    except KeyError:
        remedy = "upload it (PUT /api/blobs/{sha256}) and post again"
        raise BadInput(field, sha, "a blob that the server has", remedy) from None
    except BadBlob as error:
        raise BadInput(field, sha, f"bytes of its kind: {error}") from None
    except BadField as error:
        raise BadInput(f"{field}.{error.name}", error.value, error.allowed) from None


def _check_column(column: pd.Series[Any], kind: Kind) -> None:
    dtype = column.dtype
    fits = pd.api.types.is_string_dtype(dtype) if kind == "text" else dtype.kind in _DTYPES[kind]
    if not fits and not (kind == "text" and column.isna().all()):
        raise BadField(str(column.name), f"dtype {dtype}", _WORDS[kind])
    if kind == "text" and column.isna().any():
        raise BadField(str(column.name), f"{int(column.isna().sum())} missing values", "text in every row")


def _records(table: pd.DataFrame, splits: Iterable[str] = ()) -> frozenset[str]:
    twice = table["record"].duplicated()
    if twice.any():
        raise BadField("record", str(table.loc[twice, "record"].iloc[0]), "each record once, and this one is twice")
    if splits and (strange := set(table["split"]) - set(splits)):
        raise BadField("split", min(strange), "one of " + ", ".join(splits))
    return frozenset(table["record"])


def _check_array(name: str, array: np.ndarray, records: int, shadows: int) -> None:
    kind = "bool" if name == "forgotten" else "float"
    shape: tuple[int | None, ...] = {
        "forgotten": (shadows, records),
        "trained": (shadows, records),
        "forgot": (shadows, records),
        "retrained": (None, records),
        "seed_gaps": (None,),
    }[name]
    if array.dtype.kind != kind[0]:
        raise BadInput(f"shadows.arrays.{name}", f"dtype {array.dtype}", kind)
    if len(shape) != array.ndim or any(a not in (None, b) for a, b in zip(shape, array.shape, strict=True)):
        words = " x ".join("any" if size is None else str(size) for size in shape)
        raise BadInput(f"shadows.arrays.{name}", f"shape {array.shape}", f"shape {words}")
