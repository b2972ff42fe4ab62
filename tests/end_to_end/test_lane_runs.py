"""Facts about several groups in one Flower run, and about GPUs that are full, through Flower and Ray."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from commands import Home, hitch
from in_process import run_group

from flower_apps.manifest import load_manifest

pytestmark = [pytest.mark.flower, pytest.mark.slow]

MORE = """
class: {extends: lean, requests: [class:5]}
quit: {extends: lean, methods: [fedquit]}
"""
BROKEN = '''
"""A third-party distribution whose presence makes gradient ascent fail."""

from clients import ga, ops


def broken(site, call):
    raise ValueError("nothing ascends here")


object.__setattr__(next(op for op in ga.OPS if op.name == "ascend"), "run", broken)
OPERATION = ops.Op("hitch", "query", ops.describe)
'''
FULL = '''
"""A third-party distribution whose presence makes every GPU too small for more than HITCH sites that train at once."""

import os
import time
from pathlib import Path

import torch

from clients import ops

ROOM = Path(__file__).parent / "at-work"
ROOM.mkdir(exist_ok=True)


def alive(path):
    return Path("/proc", path.name.split("-")[1]).exists()


def hitched(train):
    def run(site, call):
        gpu = os.environ["CUDA_VISIBLE_DEVICES"]
        mine = ROOM / f"{gpu}-{os.getpid()}"
        mine.touch()
        try:
            time.sleep(0.5)
            if sum(map(alive, ROOM.glob(f"{gpu}-*"))) > int(os.environ["HITCH"]):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
            return train(site, call)
        finally:
            mine.unlink()

    return run


for op in ops.OPS:
    if op.name == "train":
        object.__setattr__(op, "run", hitched(op.run))
OPERATION = ops.Op("hitch", "query", ops.describe)
'''


def home_of(folder: Path) -> Home:
    home = Home(folder)
    home.manifest.write_text(home.manifest.read_text() + MORE)
    return home


def in_process(folder: Path, *experiments: str) -> dict[str, str]:
    """Return the weights of every stage of experiments that were run without Flower's transport."""
    home = home_of(folder)
    for group in load_manifest(home.manifest).groups(experiments):
        run_group(group, home.path, home.out(group.name))
    return home.weights()


def lanes(home: Home) -> list[list[dict]]:
    files = sorted((home.out() / "lanes").glob("*/events.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def test_groups_of_one_original_are_one_flower_run_whose_failures_are_apart(tmp_path: Path) -> None:
    home = home_of(tmp_path / "run")
    command = home.run("lean", "quit", "class", "--workers", "1", env=hitch(tmp_path / "hitch", "", BROKEN))
    assert command.process.returncode == 1
    said = [line for line in command.errors.splitlines() if line.startswith("lethe:")]
    assert len(said) == 2 and all("nothing ascends here" in line for line in said), command.errors
    (lane,) = lanes(home)
    ends = [event["kind"] for event in lane if event["kind"] in ("group-finished", "group-failed")]
    assert sorted(ends) == ["group-failed", "group-failed", "group-finished"]
    assert len(list((home.out() / "events").glob("*.jsonl"))) == 3
    results = home.results()
    assert set(results[results["method"] == "fedquit"]["experiment"]) == {"quit"}
    expected = in_process(tmp_path / "alone", "quit")
    assert expected.items() <= home.weights().items()


def test_a_full_gpu_halves_the_sites_at_once_and_the_results_are_the_same(tmp_path: Path) -> None:
    home = home_of(tmp_path / "run")
    arguments = ("--workers", "2", "--gpus", "1", "--set", "timeout=600")
    command = home.run("lean", *arguments, env=hitch(tmp_path / "hitch", "1", FULL))
    assert command.process.returncode == 0, command.errors
    notes = [line for line in command.errors.splitlines() if "submitted again with 1 at once" in line]
    assert len(notes) == 1 and "OutOfMemoryError: CUDA out of memory" in notes[0]
    assert "batch-size 16, 2 sites at once on a GPU" in notes[0] and "site-" in notes[0]
    assert home.weights() == in_process(tmp_path / "alone", "lean")


def test_jobs_with_a_gpu_each_see_their_own(tmp_path: Path) -> None:
    home = home_of(tmp_path / "run")
    command = home.run("lean", "--jobs", "2", "--gpus", "2", "--workers", "1", "--set", "train-seed=[0, 1]")
    assert command.process.returncode == 0, command.errors
    used = [set(pd.read_parquet(history / "rounds.parquet")["gpu"]) for history in home.history()]
    assert sorted(used, key=sorted) == [{"0"}, {"1"}]
