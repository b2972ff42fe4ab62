from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from partitions.datasets.digits import DATASET


def test_all_1797_digits_are_there_with_their_labels(tmp_path: Path) -> None:
    data = DATASET.load(tmp_path, 0)
    images, targets = load_digits(return_X_y=True)
    assert data.inputs.shape == (1797, 8, 8) and data.inputs.dtype == np.uint8
    assert np.abs(data.inputs.reshape(1797, 64) / 255 * 16 - images).max() < 0.04
    assert data.targets.tolist() == targets.tolist() and data.targets.dtype == np.int64
    assert data.table["stratum"].tolist() == [str(t) for t in targets]
    assert set(data.table["patient"]) == set(data.table["site"]) == set(data.table["split"]) == {""}


def test_a_cap_is_by_class(tmp_path: Path) -> None:
    assert np.bincount(DATASET.load(tmp_path, 5).targets).tolist() == [5] * 10
