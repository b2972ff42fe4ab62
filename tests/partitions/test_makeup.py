from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from partitions.makeup import draw_heatmap, makeup
from partitions.partition import SplitSpec, make_partition
from partitions.records import LoadedData


def test_counts_are_those_of_the_records(four_patients: LoadedData) -> None:
    partition = make_partition(four_patients, SplitSpec("dirichlet", 5, 0.5))
    frame = makeup(four_patients, partition)
    assert list(frame.columns) == [*four_patients.classes, "train", "holdout", "patients"]
    assert list(frame.index) == list(partition.sites)
    assert frame[list(four_patients.classes)].sum().tolist() == np.bincount(four_patients.targets).tolist()
    assert frame["train"].tolist() == [len(own) for own in partition.train.values()]
    assert frame["holdout"].sum() == (four_patients.table["split"] == "holdout").sum()


def test_patients_are_counted_where_they_are_known(
    four_patients: LoadedData, make_data: Callable[..., LoadedData]
) -> None:
    assert set(makeup(four_patients, make_partition(four_patients, SplitSpec("natural")))["patients"]) == {1}
    unknown = make_data([0, 1, 1])
    assert makeup(unknown, make_partition(unknown, SplitSpec("iid", 1)))["patients"].tolist() == [0]


def test_the_reference_set_is_the_last_row(make_data: Callable[..., LoadedData]) -> None:
    data = make_data([0, 1, 1, 0], split=["", "", "reference", "reference"])
    frame = makeup(data, make_partition(data, SplitSpec("iid", 1)))
    assert frame.loc["reference"].tolist() == [1, 1, 0, 2, 0]


def test_the_heat_map_is_drawn_whatever_the_number_of_sites(four_patients: LoadedData, tmp_path: Path) -> None:
    for sites in (1, 150):
        path = tmp_path / "made" / f"{sites}.png"
        draw_heatmap(makeup(four_patients, make_partition(four_patients, SplitSpec("iid", sites))), path)
        with Image.open(path) as image:
            assert image.height > 250 and np.asarray(image).std() > 10
