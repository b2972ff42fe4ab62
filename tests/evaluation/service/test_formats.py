"""Hostile bytes are refused in words, in little memory, and nothing in them is executed."""

from __future__ import annotations

import io
import json
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save

from evaluation.service import formats
from evaluation.service.formats import TABLE, TENSORS, BadBlob, check_blob, read_table, table_bytes
from evaluation.service.inspector import Inspector
from evaluation.service.limits import DEFAULT, Limits
from evaluation.service.tensors import read_arrays, read_state


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.mark,)


def parquet(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **{"compression": "NONE", **options})
    return sink.getvalue()


def test_a_pickle_is_neither_kind_and_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    for data in (pickle.dumps(Bomb(mark)), torch_file(Bomb(mark))):
        for kind in (TABLE, TENSORS):
            with pytest.raises(BadBlob):
                check_blob(kind, data)
    assert not mark.exists()


def torch_file(thing: object) -> bytes:
    sink = io.BytesIO()
    torch.save(thing, sink)
    return sink.getvalue()


def test_what_pandas_and_arrow_put_beside_a_table_is_not_looked_at(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    table = pa.table({"a": [1, 2]}).replace_schema_metadata(
        {b"pandas": b'{"index_columns": ["a"], "columns": []}', b"ARROW:extension:name": b"arrow.py_extension_type"}
    )
    assert list(read_table(parquet(table)).columns) == ["a"]
    field = pa.field("a", pa.int64(), metadata={b"ARROW:extension:name": b"arrow.py_extension_type"})
    field = field.with_metadata({**field.metadata, b"ARROW:extension:metadata": pickle.dumps(Bomb(mark))})
    hostile = pa.table([pa.array([1])], schema=pa.schema([field]))
    assert list(read_table(parquet(hostile)).columns) == ["a"]
    assert not mark.exists()


@pytest.mark.parametrize("options", [{"compression": "zstd"}, {"compression": "gzip"}, {"compression": "snappy"}])
def test_a_compressed_table_is_refused_before_it_unfolds(options: dict[str, object]) -> None:
    with pytest.raises(BadBlob, match="compressed"):
        read_table(parquet(pa.table({"a": ["x" * 1000] * 1000}), **options))


def test_a_dictionary_that_would_unfold_is_refused() -> None:
    bomb = parquet(pa.table({"a": pa.array(["x" * 4000] * 400_000).dictionary_encode()}), store_schema=False)
    assert len(bomb) < 1_000_000
    with pytest.raises(BadBlob, match="memory"):
        read_table(bomb)


def test_a_wide_table_that_would_unfold_is_refused_before_it_does() -> None:
    column = pa.array(np.full(100_000, 7))
    bomb = parquet(pa.table({f"c{number}": column for number in range(1500)}), write_statistics=False)
    assert len(bomb) < 1_000_000
    before = pa.total_allocated_bytes()
    with pytest.raises(BadBlob, match="memory"):
        read_table(bomb)
    assert pa.total_allocated_bytes() - before < 2**20


def test_a_wide_table_is_read_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pd.DataFrame({f"c{number}": np.arange(3000) for number in range(400)})
    seen: list[int] = []
    unfolded = formats._unfolded
    monkeypatch.setattr(formats, "_BATCH_BYTES", 2**20)
    monkeypatch.setattr(
        formats, "_unfolded", lambda column, limits: seen.append(len(column)) or unfolded(column, limits)
    )
    pd.testing.assert_frame_equal(read_table(table_bytes(table)), table)
    assert max(seen) * 400 * 8 <= 2**20


def test_text_that_is_no_utf8_is_refused() -> None:
    data = parquet(pa.table({"a": ["abcdefgh"]}), use_dictionary=False, write_statistics=False)
    with pytest.raises(BadBlob, match="UTF"):
        check_blob(TABLE, data.replace(b"abcdefgh", b"abc\xff\xfefgh"))


def test_many_rows_in_few_bytes_are_refused() -> None:
    bomb = parquet(pa.table({"a": np.zeros(6_000_000, dtype=np.int8)}))
    with pytest.raises(BadBlob, match="6000000 rows"):
        read_table(bomb)


@pytest.mark.parametrize(
    ("table", "what"),
    [
        (pa.table({"a": pa.array([[1]])}), "list"),
        (pa.table({"a": pa.array([{"b": 1}])}), "struct"),
        (pa.table({"a": pa.array([b"x"])}), "binary"),
        (pa.table({"a": pa.array([1], pa.timestamp("us"))}), "timestamp"),
        (pa.table({"a": pa.array(["x" * 5000])}), "5000 bytes"),
        (pa.table({"a": pa.array(["x\0"])}), "NUL"),
        (pa.table({"a": pa.array([1, None])}), "missing values"),
        (pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), "share a name"),
        (pa.table({f"c{i}": [1] for i in range(4097)}), "4097 columns"),
    ],
)
def test_a_table_of_another_make_is_refused_in_words(table: pa.Table, what: str) -> None:
    with pytest.raises(BadBlob, match=what):
        read_table(parquet(table))


