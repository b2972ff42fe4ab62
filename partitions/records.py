"""Records: one row a record with a stable id, arrays beside it. Independent of any split over sites."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from partitions.seeds import derive_seed

SALT = b"lethe-records-1"
TABLE_COLUMNS = ("record", "patient", "stratum", "site", "split", "position")


@dataclass(frozen=True)
class LoadedData:
    """A prepared data set.

    Attributes
    ----------
    name : str
        Its name in the catalogue.
    inputs : ndarray
        (n, H, W) or (n, H, W, C) uint8, a read-only memory map shared by every process of the machine.
    targets : ndarray
        (n,) int64 class indices; other tasks have other shapes (multi-label: (n, labels)).
    table : DataFrame
        One row a record, in the order of the arrays: `record` (16 hex digits), `patient` (empty: unknown), `stratum`
        (class index as text, empty: none), `site` (natural site, empty: none), `split` (``train``, ``holdout``,
        ``reference``; empty: the provider does not say) and `position` (int64 along the patient's axis, -1: none).
    classes : tuple of str
        Names of the classes, in the order of their indices.
    licence, source, citation : str
        Of the data, not of the code that reads it.
    fingerprint : str
        Hex SHA-256 of arrays and table.
    available : int
        Records the data set has before the cap.
    """

    name: str
    inputs: np.ndarray
    targets: np.ndarray
    table: pd.DataFrame
    classes: tuple[str, ...]
    licence: str
    source: str
    citation: str
    fingerprint: str
    available: int


def record_ids(dataset: str, sources: Iterable[str]) -> list[str]:
    """Return the id of each record: a salted hash of where it comes from (its path or index), 16 hex digits."""
    return [hashlib.blake2b(f"{dataset}|{source}".encode(), key=SALT, digest_size=8).hexdigest() for source in sources]


def hash_ranks(seed: int, purpose: str, records: Iterable[str]) -> np.ndarray:
    """Return an int64 number for each record that depends on its id, the seed and the purpose only.

    Whatever takes the smallest of them (a cap, a holdout, a sample) keeps its choice when other records come or go.
    """
    return np.array([derive_seed(seed, purpose, record) for record in records], dtype=np.int64)


def within_cap(table: pd.DataFrame, cap: int) -> np.ndarray:
    """Choose at most `cap` records of every class and patient, by hash; a larger cap keeps what a smaller one kept.

    Records of unknown patients count as one patient, and the reference set is capped apart from the rest.

    Parameters
    ----------
    table : DataFrame
        Columns record, patient, stratum and split.
    cap : int
        0 keeps every record.

    Returns
    -------
    ndarray
        int64 row numbers, ascending.
    """
    if cap == 0:
        return np.arange(len(table), dtype=np.int64)
    ranks = pd.Series(hash_ranks(0, "cap", table["record"]), index=table.index)
    keys = [table["patient"], table["stratum"], table["split"] == "reference"]
    return np.flatnonzero((ranks.groupby(keys).rank(method="first") <= cap).to_numpy()).astype(np.int64)


def make_table(
    records: Sequence[str],
    *,
    patient: Sequence[str] | str = "",
    stratum: Sequence[str] | str = "",
    site: Sequence[str] | str = "",
    split: Sequence[str] | str = "",
    position: Sequence[int] | np.ndarray | int = -1,
) -> pd.DataFrame:
    """Build a record table from columns, or from one value for every record."""
    columns = {"patient": patient, "stratum": stratum, "site": site, "split": split}
    table = pd.DataFrame({"record": list(records)}, dtype=str).assign(**columns)
    table = table.astype(dict.fromkeys(columns, str))
    return table.assign(position=np.broadcast_to(np.asarray(position, dtype=np.int64), len(table)))


def table_digest(table: pd.DataFrame) -> bytes:
    """Return the SHA-256 of a record table's contents, whatever pandas stores them in."""
    digest = hashlib.sha256()
    for column in TABLE_COLUMNS:
        digest.update(f"|{column}|".encode())
        digest.update("\n".join(map(str, table[column])).encode())
    return digest.digest()
