"""Errors that every room shares."""

from __future__ import annotations

import errno
import pickle

import pytest

from partitions.errors import MOST_CHARACTERS, BadInput, Quantity, disk_full, unknown_name


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
        (ValueError("no"), False),
    ],
)
def test_a_full_disk_is_known_in_the_words_of_any_library(error: Exception, full: bool) -> None:
    assert disk_full(error) is full


@pytest.mark.parametrize("value", ["x" * 400_000, ["x" * 400_000], {"x": list(range(100_000))}])
def test_a_long_value_is_shortened_and_its_length_told(value: object) -> None:
    error = BadInput("key", value, "less")
    assert len(str(error)) < MOST_CHARACTERS + 100
    assert f"({len(repr(value))} characters): allowed is less" in str(error)
    assert error.value == value
    assert str(BadInput("key", "x" * 100, "less")) == f"key={'x' * 100!r}: allowed is less"


def test_a_quantity_stands_without_quotes_also_after_a_way_through_another_process() -> None:
    error = BadInput("disk", Quantity("2.0 GB"), "less")
    assert str(error) == str(pickle.loads(pickle.dumps(error))) == "disk=2.0 GB: allowed is less"


def test_many_names_are_counted_and_not_all_listed() -> None:
    names = [f"set-{number:03}" for number in range(60)]
    text = str(unknown_name("dataset", "set-059x", names))
    assert "60 names: set-000" in text and "set-030" not in text and "did you mean 'set-059'?" in text
    assert "one of a, b; " not in str(unknown_name("dataset", "zzz", ["a", "b"]))
