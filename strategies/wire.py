"""What travels between server and sites, in Flower's records and back. Knows states and plain parts, no site code.

A message holds ``arrays`` (the model), ``state.<name>`` (further models), ``config`` and, in replies, ``metrics``,
``tables`` (parquet bytes by name) and ``arrays.<name>`` (other named arrays). Floats travel in at least 32 bits. Models
that are handed over in files (`strategies.handover`) are in ``files`` instead, by the same names.
"""

from __future__ import annotations

import io
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from partitions.errors import Refused
from strategies.handover import Handover, take
from unlearning.state import State, Tensors, Update

Scalar = str | int | float | bool
Category = Literal["train", "evaluate", "query"]
Arrays = dict[str, np.ndarray]

MODEL, CONFIG, METRICS, TABLES = "arrays", "config", "metrics", "tables"
FILES, FILE_BYTES = "files", "file-bytes"
FURTHER_STATE, FURTHER_ARRAYS = "state.", "arrays."

CLIENT_RAISED = 2
"""Flower's ErrorCode.CLIENT_APP_RAISED_EXCEPTION: the one failure after which a round may go on."""
_RAISED_AT = "\nraised at\n"


@dataclass(frozen=True)
class CallParts:
    """A decoded call at a site.

    Attributes
    ----------
    op : str
        Name of the operation, the second half of the message type; empty for a bare type.
    state : State or None
        The model.
    states : dict of str to State
        Further models by name.
    config : dict
        Scalars and flat lists with hyphenated keys.
    """

    op: str
    state: State | None
    states: dict[str, State]
    config: dict[str, Any]


@dataclass(frozen=True)
class SiteReply:
    """A decoded answer of one site.

    Attributes
    ----------
    site : str
        Who answered.
    state : State or None
        The model sent back.
    metrics, config : dict
        Numbers, and other scalars and flat lists, with hyphenated keys.
    tables : dict of str to DataFrame
        Tables by name.
    arrays : dict of str to dict of str to ndarray
        Further arrays by name.
    error : str
        What the site raised, in one line, when the failure policy lets the others go on; empty otherwise.
    traceback : str
        Where it raised that.
    bytes_down, bytes_up : int
        Array payload sent to this site and received from it.
    """

    site: str
    state: State | None = None
    metrics: dict[str, int | float] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    arrays: dict[str, Arrays] = field(default_factory=dict)
    error: str = ""
    traceback: str = ""
    bytes_down: int = 0
    bytes_up: int = 0

    def number(self, key: str) -> float:
        """Return a metric as float; NaN when the site did not send it."""
        return float(self.metrics.get(key, float("nan")))

    def count(self, key: str) -> int:
        """Return a metric as int; 0 when the site did not send it."""
        return int(self.metrics.get(key, 0))

    def text(self, key: str) -> str:
        """Return a config value as text; empty when the site did not send it."""
        return str(self.config.get(key, ""))


def to_record(state: State | Update) -> ArrayRecord:
    """Encode a state or update; half-precision floats become 32 bits wide, 0-d shapes stay."""
    wide = _widened(state) if isinstance(state, State) else Update(_wide(state.params), _wide(state.float_buffers))
    return _arrays_to_record(wide.to_arrays())


def from_record(record: ArrayRecord) -> State:
    """Decode a state from `to_record`."""
    return State.from_arrays(_record_to_arrays(record))


def call_content(
    state: State | None,
    config: Mapping[str, Any],
    states: Mapping[str, State] | None = None,
    handover: Handover | None = None,
) -> RecordDict:
    """Encode what a site is asked, its models as arrays, or in files where there is a `handover`."""
    content = RecordDict({CONFIG: ConfigRecord(dict(config))})
    models = {} if state is None else {MODEL: state}
    models |= {FURTHER_STATE + name: further for name, further in (states or {}).items()}
    if handover is None or not models:
        for name, model in models.items():
            content[name] = to_record(model)
        return content
    handover.begin()
    handed = {name: handover.hand(_widened(model)) for name, model in models.items()}
    content[FILES] = ConfigRecord({name: found.path for name, found in handed.items()})
    content[FILE_BYTES] = MetricRecord({name: found.bytes for name, found in handed.items()})
    return content


