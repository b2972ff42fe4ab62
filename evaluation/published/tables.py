"""The result tables of two published studies, as facts: one row a number, with where it stands."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from io import StringIO

import pandas as pd

from partitions.errors import RunFailed

SOURCES = {
    "lethe": "the Lethe study of federated unlearning in medical imaging, its tables by number",
    "mufac": "Choi and Na 2023, Towards Machine Unlearning Benchmarks (MUFAC, MUCAC), arXiv:2311.02240",
}
"""What to cite for each, by the first word of `table`."""
ABOUT = ("table", "task", "dataset", "granularity", "alpha", "model", "method", "metric")
"""What a published number is about, in the study's own names."""
COLUMNS = (*ABOUT, "value", "std")
NUMBERS = ("alpha", "value", "std")
GIVEN = {"task": "classification", "granularity": "patient", "alpha": "", "std": ""}
"""What the second study does not vary: whole identities are forgotten, and nothing is split over sites."""
RANGES = {
    "speedup": (0.0, float("inf")),
    "retrain_gap_l2": (0.0, float("inf")),
    "retrain_gap_kl": (0.0, float("inf")),
    "forget_psnr": (0.0, 100.0),
    "retain_psnr": (0.0, 100.0),
    "test_psnr": (0.0, 100.0),
}
"""Of metrics that are no fractions: ratio, norm, nats, dB."""


@cache
def published() -> pd.DataFrame:
    """Return every number of both studies.

    Returns
    -------
    DataFrame
        `COLUMNS`: ``table`` such as ``lethe 3``; text, empty where the study does not say; ``alpha``, ``value`` and
        ``std`` (over seeds) as float64, NaN where there is none. Fractions are in [0, 1], PSNR is in dB, KL in nats.
        Do not change it: it is read once.

    Raises
    ------
    RunFailed
        When a table that came with this package is damaged.
    """
    return pd.concat([read_published(source) for source in SOURCES], ignore_index=True)


def read_published(source: str) -> pd.DataFrame:
    """Read the tables of one study, a name of `SOURCES`; returns and raises as `published` does."""
    file = files(__package__).joinpath(f"{source}.csv")
    try:
        return parse_published(file.read_text(encoding="utf-8"), source)
    except (OSError, ValueError) as error:
        raise RunFailed(f"the published tables of {source} are damaged ({error}): install Lethe again") from None


def parse_published(text: str, source: str) -> pd.DataFrame:
    """Read the text of a study's tables.

    Raises
    ------
    ValueError
        For a column, number or row that does not belong there, naming it.
    """
    frame = pd.read_csv(StringIO(text), dtype=str, keep_default_na=False)
    for name, value in GIVEN.items():
        if name not in frame and source != "lethe":
            frame[name] = value
    if set(frame.columns) != set(COLUMNS):
        raise ValueError(f"columns {sorted(set(frame.columns) ^ set(COLUMNS))} are missing or unknown")
    frame = frame[list(COLUMNS)]
    frame["table"] = f"{source} " + frame["table"]
    for name in NUMBERS:
        frame[name] = pd.to_numeric(frame[name].replace("", None)).astype("float64")
    _check(frame)
    return frame


def _check(frame: pd.DataFrame) -> None:
    for name in ("dataset", "method", "metric"):
        if (frame[name] == "").any():
            raise ValueError(f"a row without {name}")
    twice = frame[frame.duplicated(list(ABOUT))]
    if len(twice):
        raise ValueError(f"given twice: {' '.join(str(twice.iloc[0][name]) for name in ABOUT)}")
    low = frame["metric"].map(lambda metric: RANGES.get(metric, (0.0, 1.0))[0])
    high = frame["metric"].map(lambda metric: RANGES.get(metric, (0.0, 1.0))[1])
    off = frame[~frame["value"].between(low, high) | (frame["std"] < 0)]
    if len(off):
        row = off.iloc[0]
        raise ValueError(f"{row['table']} {row['dataset']} {row['method']}: {row['metric']} {row['value']:g}")
