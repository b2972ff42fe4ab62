"""The table of features that a model may be submitted with: who gave none, the numbers, and their map on a plane.

One row a record: record, site, split, stratum, selected (to be forgotten), map_x, map_y, f0, f1, ... A site that
refused has one row, with an empty record and without features.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import pandas as pd

from evaluation.metrics.intervals import Floats

TABLE = "features"
"""Its name among the tables of a `evaluation.evidence.ScoredModel`."""
MAPPED = 400
"""Records on a map at most: t-SNE of as many takes one to two seconds."""
FEWEST = 4
"""Records that a map needs."""
PERPLEXITY = 30.0


def refused(sites: Iterable[str]) -> pd.DataFrame:
    """Make the table of a model whose features these sites refuse to give."""
    names = sorted(sites)
    return pd.DataFrame({"record": [""] * len(names), "site": names})


def refusing(table: pd.DataFrame) -> list[str]:
    """Return the sites that refused, sorted."""
    return sorted(str(site) for site in table.loc[table["record"] == "", "site"])


def values_of(table: pd.DataFrame) -> Floats:
    """Return the features of every row, float64 of shape (n, d)."""
    names = [name for name in table.columns if name[:1] == "f" and name[1:].isdecimal()]
    found: Floats = table[names].to_numpy(dtype=np.float64)
    return found


def standardised(features: Floats) -> Floats:
    """Return features with mean 0 and standard deviation 1 in every column; columns that do not vary are left out.

    Parameters
    ----------
    features : ndarray of float, shape (n, d)
        Finite. Rectified units are often 0 for every record.

    Returns
    -------
    ndarray
        float64, shape (n, d') with d' <= d, possibly 0.
    """
    if not len(features):
        return features[:, :0]
    varying = features[:, np.ptp(features, axis=0) > 0]
    scale = np.abs(varying).max(initial=0.0) or 1.0
    scaled = varying / scale
    result: Floats = (scaled - scaled.mean(axis=0)) / scaled.std(axis=0)
    return result


def with_map(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table in order of record with columns ``map_x`` and ``map_y``: where t-SNE puts each record.

    Of more than `MAPPED` records those are mapped whose names have the smallest hashes, half of them to be forgotten
    where there are that many; the others, and all where there is no map, have NaN.
    """
    table = table.sort_values("record", kind="stable", ignore_index=True)
    places = np.full((len(table), 2), np.nan)
    rows = _to_map(table)
    places[rows] = tsne(values_of(table)[rows])
    return table.assign(map_x=places[:, 0], map_y=places[:, 1])


def tsne(features: Floats) -> Floats:
    """Embed records on a plane with t-SNE (van der Maaten and Hinton 2008) of standardised features.

    It starts at the first two principal components and uses one thread, so that nothing is drawn at random and the same
    features give the same map on one machine. Near and far mean something within a map; axes, sizes of clusters and
    two maps side by side do not.

    Parameters
    ----------
    features : ndarray of float, shape (n, d)
        One row a record.

    Returns
    -------
    ndarray
        float64, shape (n, 2), no unit; NaN with fewer than `FEWEST` records, features that are not finite, or fewer
        than two that vary.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    nowhere = np.full((len(features), 2), np.nan)
    if len(features) < FEWEST or not np.isfinite(features).all():
        return nowhere
    ready = standardised(features)
    if ready.shape[1] < 2:
        return nowhere
    with threadpool_limits(limits=1):
        left, sizes, _ = np.linalg.svd(ready, full_matrices=False)
        start = left[:, :2] * sizes[:2]
        start = start / (start[:, 0].std() or 1.0) * 1e-4
        perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
        found = TSNE(init=start, perplexity=perplexity, random_state=0).fit_transform(ready)
    placed: Floats = np.asarray(found, dtype=np.float64)
    return placed


def _to_map(table: pd.DataFrame) -> np.ndarray:
    """Return the rows to map, ascending."""
    digests = [hashlib.blake2b(str(record).encode(), digest_size=8).digest() for record in table["record"]]
    order = sorted(range(len(table)), key=digests.__getitem__)
    selected = table["selected"].to_numpy(dtype=bool)
    forget, retain = ([row for row in order if selected[row] == side] for side in (True, False))
    forget = forget[: max(MAPPED // 2, MAPPED - len(retain))]
    return np.sort(np.array([*forget, *retain[: MAPPED - len(forget)]], dtype=np.int64))