def make_message(category: Category, op: str, node: int, content: RecordDict, group: str = "") -> Message:
    """Address `content` to a node as ``<category>.<op>``; `op` must be a valid Python identifier."""
    return Message(content=content, dst_node_id=node, message_type=f"{category}.{op}", group_id=group)


def call_of(message: Message) -> CallParts:
    """Decode a call at the site."""
    content = message.content
    models = {name: from_record(record) for name, record in content.array_records.items()}
    models |= {name: take(str(path)) for name, path in content.config_records.get(FILES, {}).items()}
    state = models.pop(MODEL, None)
    return CallParts(
        op=message.metadata.message_type.partition(".")[2],
        state=state,
        states={name.removeprefix(FURTHER_STATE): model for name, model in models.items()},
        config=_scalars(content, CONFIG),
    )


def reply_content(
    *,
    state: State | None = None,
    metrics: Mapping[str, int | float] | None = None,
    config: Mapping[str, Any] | None = None,
    tables: Mapping[str, pd.DataFrame] | None = None,
    arrays: Mapping[str, Mapping[str, np.ndarray]] | None = None,
) -> RecordDict:
    """Encode an answer at the site (parts as in `SiteReply`)."""
    content = RecordDict(
        {METRICS: MetricRecord(dict(metrics or {})), CONFIG: ConfigRecord(dict(config or {}))},
    )
    if state is not None:
        content[MODEL] = to_record(state)
    if tables:
        content[TABLES] = ConfigRecord({name: _to_parquet(table) for name, table in tables.items()})
    for name, group in (arrays or {}).items():
        content[FURTHER_ARRAYS + name] = _arrays_to_record(group)
    return content


def error_reply(message: Message, error: Exception) -> Message:
    """Answer `message` with what was raised, and where; a refusal (`Refused`) was raised nowhere.

    Raised through Flower, an exception loses its traceback at a SuperNode, and in a simulation comes wrapped in Ray's.
    """
    where = "" if isinstance(error, Refused) else "".join(traceback.format_exception(error))
    return Message(Error(CLIENT_RAISED, f"{type(error).__name__}: {error}{_RAISED_AT}{where}"), reply_to=message)


def error_of(message: Message) -> tuple[str, str]:
    """Return what went wrong, in one line, and the traceback, which is empty unless `error_reply` sent it."""
    what, _, where = (message.error.reason or "no reason given").partition(_RAISED_AT)
    return " ".join(what.split()), where


def reply_of(message: Message, site: str, bytes_down: int = 0) -> SiteReply:
    """Decode a site's answer; an error message gives a reply that holds only its reason."""
    if message.has_error():
        what, where = error_of(message)
        return SiteReply(site, error=what, traceback=where, bytes_down=bytes_down)
    content = message.content
    records = content.array_records
    return SiteReply(
        site=site,
        state=from_record(records[MODEL]) if MODEL in records else None,
        metrics=cast(dict[str, int | float], dict(content.metric_records.get(METRICS, {}))),
        config=_scalars(content, CONFIG),
        tables={n: _from_parquet(cast(bytes, raw)) for n, raw in content.config_records.get(TABLES, {}).items()},
        arrays={
            key.removeprefix(FURTHER_ARRAYS): _record_to_arrays(record)
            for key, record in records.items()
            if key.startswith(FURTHER_ARRAYS)
        },
        bytes_down=bytes_down,
        bytes_up=array_bytes(content),
    )


def array_bytes(content: RecordDict) -> int:
    """Return the bytes of all arrays in `content`, and of those that it names files of."""
    inside = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    return inside + sum(int(cast(int, size)) for size in content.metric_records.get(FILE_BYTES, {}).values())


def _widened(state: State) -> State:
    return State(_wide(state.params), _wide(state.float_buffers), state.int_buffers)


def _wide(tensors: Tensors) -> Tensors:
    narrow = (torch.float16, torch.bfloat16)
    return {name: tensor.float() if tensor.dtype in narrow else tensor for name, tensor in tensors.items()}


def _arrays_to_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def _record_to_arrays(record: ArrayRecord) -> Arrays:
    return {name: array.numpy() for name, array in record.items()}


def _scalars(content: RecordDict, key: str) -> dict[str, Any]:
    return cast(dict[str, Any], dict(content.config_records.get(key, {})))


def _to_parquet(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return buffer.getvalue()


def _from_parquet(raw: bytes) -> pd.DataFrame:
    return pd.read_parquet(io.BytesIO(raw))
