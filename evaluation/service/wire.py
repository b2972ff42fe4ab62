"""What travels: a submission as a bundle, a JSON document that names its tables and tensors by their SHA-256."""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from evaluation.evidence import ScoredModel
from evaluation.service.formats import TABLE, TENSORS, read_table, table_bytes
from evaluation.service.limits import DEFAULT, Limits
from evaluation.service.tensors import arrays_bytes, read_arrays, read_state, state_bytes
from evaluation.shadows import Shadows
from evaluation.submission import Submission
from unlearning.state import State

VERSION: Literal[1] = 1
"""Of the bundle; a server refuses others."""
LARGEST = 2**63 - 1
KEPT = 16
"""Models whose encoded form an `Encoder` remembers: a case's gold is in every bundle of the case."""


def _clean(text: str) -> str:
    if "\0" in text:
        raise ValueError("text must not hold a NUL character")
    text.encode("utf-8")  # a lone surrogate raises, and a ValueError it is
    return text


Clean = AfterValidator(_clean)
Label = Annotated[StrictStr, Field(max_length=500), Clean]
Name = Annotated[StrictStr, Field(min_length=1, max_length=200), Clean]
Reason = Annotated[StrictStr, Field(max_length=20_000), Clean]
Sha = Annotated[StrictStr, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of a blob, in hex")]
Seed = Annotated[StrictInt, Field(ge=0, le=LARGEST)]
Granularity = Literal["client", "class", "patient", "sample"]
Checkpoint = Literal["trained", "unlearned", "recovered"]
Finite = Annotated[StrictFloat | StrictInt, Field(allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


class Labels(_Part):
    """What the rows are about: the columns of results.csv from cell to unlearn_seed."""

    cell: Name
    experiment: Label
    task: Label
    dataset: Label
    partition: Label
    alpha: Finite | None = Field(description="Dirichlet concentration; null where the split has none")
    model: Label
    request: Label
    granularity: Granularity
    method: Name
    preset: Label
    checkpoint: Checkpoint
    train_seed: Seed | None
    unlearn_seed: Seed | None


class NotFinite(_Part):
    """A float that JSON has no number for."""

    float: Literal["nan", "inf", "-inf"]


Scalar = StrictBool | Annotated[StrictInt, Field(ge=-LARGEST, le=LARGEST)] | StrictFloat | Label | NotFinite | None


class ModelPart(_Part):
    """One checkpoint of one model (`evaluation.evidence.ScoredModel`)."""

    method: Name
    preset: Label
    checkpoint: Checkpoint
    status: Name = Field(description="ok, or what became of the model: diverged, not_applicable, ...")
    reason: Reason
    scorecard: Sha | None = Field(description="parquet; null when the model was not scored")
    state: Sha | None = Field(description="safetensors; null when there are no weights")
    cost: dict[Name, Scalar] | None
    tables: dict[Name, Sha] = Field(description="parquet, by name of the probe", max_length=100)


class ShadowsPart(_Part):
    """Other models to attack with (`evaluation.shadows.Shadows`)."""

    records: Sha = Field(description="parquet: record, client, unlearned")
    arrays: Sha = Field(description="safetensors: forgotten, trained, retrained, seed_gaps and, where known, forgot")
    reason: Reason


class Bundle(_Part):
    """All that scoring one checkpoint of one model needs (`evaluation.submission.Submission`).

    ``gold`` and ``other_gold`` are ``"model"`` where they are the model itself.
    """

    version: Literal[1]
    labels: Labels
    model: ModelPart
    gold: ModelPart | Literal["model"] | None
    other_gold: ModelPart | Literal["model"] | None
    comparison: Sha | None = Field(description="parquet: divergences of the model's outputs from gold's, by record")
    granularity: Granularity
    metric_name: Annotated[StrictStr, Field(pattern=r"^[a-z][a-z0-9_]{0,99}$")]
    higher_is_better: StrictBool
    has_reference: StrictBool
    evaluate_seeds: Annotated[list[Seed], Field(min_length=1, max_length=1000)]
    earlier: Annotated[list[Granularity], Field(max_length=100)]
    shadows: ShadowsPart | None

    def document(self) -> str:
        """Return the canonical JSON: sorted keys, no spaces, every float as short as it can be read back exactly."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @property
    def id(self) -> str:
        """SHA-256 of `document`, in hex: the same bundle has the same id, wherever it comes from."""
        return hashlib.sha256(self.document().encode()).hexdigest()

    def blobs(self) -> dict[str, str]:
        """Return the content type of every blob by its SHA-256."""
        return {sha: kind for _, sha, kind in self.references()}

    def references(self) -> Iterator[tuple[str, str, str]]:
        """Yield field, SHA-256 and content type of every blob it names."""
        for field, part in (("model", self.model), ("gold", self.gold), ("other_gold", self.other_gold)):
            if isinstance(part, ModelPart):
                named = {"scorecard": (part.scorecard, TABLE), "state": (part.state, TENSORS)}
                named |= {f"tables.{name}": (sha, TABLE) for name, sha in part.tables.items()}
                yield from ((f"{field}.{name}", sha, kind) for name, (sha, kind) in named.items() if sha)
        if self.comparison:
            yield "comparison", self.comparison, TABLE
        if self.shadows:
            yield "shadows.records", self.shadows.records, TABLE
            yield "shadows.arrays", self.shadows.arrays, TENSORS


@dataclass(frozen=True)
class Blob:
    """Bytes by their hash, made again when they are asked for, so that nobody needs to hold them.

    Attributes
    ----------
    sha256 : str
        In hex.
    kind : str
        Content type.
    make : callable
        Returns the bytes: the same each time.
    """

    sha256: str
    kind: str
    make: Callable[[], bytes]


class Encoder:
    """Makes bundles of submissions; remembers the newest models, of which gold is in every bundle of its case."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[ScoredModel, ModelPart, dict[str, Blob]]] = OrderedDict()

    def encode(self, submission: Submission) -> tuple[Bundle, dict[str, Blob]]:
        """Return the bundle and its blobs by SHA-256.

        Raises
        ------
        ValueError
            When a table has a column that cannot travel.
        """
        blobs: dict[str, Blob] = {}
        model = submission.model

        def gold(other: ScoredModel | None) -> ModelPart | Literal["model"] | None:
            if other is None or other is model:
                return None if other is None else "model"
            return self._model(other, blobs)

        bundle = Bundle(
            version=VERSION,
            labels=Labels(**{name: _plain(value) for name, value in submission.labels.items()}),
            model=self._model(model, blobs),
            gold=gold(submission.gold),
            other_gold=gold(submission.other_gold),
            comparison=_table(submission.comparison, blobs),
            granularity=submission.granularity,  # type: ignore[arg-type]
            metric_name=submission.metric_name,
            higher_is_better=bool(submission.higher_is_better),
            has_reference=bool(submission.has_reference),
            evaluate_seeds=[int(seed) for seed in submission.evaluate_seeds],
            earlier=list(submission.earlier),  # type: ignore[arg-type]
            shadows=None if submission.shadows is None else _shadows(submission.shadows, blobs),
        )
        return bundle, blobs

    def _model(self, model: ScoredModel, blobs: dict[str, Blob]) -> ModelPart:
        if id(model) in self._known:
            self._known.move_to_end(id(model))
            _, part, mine = self._known[id(model)]
        else:
            mine = {}
            state = model.state
            part = ModelPart(
                method=model.method,
                preset=model.preset,
                checkpoint=model.checkpoint,  # type: ignore[arg-type]
                status=model.status,
                reason=model.reason,
                scorecard=_table(model.scorecard, mine),
                state=None if state is None else _add(mine, TENSORS, lambda: state_bytes(state)),
                cost=None if model.cost is None else {name: _spelled(value) for name, value in model.cost.items()},
                tables={name: _add_table(mine, table) for name, table in model.tables.items()},
            )
            self._known[id(model)] = model, part, mine
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        blobs |= mine
        return part


def decode(bundle: Bundle, read: Callable[[str, str], bytes], limits: Limits = DEFAULT) -> Submission:
    """Return the submission of a bundle.

    Parameters
    ----------
    bundle : Bundle
        Checked (`evaluation.service.checks`).
    read : callable
        Returns the bytes of a blob by its SHA-256 and kind.
    """

    def table(sha: str | None) -> pd.DataFrame | None:
        return None if sha is None else read_table(read(sha, TABLE), limits)

    def state(sha: str | None) -> State | None:
        return None if sha is None else read_state(read(sha, TENSORS), limits)

    def scored(part: ModelPart) -> ScoredModel:
        return ScoredModel(
            method=part.method,
            preset=part.preset,
            checkpoint=part.checkpoint,
            status=part.status,
            reason=part.reason,
            scorecard=table(part.scorecard),
            state=state(part.state),
            cost=None if part.cost is None else {name: _read_scalar(value) for name, value in part.cost.items()},
            tables={name: read_table(read(sha, TABLE), limits) for name, sha in part.tables.items()},
        )

    model = scored(bundle.model)

    def gold(part: ModelPart | Literal["model"] | None) -> ScoredModel | None:
        if part is None or part == "model":
            return None if part is None else model
        return scored(part)

    return Submission(
        labels=bundle.labels.model_dump(),
        model=model,
        gold=gold(bundle.gold),
        other_gold=gold(bundle.other_gold),
        comparison=table(bundle.comparison),
        granularity=bundle.granularity,
        metric_name=bundle.metric_name,
        higher_is_better=bundle.higher_is_better,
        has_reference=bundle.has_reference,
        evaluate_seeds=tuple(bundle.evaluate_seeds),
        earlier=tuple(bundle.earlier),
        shadows=None if bundle.shadows is None else read_shadows(bundle.shadows, read, limits),
    )


def read_shadows(part: ShadowsPart, read: Callable[[str, str], bytes], limits: Limits = DEFAULT) -> Shadows:
    """Return the shadows of a bundle."""
    records, arrays = read_table(read(part.records, TABLE), limits), read_arrays(read(part.arrays, TENSORS), limits)
    return Shadows(
        records=tuple(records["record"].astype(str)),
        unlearned=records["unlearned"].to_numpy(np.bool_),
        clients=records["client"].to_numpy(dtype=np.str_),
        forgotten=arrays["forgotten"],
        trained=arrays["trained"],
        forgot=arrays.get("forgot"),
        retrained=arrays["retrained"],
        seed_gaps=tuple(float(gap) for gap in arrays["seed_gaps"]),
        reason=part.reason,
    )


def _shadows(shadows: Shadows, blobs: dict[str, Blob]) -> ShadowsPart:
    records = pd.DataFrame(
        {
            "record": pd.Series(list(shadows.records), dtype=str),
            "client": pd.Series([str(client) for client in shadows.clients], dtype=str),
            "unlearned": np.asarray(shadows.unlearned, dtype=np.bool_),
        }
    )
    arrays = {
        "forgotten": shadows.forgotten,
        "trained": shadows.trained,
        "retrained": shadows.retrained,
        "seed_gaps": np.asarray(shadows.seed_gaps, dtype=np.float64),
    }
    if shadows.forgot is not None:
        arrays["forgot"] = shadows.forgot
    return ShadowsPart(
        records=_add_table(blobs, records),
        arrays=_add(blobs, TENSORS, lambda: arrays_bytes(arrays)),
        reason=shadows.reason,
    )


def _add(blobs: dict[str, Blob], kind: str, make: Callable[[], bytes]) -> str:
    sha = hashlib.sha256(make()).hexdigest()
    blobs[sha] = Blob(sha, kind, make)
    return sha


def _table(table: pd.DataFrame | None, blobs: dict[str, Blob]) -> str | None:
    return None if table is None else _add_table(blobs, table)


def _add_table(blobs: dict[str, Blob], table: pd.DataFrame) -> str:
    return _add(blobs, TABLE, lambda: table_bytes(table))


def _plain(value: Any) -> Any:
    """Return a numpy scalar as the Python one it stands for."""
    return value.item() if isinstance(value, np.generic) else value


def _spelled(value: Any) -> Any:
    value = _plain(value)
    if isinstance(value, float) and not math.isfinite(value):
        return NotFinite(float=str(value))  # type: ignore[arg-type]
    return value


def _read_scalar(value: Any) -> Any:
    return float(value.float) if isinstance(value, NotFinite) else value
