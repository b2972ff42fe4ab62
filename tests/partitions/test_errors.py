"""Errors that every room shares."""

from __future__ import annotations

import errno

import pytest

from partitions.errors import disk_full, unknown_name


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


def test_many_names_are_counted_and_not_all_listed() -> None:
    names = [f"set-{number:03}" for number in range(60)]
    text = str(unknown_name("dataset", "set-059x", names))
    assert "60 names: set-000" in text and "set-030" not in text and "did you mean 'set-059'?" in text
    assert "one of a, b; " not in str(unknown_name("dataset", "zzz", ["a", "b"]))
