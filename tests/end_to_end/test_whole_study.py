"""The study of `lung-ct` at twenty sites, three seeds and every method: side by side, and killed wherever it hurts, it
gives the table of a run that went through in one go. Takes an hour or more; data come from LETHE_HOME, or are fetched.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from commands import BIN, CHECKOUT, Command, Home, Traces, untimed, wait_for

from flower_apps.places import resolve_home

pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.timeout(4 * 3600)]
STUDY = ("lethe-client-small", "lethe-class-small")
LONG = 2 * 3600.0


class StudyHome(Home):
    """A home of its own that takes the data of the person's, and the manifest that ships."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.manifest = CHECKOUT / "experiments.yaml"
        self.path.mkdir(exist_ok=True)
        data = resolve_home() / "data"
        data.mkdir(parents=True, exist_ok=True)
        (self.path / "data").symlink_to(data)

    def study(self, *arguments: str) -> Command:
        """Start the study without its report."""
        return self.start(*STUDY, *arguments, "--no-report")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a study that nothing happened to, one group after the other."""
    home = StudyHome(tmp_path_factory.mktemp("whole"))
    with home.study("--jobs", "1", "--workers", "1") as command:
        assert command.process.wait(LONG) == 0, command.errors
    return home.out()


def check_same(found: Path, whole: Path) -> None:
    """Check that no row differs, the order apart in which groups side by side came to write theirs."""
    tables = [untimed(folder / "results.csv") for folder in (found, whole)]
    left, right = (table.sort_values(list(table.columns), ignore_index=True) for table in tables)
    pd.testing.assert_frame_equal(left, right)


def test_side_by_side_gives_the_same_table(tmp_path: Path, whole: Path) -> None:
    home = StudyHome(tmp_path)
    with home.study("--jobs", "2", "--workers", "1") as command:
        assert command.process.wait(LONG) == 0, command.errors
    check_same(home.out(), whole)
    results = pd.read_csv(whole / "results.csv")
    assert set(results["train_seed"]) == {0, 1, 2}
    assert results[["request", "method"]].drop_duplicates().groupby("request").size().min() >= 20


@pytest.fixture
def evaluator(tmp_path: Path) -> Iterator[str]:
    """An evaluator's server; its address."""
    served = [str(BIN / "lethe"), "evaluator", "serve", "--port", "0", "--home", str(tmp_path / "evaluator")]
    with Command(served, {}, tmp_path / "served", tmp_path) as server:
        wait_for(lambda: "http://" in server.output, 60, server)
        address = next(word for word in server.output.split() if word.startswith("http://"))
        yield address.rstrip("/.,")


def test_killed_in_every_place_it_gives_the_same_table(tmp_path: Path, whole: Path, evaluator: str) -> None:
    home = StudyHome(tmp_path)

    def heard(label: str) -> Callable[[], bool]:
        return lambda: any(str(event.get("label", "")).startswith(label) for event in home.events())

    def writing() -> bool:
        return any((home.path / "stages" / ".work").glob("train-*/history/.round-*"))

    def posted() -> bool:
        with urllib.request.urlopen(f"{evaluator}/api/runs") as reply:
            return any(run["models"] for run in json.load(reply))

    places = {"training": heard("original"), "a file write": writing, "recovery": heard("recover")}
    places |= {"scoring": heard("score"), "a post": posted}
    command = home.study("--jobs", "1", "--workers", "1", "--evaluator", evaluator)
    for number, (place, reached) in enumerate(places.items()):
        with command:
            _wait_closely(reached, command, place)
            traces = Traces(command.process.pid)
            command.process.kill()
            command.process.wait()
            wait_for(lambda traces=traces: not traces.left(), 20, traces)
        asked = [str(BIN / "lethe"), "resume", str(home.out()), "--home", str(home.path)]
        command = Command(asked, {}, tmp_path / f"resumed-{number}", tmp_path)
    with command:
        assert command.process.wait(LONG) == 0, command.errors
    check_same(home.out(), whole)


def _wait_closely(reached: Callable[[], bool], command: Command, place: str) -> None:
    """Wait with small steps: a file is written in a tenth of a second."""
    deadline = time.monotonic() + LONG
    while not reached():
        assert command.process.poll() is None, f"it ended before {place}: {command}"
        assert time.monotonic() < deadline, f"waited for {place}: {command}"
        time.sleep(0.005)
