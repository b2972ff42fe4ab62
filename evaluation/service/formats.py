"""The two kinds of blob, parquet and safetensors: written the same every time, read within limits, never executed.

Nothing here needs torch, so that the process that looks into uploads starts quickly.
"""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from safetensors import SafetensorError, deserialize

from evaluation.service.limits import DEFAULT, Limits

TABLE, TENSORS = "application/vnd.apache.parquet", "application/vnd.safetensors"
"""Content types of the two kinds of blob."""
ORDER = "order"
"""Metadata of safetensors: the names of the tensors in the order in which sums over them are taken."""
_PLAIN = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_float32, pa.types.is_float64)
_BATCH_BYTES = 64 * 2**20  # of a table that are decoded at once
_TEXT_WIDTH = 8  # bytes of a row that a text takes at least
_HEADER_BYTES = 100 * 2**20  # of safetensors, as its own reader allows


class BadBlob(ValueError):
    """Bytes that are not what they should be; the text says what is wrong, for whoever knows which field they are."""


def table_bytes(table: pd.DataFrame) -> bytes:
    """Return a table as parquet: the same bytes for the same table, without its index.

    Columns may be booleans, integers, floats and text. Nothing is compressed, so that a file cannot unfold into more
    than its size says.

    Raises
    ------
    ValueError
        For a column of another type.
    """
    try:
        arrow = pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata(None)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(f"a table that cannot travel: {error}") from None
    arrow = pa.table({name: _without_nan_nulls(arrow[name], table[name]) for name in arrow.column_names})
    for field, column in zip(arrow.schema, arrow.columns, strict=True):
        if not (_is_text(field.type) or any(is_of(field.type) for is_of in _PLAIN)):
            raise ValueError(f"column {field.name!r} cannot travel: its type is {field.type}")
        if column.null_count and not (_is_text(field.type) or pa.types.is_floating(field.type)):
            raise ValueError(f"column {field.name!r} cannot travel: {field.type} with missing values")
    sink = io.BytesIO()
    pq.write_table(arrow, sink, compression="NONE", store_schema=True)
    return sink.getvalue()


def read_table(data: bytes, limits: Limits = DEFAULT) -> pd.DataFrame:
    """Read a table from parquet, within limits.

    Raises
    ------
    BadBlob
        When it is not parquet, too large once unfolded, compressed, or has a column that is not a boolean, a number or
        text.
    """
    table: pd.DataFrame = _arrow_table(data, limits).to_pandas(ignore_metadata=True)
    return table


def _arrow_table(data: bytes, limits: Limits) -> pa.Table:
    try:
        file = pq.ParquetFile(
            pa.BufferReader(data),
            thrift_string_size_limit=len(data) + 1,
            thrift_container_size_limit=max(len(data), 1000),
            arrow_extensions_enabled=False,
        )
        _check_shape(file, limits)
        text = [field.name for field in file.schema_arrow if _is_text(field.type)]
        file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=text, arrow_extensions_enabled=False)
        taken = 0
        batches = []
        for batch in file.iter_batches(batch_size=_batch_rows(file)):
            taken += sum(_unfolded(column, limits) for column in batch.columns)
            if taken > limits.table_bytes:
                raise BadBlob(f"takes more than {limits.table_bytes} bytes of memory")
            batches.append(batch)
        arrow = pa.Table.from_batches(batches, schema=file.schema_arrow)
        arrow.validate(full=True)  # text that is no UTF-8
    except (pa.ArrowException, OSError, OverflowError, MemoryError) as error:
        raise BadBlob(f"not a parquet table that can be read ({first_line(error)})") from None
    for name, column in zip(arrow.column_names, arrow.columns, strict=True):
        if column.null_count and (pa.types.is_boolean(column.type) or pa.types.is_integer(column.type)):
            raise BadBlob(f"column {name!r} has missing values, which only text and floats may have")
    plain = [column.cast(column.type.value_type) if _is_dictionary(column) else column for column in arrow.columns]
    return pa.table(plain, names=arrow.column_names)


