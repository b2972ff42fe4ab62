from __future__ import annotations

from collections.abc import Callable

import numpy as np

from partitions.records import LoadedData, hash_ranks, make_table, record_ids, table_digest, within_cap


def test_ids_are_sixteen_hex_digits_and_depend_on_data_set_and_source() -> None:
    ids = record_ids("toy", ["a", "b"]) + record_ids("other", ["a"])
    assert all(len(i) == 16 and int(i, 16) >= 0 for i in ids)
    assert len(set(ids)) == 3
    assert record_ids("toy", ["a"]) == [ids[0]] == ["c85484861626e5ef"]


def test_ranks_depend_on_seed_and_purpose() -> None:
    ids = record_ids("toy", map(str, range(5)))
    assert hash_ranks(0, "a", ids).tolist() == hash_ranks(0, "a", ids).tolist()
    assert hash_ranks(0, "a", ids).tolist() != hash_ranks(1, "a", ids).tolist()
    assert hash_ranks(0, "a", ids).tolist() != hash_ranks(0, "b", ids).tolist()


def test_a_cap_is_by_class_and_patient(four_patients: LoadedData) -> None:
    table = four_patients.table
    kept = table.iloc[within_cap(table, 20)]
    available = table.groupby(["patient", "stratum"]).size()
    assert kept.groupby(["patient", "stratum"]).size().to_dict() == available.clip(upper=20).to_dict()
    assert len(within_cap(table, 0)) == len(table)


def test_a_larger_cap_keeps_what_a_smaller_one_kept(four_patients: LoadedData) -> None:
    small, large = (set(within_cap(four_patients.table, cap).tolist()) for cap in (5, 9))
    assert small < large


def test_unknown_patients_are_capped_by_class_with_the_reference_set_apart(
    make_data: Callable[..., LoadedData],
) -> None:
    table = make_data([0] * 10 + [1] * 10, split=["", "reference"] * 10).table
    kept = table.iloc[within_cap(table, 3)]
    assert kept.groupby(["stratum", "split"]).size().tolist() == [3, 3, 3, 3]


def test_one_value_fills_a_column() -> None:
    table = make_table(["x", "y"], patient="p", position=[3, 4])
    assert table["patient"].tolist() == ["p", "p"] and table["site"].tolist() == ["", ""]
    assert table["position"].dtype == np.int64


def test_a_table_digest_sees_every_column() -> None:
    table = make_table(["x", "y"])
    changed = [
        table.assign(**{column: value})
        for column, value in (
            ("record", "z"),
            ("patient", "p"),
            ("stratum", "1"),
            ("site", "s"),
            ("split", "train"),
            ("position", 2),
        )
    ]
    assert len({table_digest(t) for t in [table, *changed]}) == 7