def damaged(data: bytes, count: int) -> Iterator[bytes]:
    rng = np.random.default_rng(0)
    for number in range(count):
        broken = bytearray(data)
        if number % 4 == 0:
            del broken[rng.integers(len(data)) :]
        else:
            for place in rng.integers(len(data), size=3):
                broken[place] = rng.integers(256)
        yield bytes(broken)


ABORTING = (b"\x06record\x15\x00", b"\x06record\x15\x2e")
"""In the footer of a table: a codec that the reader knows, and one for which it aborts instead of raising."""


def test_bytes_that_end_the_reader_do_not_end_the_server(tmp_path: Path) -> None:
    data = table_bytes(pd.DataFrame({"record": ["a", "b"], "loss": [0.5, 1.0]}))
    assert data.count(ABORTING[0]) == 1
    (tmp_path / "good").write_bytes(data)
    (tmp_path / "bad").write_bytes(data.replace(*ABORTING))
    inspector = Inspector()
    inspector.check(tmp_path / "good", TABLE, DEFAULT)
    with pytest.raises(BadBlob, match="ends the reader"):
        inspector.check(tmp_path / "bad", TABLE, DEFAULT)
    inspector.check(tmp_path / "good", TABLE, DEFAULT)
    inspector.close()


def test_damaged_bytes_are_a_bad_blob_or_another_table_never_another_error(tmp_path: Path) -> None:
    data = table_bytes(pd.DataFrame({"record": [f"r{i}" for i in range(60)], "loss": np.arange(60.0)}))
    inspector, refused = Inspector(), 0
    for broken in damaged(data, 120):
        (tmp_path / "file").write_bytes(broken)
        try:
            inspector.check(tmp_path / "file", TABLE, DEFAULT)
        except BadBlob:
            refused += 1
    assert refused > 60
    inspector.close()


def header(value: object, body: bytes = b"") -> bytes:
    text = json.dumps(value).encode() if not isinstance(value, bytes) else value
    return struct.pack("<Q", len(text)) + text + body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 2**40) + b"{}",
        header([]),
        header(b"{" * 100),
        header(b"[" * 100_000),
        header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 80]}}, b"\0" * 8),
        header({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}}, b"\0" * 8),
        header({"a": {"dtype": "PICKLE", "shape": [], "data_offsets": [0, 0]}}),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 400),
        header(
            {"__metadata__": {"order": "["}, "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4
        ),
        header(
            {"__metadata__": {"order": '["b"]'}, "params/a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
            b"\0" * 4,
        ),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4),
        header({"__metadata__": 3}),
        *(
            header(
                {"__metadata__": {"order": order}, "1": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
                b"\0" * 4,
            )
            for order in ("[1]", '{"1": 1}', "1", '"1"', "[null]", '[["1"]]', "[1.0, 1]")
        ),
    ],
)
def test_what_is_no_state_is_refused(data: bytes) -> None:
    with pytest.raises(BadBlob):
        read_state(data)


def test_too_many_tensors_are_refused() -> None:
    with pytest.raises(BadBlob, match="at most 2"):
        read_state(save({f"params/{i}": torch.zeros(1) for i in range(3)}), Limits(tensors=2))


def test_arrays_of_a_dtype_that_numpy_lacks_are_refused() -> None:
    with pytest.raises(BadBlob, match="dtype"):
        read_arrays(save({"a": torch.zeros(1, dtype=torch.bfloat16)}))
