"""What the server answers, as the OpenAPI description shows it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from evaluation.service.wire import Bundle, Name, Sha

RunId = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9._-]*[A-Za-z0-9_-][A-Za-z0-9._-]*$",
        max_length=200,
        description="letters, digits, '.', '_' and '-', and not dots alone",
    ),
]
State = Literal["queued", "scoring", "done", "failed"]
_INFINITE = {float("inf"): "inf", float("-inf"): "-inf"}
Number = Annotated[
    float | Literal["inf", "-inf"] | None,
    PlainSerializer(lambda value: _INFINITE.get(value, value)),
    Field(description="exact; null where there is no value, 'inf' and '-inf' for infinities"),
]


class Refusal(BaseModel):
    """Why something was refused."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"field": "model.scorecard.loss", "message": "..."}]})

    field: str = Field(description="what is at fault: the path of a field, a header, a parameter")
    message: str = Field(description="one line: what was given, what is allowed, what to do")


class TooLarge(Refusal):
    """More than the server takes."""

    limit: int = Field(description="bytes")
    setting: str = Field(description="what changes the limit")


class Health(BaseModel):
    """How the server is."""

    status: Literal["ok", "degraded"] = Field(description="degraded: fewer workers are alive than there should be")
    bundle_version: int = Field(description="of the bundles it takes")
    workers: int = Field(description="scoring or waiting for work")
    submissions: dict[State, int] = Field(description="by state")
    metrics: list[str] = Field(description="names of all metrics, third-party ones too")
    max_upload: int = Field(description="bytes of one blob")


class BlobNames(BaseModel):
    """Blobs by their hashes."""

    model_config = ConfigDict(extra="forbid")

    sha256: Annotated[list[Sha], Field(max_length=10_000)]


class Kept(BaseModel):
    """A blob that the server has."""

    sha256: Sha
    size: int = Field(description="bytes")


class RunRecord(BaseModel):
    """What a run was asked and on what it ran."""

    model_config = ConfigDict(extra="forbid")

    name: Name = Field(description="what people call it: the name of the run folder")
    record: dict[str, Any] = Field(description="the contents of run.json; 'created' in seconds since the epoch")
    rounds: Sha | None = Field(default=None, description="blob of the recorded rounds (parquet); null: not given")


class Post(BaseModel):
    """A submission of a run."""

    model_config = ConfigDict(extra="forbid")

    run: RunId
    bundle: Bundle


class Standing(BaseModel):
    """Where a submission stands."""

    model_config = ConfigDict(from_attributes=True)

    id: Sha = Field(description="SHA-256 of the bundle's canonical JSON")
    status: State
    reason: str = Field(description="why it failed; else empty")
    attempts: int = Field(description="how often scoring was begun")
    posted: float = Field(description="seconds since the epoch")
    started: float | None
    finished: float | None


class Posted(Standing):
    """Where a posted submission stands."""

    new: bool = Field(description="false: the same bundle was here already, and it is one result")


class ResultRow(BaseModel):
    """A row of results.csv."""

    cell: str
    experiment: str
    task: str
    dataset: str
    partition: str
    alpha: Number
    model: str
    request: str
    granularity: str
    method: str
    preset: str
    checkpoint: str
    train_seed: int | None
    unlearn_seed: int | None
    evaluate_seed: int | None
    metric: str
    value: Number
    n: int | None
    ci_low: Number
    ci_high: Number
    status: str
    reason: str


class PointRow(BaseModel):
    """A row of curves.csv."""

    cell: str
    request: str
    method: str
    preset: str
    checkpoint: str
    train_seed: int | None
    unlearn_seed: int | None
    evaluate_seed: int | None
    kind: str
    series: str
    label: str
    x: Number
    y: Number


class Scored(Standing):
    """A submission with its rows, once it is done."""

    rows: list[ResultRow]
    curves: list[PointRow]


class RunLine(BaseModel):
    """A run in the list."""

    id: RunId
    name: str
    created: float
    experiments: list[str]
    models: int = Field(description="submissions")
    status: str = Field(description="empty, scoring, done or failed")


class RunAnswer(RunLine):
    """One run."""

    record: dict[str, Any]
    submissions: list[Standing] = Field(description="in the order in which they were posted")
