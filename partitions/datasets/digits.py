"""digits: the 1 797 small handwritten digits that come with scikit-learn; not medical, for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from partitions.datasets.base import Records, StoredDataSet
from partitions.records import make_table, record_ids, within_cap


class Digits(StoredDataSet):
    """8x8 grey images of ten classes; no patients, no sites, no split of its own. Grey values 0-16 become 0-255."""

    name = "digits"
    title = "Optical Recognition of Handwritten Digits (8x8)"
    licence = "CC BY 4.0"
    source = "https://doi.org/10.24432/C50P49"
    citation = "Alpaydin E, Kaynak C. Optical Recognition of Handwritten Digits. UCI (1998), doi:10.24432/C50P49"
    modality = "none"
    packaged = True
    layout = "nothing: the images come with scikit-learn"

    def _is_here(self, folder: Path) -> bool:
        return True

    def _get(self, folder: Path) -> None:
        """Nothing to get."""

    def _source_key(self, folder: Path) -> str:
        return "scikit-learn"

    def _read(self, folder: Path, cap: int) -> Records:
        from sklearn.datasets import load_digits

        images, targets = load_digits(return_X_y=True)
        table = make_table(record_ids(self.name, map(str, range(len(targets)))), stratum=[str(t) for t in targets])
        kept = within_cap(table, cap)
        grey = np.rint(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
        return Records(
            chunks=[grey[kept]],
            targets=targets[kept].astype(np.int64),
            table=table.iloc[kept].reset_index(drop=True),
            classes=tuple(str(digit) for digit in range(10)),
            available=len(targets),
        )


DATASET = Digits()