def tensors_header(data: bytes, limits: Limits = DEFAULT) -> dict[str, Any]:
    """Return the header of safetensors bytes; raises `BadBlob` when there is none or it is too large.

    Its offsets are checked by the library, which refuses gaps and overlaps.
    """
    size = int.from_bytes(data[:8], "little") if len(data) >= 8 else -1
    if not 2 <= size <= min(len(data) - 8, _HEADER_BYTES):
        raise BadBlob("not safetensors: no header of a plausible size")
    try:
        header = json.loads(data[8 : 8 + size])
        if not isinstance(header, dict):
            raise ValueError("the header is no object")
        metadata = header.get("__metadata__", {})
        json.loads(metadata.get(ORDER, "null"))
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise BadBlob(f"not safetensors: {first_line(error)}") from None
    count = len(header) - ("__metadata__" in header)
    if count > limits.tensors:
        raise BadBlob(f"{count} tensors, and at most {limits.tensors} are taken")
    return header


def check_blob(kind: str, data: bytes, limits: Limits = DEFAULT) -> None:
    """Raise `BadBlob` unless the bytes can be read as their kind, `TABLE` or `TENSORS`."""
    if kind == TABLE:
        _arrow_table(data, limits)
    else:
        tensors_header(data, limits)
        try:
            deserialize(data)  # type: ignore[no-untyped-call]
        except SafetensorError as error:
            raise BadBlob(f"not safetensors: {first_line(error)}") from None


def _check_shape(file: pq.ParquetFile, limits: Limits) -> None:
    found = file.metadata
    groups = [found.row_group(number) for number in range(found.num_row_groups)]
    if found.num_rows != sum(group.num_rows for group in groups) or any(group.num_rows < 0 for group in groups):
        raise BadBlob(f"{found.num_rows} rows, and its row groups have others")
    if found.num_rows > limits.rows or found.num_columns > limits.columns:
        most = f"at most {limits.rows} rows and {limits.columns} columns are taken"
        raise BadBlob(f"{found.num_rows} rows and {found.num_columns} columns, and {most}")
    names = [field.name for field in file.schema_arrow]
    if len(set(names)) != len(names):
        raise BadBlob("two columns share a name")
    for field in file.schema_arrow:
        if not (_is_text(field.type) or any(is_of(field.type) for is_of in _PLAIN)):
            raise BadBlob(f"column {field.name!r} is {field.type}: only booleans, numbers and text are taken")
    if found.num_rows * _row_bytes(file) > limits.table_bytes:  # before any of it is decoded
        raise BadBlob(f"takes more than {limits.table_bytes} bytes of memory")
    for group in groups:
        for place in range(group.num_columns):
            if group.column(place).compression != "UNCOMPRESSED":
                raise BadBlob(f"column {names[place]!r} is compressed: write it with compression NONE")


def _row_bytes(file: pq.ParquetFile) -> int:
    """Return the bytes that a row takes at least, read from the types of the columns alone."""
    widths = (_TEXT_WIDTH if _is_text(field.type) else (field.type.bit_width + 7) // 8 for field in file.schema_arrow)
    return sum(widths)


def _batch_rows(file: pq.ParquetFile) -> int:
    """Return how many rows to decode at once: fewer of a wide table."""
    return max(1, min(65_536, _BATCH_BYTES // max(1, _row_bytes(file))))


def _unfolded(column: Any, limits: Limits) -> int:
    """Return the bytes that a column takes as plain values; checks the length of each text, and that it has no NUL."""
    if not _is_dictionary(column):
        return int(column.nbytes)
    values = column.dictionary
    longest = pc.max(pc.binary_length(values)).as_py() or 0
    if longest > limits.text_bytes:
        raise BadBlob(f"a text of {longest} bytes, and at most {limits.text_bytes} are taken")
    if pc.any(pc.match_substring(values, "\0")).as_py():
        raise BadBlob("a text with a NUL character")
    return int(longest * len(column))


def _without_nan_nulls(column: Any, original: pd.Series[Any]) -> Any:
    """Write a NaN as the number it is where the column cannot have other missing values."""
    if isinstance(original.dtype, np.dtype) and original.dtype.kind == "f":
        return pa.array(original.to_numpy(), from_pandas=False)
    return column.cast(pa.string()) if pa.types.is_null(column.type) else column


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_dictionary(column: Any) -> bool:
    return bool(pa.types.is_dictionary(column.type))


def first_line(error: BaseException) -> str:
    """Return the beginning of an error of a library."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
