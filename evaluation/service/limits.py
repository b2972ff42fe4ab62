"""How much a server takes: one place for every limit, each with the setting that changes it."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """Limits on what is uploaded.

    Attributes
    ----------
    upload_bytes : int
        Of one blob; ``--max-upload`` of `lethe evaluator serve`.
    document_bytes : int
        Of one JSON document: a submission, a run record.
    rows, columns : int
        Of a table; a dictionary-encoded column repeats its values as often as it has rows.
    text_bytes : int
        Of one value of a text column.
    table_bytes : int
        Of a table in memory.
    tensors : int
        In one set of weights.
    """

    upload_bytes: int = 512 * MIB
    document_bytes: int = 16 * MIB
    rows: int = 5_000_000
    columns: int = 4096
    text_bytes: int = 4096
    table_bytes: int = 1024 * MIB
    tensors: int = 20_000


DEFAULT = Limits()
"""What a server takes unless told otherwise."""
