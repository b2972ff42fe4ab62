"""Facts about the evaluator in the run's own process: it writes now and then, and all of it at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evaluation import evaluator
from evaluation.evaluator import InProcess
from flower_apps.evaluators import scoring
from flower_apps.settings import GroupSettings


class Scored:
    """A submission of which only the number is known."""

    def __init__(self, number: int) -> None:
        self.number = number

    def rows(self) -> list[dict[str, Any]]:
        return [{"row": self.number}]

    def curves(self) -> list[dict[str, Any]]:
        return [{"point": self.number}]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], list[int]]]:
    """Return the numbers of the rows and of the points of each write, in order."""
    writes: list[tuple[list[int], list[int]]] = []
    rows: list[int] = []
    monkeypatch.setattr(evaluator, "write_results", lambda folder, found: rows.extend(row["row"] for row in found))

    def write_curves(folder: Path, *points: list[dict[str, Any]]) -> None:
        writes.append((list(rows), [point["point"] for some in points for point in some]))
        rows.clear()

    monkeypatch.setattr(evaluator, "write_curves", write_curves)
    return writes


def test_without_patience_every_model_is_written_at_once(
    written: list[tuple[list[int], list[int]]], tmp_path: Path
) -> None:
    here = InProcess(tmp_path)
    for number in range(3):
        here.submit(Scored(number))  # type: ignore[arg-type]
    here.finish()
    assert written == [([0], [0]), ([1], [1]), ([2], [2])]


def test_with_patience_the_first_is_written_and_the_rest_when_it_is_time(
    written: list[tuple[list[int], list[int]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("evaluation.evaluator.time.monotonic", lambda: now[0])
    here = InProcess(tmp_path, patience=2.0)
    for number, later in enumerate((0.0, 1.0, 0.9, 0.2, 0.1)):
        now[0] += later
        here.submit(Scored(number))  # type: ignore[arg-type]
    assert written == [([0], [0]), ([1, 2, 3], [1, 2, 3])]
    here.finish()
    assert written[2:] == [([4], [4])]
    here.finish()
    assert len(written) == 3


def test_a_group_that_fails_leaves_all_that_it_scored(
    written: list[tuple[list[int], list[int]]], tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError), scoring(GroupSettings(), tmp_path, print) as here:
        for number in range(3):
            here.submit(Scored(number))  # type: ignore[arg-type]
        raise RuntimeError
    assert [row for rows, _ in written for row in rows] == [0, 1, 2]
