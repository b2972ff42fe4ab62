"""Small data sets in memory, and the real lung-ct in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from partitions.datasets.lung_ct import DATASET as LUNG_CT
from partitions.records import LoadedData, make_table, record_ids


@pytest.fixture(scope="session")
def make_data() -> Callable[..., LoadedData]:
    """Return a maker of data sets: classes of the records in, and any columns of the table."""

    def make(strata: list[int], **columns: object) -> LoadedData:
        table = make_table(record_ids("toy", map(str, range(len(strata)))), stratum=[str(s) for s in strata], **columns)
        classes = tuple(f"class {chr(97 + i)}" for i in range(max(strata, default=0) + 1))
        inputs = np.zeros((len(strata), 2, 2), np.uint8)
        return LoadedData("toy", inputs, np.array(strata), table, classes, "", "", "", "ab" * 32, len(strata))

    return make


@pytest.fixture(scope="session")
def four_patients(make_data: Callable[..., LoadedData]) -> LoadedData:
    """Four patients of unequal size as natural sites, 4 classes, 40 slices each with provider holdout blocks."""
    rng = np.random.default_rng(0)
    sizes = {"patient-10": 120, "patient-2": 300, "patient-3": 80, "patient-4": 200}
    patient = [name for name, size in sizes.items() for _ in range(size)]
    position = np.concatenate([np.sort(rng.integers(0, 40, size)) for size in sizes.values()])
    split = ["holdout" if (p // 4) % 5 == 4 else "train" for p in position]
    strata = [int(s) for s in rng.integers(0, 4, len(patient))]
    return make_data(strata, patient=patient, site=patient, position=position, split=split)


@pytest.fixture(scope="session")
def lung_ct_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LETHE_HOME with the real lung-ct fetched."""
    home = tmp_path_factory.mktemp("lethe-home")
    LUNG_CT.fetch(home, lambda text: None)
    return home


@pytest.fixture(scope="session")
def lung_ct_600(lung_ct_home: Path) -> LoadedData:
    return LUNG_CT.load(lung_ct_home, 600)


@pytest.fixture
def site_table() -> pd.DataFrame:
    """One site's twenty records: two patients, four classes."""
    return make_table(
        record_ids("toy", map(str, range(20))),
        patient=["anna"] * 12 + ["ben"] * 8,
        stratum=[str(i % 4) for i in range(20)],
        site="north",
    )
