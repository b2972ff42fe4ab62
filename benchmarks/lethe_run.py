"""`lethe run` as a person starts it, followed through its event file and ended after the `train` stage."""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.memory import MemoryWatch, Peak
from benchmarks.plain import middle
from benchmarks.work import Mode, Work
from flower_apps.watch import EventTail
from partitions.errors import RunFailed

Event = dict[str, Any]

POLL = 0.05
LIMIT = 1800.0
"""Seconds that a run may take."""
PATIENCE = 15.0
"""Seconds between Ctrl-C and TERM, and between TERM and KILL."""


@dataclass(frozen=True)
class StageTimes:
    """What the event file tells of a training, in seconds.

    Attributes
    ----------
    to_first_message : float
        From the command to the first round's start, when its messages leave.
    to_first_reply : float
        From the command to the first site's answer.
    stage : float
        From the start of the stage to its end; Ray is running and the sites are open by then.
    rounds : tuple of float
        Each round, recording included. Round 1 is longer: each worker warms up.
    training : tuple of float
        What the sites say that their local training took, summed over the sites of each round.
    recording : tuple of float
        The part of each round that writes the history: a round's record counts its seconds up to there.
    """

    to_first_message: float
    to_first_reply: float
    stage: float
    rounds: tuple[float, ...]
    training: tuple[float, ...]
    recording: tuple[float, ...]

    @property
    def round(self) -> float:
        """Seconds a round, the median."""
        return middle(self.rounds)

    @property
    def recording_share(self) -> float:
        """Part of the rounds' time that recording takes."""
        return sum(self.recording) / sum(self.rounds)


@dataclass(frozen=True)
class LetheRun:
    """One run: its times and, if watched, its memory."""

    mode: str
    sites: int
    times: StageTimes
    memory: Peak | None = None


def run_lethe(work: Work, mode: Mode, *, watch_memory: bool = False) -> LetheRun:
    """Run the work with Lethe in a process of its own, up to the end of the `train` stage.

    Raises
    ------
    RunFailed
        When the command ends before, naming its output.
    """
    folder = _new_folder(work.folder)
    home = folder / "home"
    home.mkdir()
    (work.home / "data").mkdir(parents=True, exist_ok=True)
    (home / "data").symlink_to(work.home / "data")
    manifest, log = folder / "experiments.yaml", folder / "output.txt"
    manifest.write_text(yaml.safe_dump({"benchmark": work.settings(mode)}))
    arguments = ["run", "benchmark", "--workers", str(work.workers), "--gpus", "0"]
    arguments += ["--manifest", str(manifest), "--home", str(home), "--out", str(folder / "run")]
    started = time.time()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*_command(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    with contextlib.ExitStack() as stack:
        stack.callback(_end, process)
        memory = stack.enter_context(MemoryWatch(process.pid)) if watch_memory else None
        events = list(_until_trained(process, folder / "run" / "events", log))
    return LetheRun(mode.label, work.sites, read_times(events, started), memory.peak if memory else None)


def read_times(events: Sequence[Event], started: float) -> StageTimes:
    """Return the times of the `train` stage among `events`.

    Parameters
    ----------
    events : sequence of dict
        As in strategies/events.py.
    started : float
        When the command was given, Unix seconds.
    """
    own = [event for event in events if event.get("stage") == "train"]
    by_kind = {kind: [e for e in own if e["kind"] == kind] for kind in {str(e["kind"]) for e in own}}
    begins, ends = by_kind["round-started"], by_kind["round-finished"]
    whole = tuple(end["time"] - begin["time"] for begin, end in zip(begins, ends, strict=True))
    return StageTimes(
        to_first_message=begins[0]["time"] - started,
        to_first_reply=by_kind["reply"][0]["time"] - started,
        stage=by_kind["stage-finished"][0]["time"] - by_kind["stage-started"][0]["time"],
        rounds=whole,
        training=tuple(
            sum(reply["seconds"] for reply in by_kind["reply"] if reply["round"] == end["round"]) for end in ends
        ),
        recording=tuple(seconds - end["seconds"] for seconds, end in zip(whole, ends, strict=True)),
    )


def _until_trained(process: subprocess.Popen[bytes], folder: Path, log: Path) -> Iterator[Event]:
    """Yield events up to the first one after the `train` stage; its stage is then in the cache."""
    tails: dict[Path, EventTail] = {}
    deadline = time.monotonic() + LIMIT
    trained = False
    while True:
        ended = process.poll() is not None
        for path in folder.glob("*.jsonl"):
            for event in tails.setdefault(path, _FromStart(path)).new():
                if trained:
                    return
                yield event
                trained = event["kind"] == "stage-finished" and event.get("stage") == "train"
        if ended or time.monotonic() > deadline:
            why = f"ended with code {process.returncode}" if ended else f"did not train within {LIMIT:.0f} s"
            raise RunFailed(f"`lethe run` {why}: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(POLL)


class _FromStart(EventTail):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._offset = 0


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)


def _command() -> list[str]:
    installed = Path(sys.executable).with_name("lethe")
    return [str(installed)] if installed.exists() else [sys.executable, "-m", "flower_apps.cli"]


def _new_folder(parent: Path) -> Path:
    folder = next(path for n in itertools.count(1) if not (path := parent / f"lethe-{n}").exists())
    folder.mkdir(parents=True)
    return folder
