from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitions.errors import BadInput
from partitions.records import hash_ranks, make_table, record_ids
from partitions.requests import Step, check_request, parse_request, select

SITES = ("north", "south")
CLASSES = ("air", "lung", "tumour")
MALFORMED_NAMES = ("", "client", "client:", "client:a,,b", "client:a>", ">client:a", "clint:a")
MALFORMED_SAMPLES = ("0", "-0.1", "1.5", "x", "nan", "0.1@", "0.1@a,b")


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("client:patient-1", "client:patient-1"),
        (" client: patient-10 , patient-2,patient-2 ", "client:patient-2,patient-10"),
        ("class:05", "class:5"),
        ("patient:patient-1", "patient:patient-1"),
        ("sample:.10", "sample:0.1"),
        ("sample:0.1 @ patient-1", "sample:0.1@patient-1"),
        ("client:a > class:5>sample:1e-2", "client:a>class:5>sample:0.01"),
    ],
)
def test_a_request_has_one_normal_text(text: str, normal: str) -> None:
    assert parse_request(text).text == normal
    assert parse_request(normal) == parse_request(text)


def test_a_step_names_its_parts() -> None:
    assert parse_request("sample:0.25@north").steps == (Step("sample", (), 0.25, "north"),)
    assert parse_request("class:2,0").steps == (Step("class", ("0", "2")),)


@pytest.mark.parametrize(
    "text",
    [*MALFORMED_NAMES, *(f"sample:{wrong}" for wrong in MALFORMED_SAMPLES)],
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="requests="):
        parse_request(text)


def test_a_misspelt_granularity_gets_the_nearest() -> None:
    with pytest.raises(BadInput, match="did you mean 'client'"):
        parse_request("clint:a")


def test_departed_sites_are_those_of_every_client_step() -> None:
    assert parse_request("client:b>class:1>client:a,b").departed == ("b", "a")
    assert parse_request("sample:0.1@a").departed == ()


def test_prefixes_carry_out_one_step_more_each() -> None:
    assert [prefix.text for prefix in parse_request("client:a>class:1").prefixes()] == ["client:a", "client:a>class:1"]


@pytest.mark.parametrize("split", ["train", "holdout", "reference"])
def test_client_class_and_patient_divide_every_split(site_table: pd.DataFrame, split: str) -> None:
    marks = {
        text: select(parse_request(text), "north", site_table, split, 0).forget.sum()  # type: ignore[arg-type]
        for text in ("client:north", "client:south", "class:1", "class:0,1", "patient:ben", "patient:carl")
    }
    assert marks == {
        "client:north": 20,
        "client:south": 0,
        "class:1": 5,
        "class:0,1": 10,
        "patient:ben": 8,
        "patient:carl": 0,
    }


def test_a_client_request_marks_nothing_in_the_reference_set(site_table: pd.DataFrame) -> None:
    chosen = select(parse_request("client:north"), "", site_table, "reference", 0)
    assert not chosen.forget.any() and chosen.retain.all()


def test_a_sample_takes_the_smallest_hashes(site_table: pd.DataFrame) -> None:
    forget = select(parse_request("sample:0.25"), "north", site_table, "train", 3).forget
    ranks = hash_ranks(3, "sample-request", site_table["record"])
    assert forget.sum() == 5
    assert ranks[forget].max() < ranks[~forget].min()


def test_a_sample_takes_at_least_one(site_table: pd.DataFrame) -> None:
    assert select(parse_request("sample:0.001"), "north", site_table, "train", 0).forget.sum() == 1


def test_a_sample_depends_on_the_seed_not_on_the_order_of_records(site_table: pd.DataFrame) -> None:
    request = parse_request("sample:0.3")
    chosen = set(site_table["record"][select(request, "north", site_table, "train", 0).forget])
    turned = site_table.iloc[::-1].reset_index(drop=True)
    assert set(turned["record"][select(request, "north", turned, "train", 0).forget]) == chosen
    assert set(site_table["record"][select(request, "north", site_table, "train", 1).forget]) != chosen


