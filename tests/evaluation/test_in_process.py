"""Facts about the evaluator in the run's own process: it writes now and then, and all of it at the end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from evaluation import evaluator
from evaluation.evaluator import Beside, InProcess
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


def test_the_longer_the_tables_take_to_write_the_rarer_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, writes = [100.0], list[float]()

    def write(folder: Path, *what: Any) -> None:
        writes.append(now[0])
        now[0] += 0.5

    monkeypatch.setattr("evaluation.evaluator.time.monotonic", lambda: now[0])
    monkeypatch.setattr(evaluator, "write_results", write)
    monkeypatch.setattr(evaluator, "write_curves", lambda folder, *points: None)
    patient, eager = InProcess(tmp_path, patience=2.0), InProcess(tmp_path)
    for later in (0.0, 5.0, 4.9, 0.2, 9.0):
        now[0] += later
        patient.submit(Scored(0))  # type: ignore[arg-type]
    assert writes == pytest.approx([100.0, 110.6])
    for _ in range(2):
        eager.submit(Scored(0))  # type: ignore[arg-type]
    assert len(writes) == 4


class Slow:
    """An evaluator that waits until it is let go, and may fail."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.scored: list[int] = []
        self.finished: list[list[int]] = []
        self.error: Exception | None = None

    def submit(self, submission: Scored) -> None:
        self.begun.set()
        assert self.go.wait(60)
        if self.error is not None:
            raise self.error
        self.scored.append(submission.number)

    def finish(self) -> None:
        self.finished.append(list(self.scored))


def test_who_submits_goes_on_while_a_model_is_scored_and_waits_before_the_next() -> None:
    slow = Slow()
    with Beside(slow) as beside:  # type: ignore[arg-type]
        beside.submit(Scored(0))  # type: ignore[arg-type]
        assert slow.begun.wait(60) and slow.scored == []
        second = threading.Thread(target=beside.submit, args=(Scored(1),))
        second.start()
        second.join(0.2)
        assert second.is_alive()
        slow.go.set()
        second.join(60)
    assert slow.scored == [0, 1] and slow.finished == [[0, 1]]


def test_who_is_interrupted_waits_for_no_model_to_be_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "HURRY", 0.01)
    slow, ready = Slow(), Slow()
    ready.go.set()
    for one in (slow, ready):
        with pytest.raises(KeyboardInterrupt), Beside(one) as beside:  # type: ignore[arg-type]
            beside.submit(Scored(0))  # type: ignore[arg-type]
            if one is ready:
                beside.finish()
            raise KeyboardInterrupt
    assert slow.scored == slow.finished == []
    assert ready.finished[-1] == [0]
    slow.go.set()


@pytest.mark.parametrize("then", ["submit", "finish"])
def test_what_goes_wrong_beside_is_raised_once_and_what_was_scored_is_written(then: str) -> None:
    slow = Slow()
    slow.go.set()
    with Beside(slow) as beside:  # type: ignore[arg-type]
        beside.submit(Scored(0))  # type: ignore[arg-type]
        beside.finish()
        slow.error = ValueError("no such column")
        beside.submit(Scored(1))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="no such column"):
            beside.submit(Scored(2)) if then == "submit" else beside.finish()  # type: ignore[arg-type]
    assert slow.scored == [0] and slow.finished[-1] == [0]


def test_a_group_that_fails_leaves_all_that_it_scored(
    written: list[tuple[list[int], list[int]]], tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError), scoring(GroupSettings(), tmp_path, print) as here:
        for number in range(3):
            here.submit(Scored(number))  # type: ignore[arg-type]
        raise RuntimeError
    assert [row for rows, _ in written for row in rows] == [0, 1, 2]