def test_a_larger_sample_contains_the_smaller(site_table: pd.DataFrame) -> None:
    small, large = (select(parse_request(f"sample:{f}"), "north", site_table, "train", 0).forget for f in (0.2, 0.6))
    assert not (small & ~large).any()


def test_a_scoped_sample_leaves_other_sites_alone(site_table: pd.DataFrame) -> None:
    request = parse_request("sample:0.5@south")
    assert select(request, "north", site_table, "train", 0).retain.all()
    assert select(request, "south", site_table, "train", 0).forget.sum() == 10


@pytest.mark.parametrize("split", ["holdout", "reference"])
def test_a_sample_does_not_divide_other_splits(site_table: pd.DataFrame, split: str) -> None:
    chosen = select(parse_request("sample:0.5"), "north", site_table, split, 0)  # type: ignore[arg-type]
    assert chosen.retain.all() and not chosen.forget.any()


def test_what_an_earlier_step_marked_is_in_neither(site_table: pd.DataFrame) -> None:
    chosen = select(parse_request("class:1>patient:ben"), "north", site_table, "train", 0)
    ben, one = site_table["patient"] == "ben", site_table["stratum"] == "1"
    assert (chosen.forget == (ben & ~one)).all()
    assert (chosen.retain == ~(ben | one)).all()


def test_a_second_sample_takes_other_records(site_table: pd.DataFrame) -> None:
    first = select(parse_request("sample:0.5"), "north", site_table, "train", 0).forget
    second = select(parse_request("sample:0.5>sample:0.5"), "north", site_table, "train", 0).forget
    assert second.sum() == 5 and not (first & second).any()


STEP = st.sampled_from(["client:north", "client:south", "class:0", "class:1,2", "patient:anna", "sample:0.2"])


@given(st.lists(STEP, min_size=1, max_size=4), st.integers(0, 30), st.sampled_from(["train", "holdout", "reference"]))
def test_every_record_is_forgotten_now_earlier_or_retained(steps: list[str], n: int, split: str) -> None:
    table = make_table(record_ids("toy", map(str, range(n))), stratum=[str(i % 4) for i in range(n)], patient="anna")
    request = parse_request(">".join(steps))
    earlier = np.zeros(n, dtype=bool)
    for prefix in request.prefixes():
        chosen = select(prefix, "north", table, split, 0)  # type: ignore[arg-type]
        assert (earlier.astype(int) + chosen.forget + chosen.retain == 1).all()
        earlier |= chosen.forget


def test_an_empty_site_gets_an_empty_selection(site_table: pd.DataFrame) -> None:
    for text in ("sample:0.5", "client:north", "class:1"):
        chosen = select(parse_request(text), "north", site_table.iloc[:0], "train", 0)
        assert len(chosen.forget) == len(chosen.retain) == 0


@pytest.mark.parametrize(
    ("text", "counts", "reason"),
    [
        ("client:nort", {"north": (1, 1)}, "did you mean 'north'"),
        ("sample:0.1@sout", {"north": (1, 1)}, "did you mean 'south'"),
        ("class:7", {"north": (1, 1)}, "2 \\(tumour\\)"),
        ("class:tumour", {"north": (1, 1)}, "tumour is class:2"),
        ("patient:carl", {"north": (0, 5), "south": (0, 5)}, "no site has a training record of patient carl"),
        ("client:north>client:north", {"north": (0, 0), "south": (0, 5)}, "that no earlier step has forgotten"),
        ("client:north,south", {"north": (5, 0), "south": (5, 0)}, "nothing would be left to retain"),
    ],
)
def test_an_impossible_request_is_refused_with_the_reason(
    text: str, counts: dict[str, tuple[int, int]], reason: str
) -> None:
    with pytest.raises(BadInput, match=reason):
        check_request(parse_request(text), SITES, CLASSES, counts)


def test_an_unknown_patient_gets_the_nearest_where_patients_are_known() -> None:
    with pytest.raises(BadInput, match="did you mean 'anna'"):
        check_request(parse_request("patient:ana"), SITES, CLASSES, {"north": (0, 1)}, patients=["anna", "ben"])


def test_a_possible_request_passes() -> None:
    check_request(parse_request("client:north>class:2>sample:0.1@south"), SITES, CLASSES, {"south": (1, 9)})
