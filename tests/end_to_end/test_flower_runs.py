"""Facts about whole runs through Flower and Ray: the same bits however they are run, killed or submitted."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from pathlib import Path

import pandas as pd
import pytest
from commands import (
    BIN,
    CHECKOUT,
    Command,
    Home,
    Traces,
    flower_ended,
    hitch,
    replies,
    stage_weights,
    untimed,
    wait_for,
)
from in_process import run_group

from flower_apps.manifest import load_manifest
from strategies.history import History

pytestmark = pytest.mark.flower
MODELS = 7
"""Stages with weights in a cell of one method: original; gold, control and method, each before and after recovery."""


def in_process(home: Home, experiment: str) -> dict[str, str]:
    """Return the weights of every stage of an experiment that was run without Flower's transport."""
    (group,) = load_manifest(home.manifest).groups([experiment])
    run_group(group, home.path, home.out())
    return home.weights()


def check_part(found: dict[str, str], whole: dict[str, str]) -> None:
    """Check that a cell of one method has the stages, and the bits, that it shares with one of more methods."""
    assert sum(map(bool, found.values())) == MODELS
    assert found.items() <= whole.items()


def check_rows(found: pd.DataFrame, whole: pd.DataFrame) -> None:
    """Check that all values but the experiment's name are those of the same methods in `whole`."""
    shared = whole[whole["method"].isin(set(found["method"]))].reset_index(drop=True)
    pd.testing.assert_frame_equal(found.drop(columns="experiment"), shared.drop(columns="experiment"))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return in_process(Home(tmp_path_factory.mktemp("in-process")), "small")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Home]:
    """The small cell in two homes, side by side: with one worker, and with two workers on two logical GPUs."""
    one, two = Home(tmp_path_factory.mktemp("one")), Home(tmp_path_factory.mktemp("two"))
    gpus = ("--gpus", "2", "--set", "device=cpu")
    with one.start("small", "--workers", "1") as left, two.start("small", "--workers", "2", *gpus) as right:
        assert (left.wait(), right.wait()) == (0, 0), f"{left} {right}"
    return one, two


@pytest.fixture(scope="module")
def one(both: tuple[Home, Home]) -> Home:
    return both[0]


@pytest.fixture(scope="module")
def two(both: tuple[Home, Home]) -> Home:
    return both[1]


def test_one_worker_gives_the_bits_of_a_run_without_transport(one: Home, expected: dict[str, str]) -> None:
    assert sum(map(bool, expected.values())) == MODELS + 2 * 2
    assert one.weights() == expected


def test_two_workers_on_two_logical_gpus_give_the_same_bits(two: Home, expected: dict[str, str]) -> None:
    assert two.weights() == expected
    (history,) = two.history()
    rounds = pd.read_parquet(history / "rounds.parquet")
    assert len(rounds) == 3 * 3
    assert set(rounds["gpu"]) == {"0", "1"}


def test_a_second_run_starts_no_flower_and_prints_the_same_table(one: Home) -> None:
    shutil.rmtree(one.path / "flower", ignore_errors=True)
    command = one.run("small", "--workers", "1", out="second")
    assert command.process.returncode == 0, command.errors
    assert not (one.path / "flower").exists()
    assert not (one.out("second") / "events").exists()
    assert all(name in command.output for name in ("original", "retrain", "fine-tuning", "ga", "federaser", "fedquit"))
    pd.testing.assert_frame_equal(one.results("second"), one.results())


@pytest.mark.parametrize("experiment", ["lean", pytest.param("batchnorm", marks=pytest.mark.slow)])
def test_a_run_killed_in_a_round_leaves_nothing_and_goes_on_to_the_same_bits(
    tmp_path: Path, experiment: str, request: pytest.FixtureRequest
) -> None:
    wanted = (
        request.getfixturevalue("expected")
        if experiment == "lean"
        else in_process(Home(tmp_path / "in-process"), experiment)
    )
    home = Home(tmp_path)
    with home.start(experiment, "--workers", "2", env=hitch(tmp_path / "hitch", "stall")) as command:
        wait_for(lambda: bool(replies(home.events(), "original", 2)), 240, command)
        traces = Traces(command.process.pid)
        assert len(traces.processes) > 5 and traces.ports and traces.folders
        command.process.kill()
        command.process.wait()
        wait_for(lambda: not traces.left(), 10, traces)
    before = home.events()
    assert len(replies(before, "original", 1)) == 3 and 0 < len(replies(before, "original", 2)) < 3
    assert not home.weights()
    told = json.loads(home.ask("status", "--json").output)
    assert (told["state"], told["groups"][0]["stage"][0]["round"]) == ("interrupted", 2)
    command = home.ask("resume")
    assert (home.record()["status"], home.record()["exit_code"]) == ("completed", 0)
    assert command.process.returncode == 0, command.errors
    check_part(home.weights(), wanted)
    after = home.events()[len(before) :]
    assert not replies(after, "original", 1), "round 1 was computed again"
    assert len(replies(after, "original", 2)) == len(replies(after, "original", 3)) == 3


def test_two_commands_side_by_side_in_one_home_compute_everything_once(tmp_path: Path, one: Home) -> None:
    home = Home(tmp_path)
    with home.start("lean", "--workers", "1", out="left") as left, home.start("lean", out="right") as right:
        assert (left.wait(), right.wait()) == (0, 0), f"{left} {right}"
    check_part(home.weights(), one.weights())
    pd.testing.assert_frame_equal(home.results("left"), home.results("right"))
    check_rows(home.results("left"), one.results())
    both = replies(home.events("left")) + replies(home.events("right"))
    assert len(both) == len(set(both)) and set(both) <= set(replies(one.events()))


def test_a_site_that_raises_ends_the_run_by_name_or_is_left_out_and_recorded(tmp_path: Path) -> None:
    home = Home(tmp_path)
    command = home.run("stops", "goes-on", "--workers", "1", "--jobs", "2", env=hitch(tmp_path / "hitch", "raise"))
    assert command.process.returncode == 1
    said = [line for line in command.errors.splitlines() if line.startswith("lethe:")]
    assert len(said) == 1, command.errors
    assert "site-1 raised in round 2 of original: ValueError: the scanner is broken; log: " in said[0]
    assert "hitch.py" in Path(said[0].partition("; log: ")[2]).read_text()
    assert set(home.results()["experiment"]) == {"goes-on"}
    (folder,) = home.history()
    history = History(folder)
    failed = history.record(2).sites["site-1"]
    assert (failed.status, failed.reason) == ("failed", "ValueError: the scanner is broken")
    assert failed.traceback.startswith("Traceback") and "hitch.py" in failed.traceback
    assert history.record(2).participants == ("site-0", "site-2")
    assert history.record(3).participants == ("site-0", "site-1", "site-2")


def flwr_run(folder: Path, name: str, env: dict[str, str], nodes: int) -> Command:
    """Start what the README says, with the lean cell's settings."""
    (group,) = load_manifest(Home(folder).manifest).groups(["lean"])
    settings = " ".join(f"{key}={json.dumps(value)}" for key, value in group.to_run_config().items())
    federation = f"num-supernodes={nodes} client-resources-num-cpus=1"
    arguments = ["run", ".", "--stream", "--federation-config", federation, "--run-config", settings]
    return Command([str(BIN / "flwr"), *arguments], env, folder / name, CHECKOUT)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_flwr_run_writes_the_same_results_and_names_a_wrong_number_of_nodes(tmp_path: Path, one: Home) -> None:
    ray = Path(tempfile.mkdtemp(prefix="lethe-", dir="/tmp"))
    env = {
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_HOME": str(tmp_path / "flower"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": free_port(),
        "FLWR_LOCAL_CONTROL_API_PORT": free_port(),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "LETHE_HOME": str(tmp_path / "home"),
        "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
        "RAY_TMPDIR": str(ray),
    }
    try:
        with flower_ended(tmp_path / "flower"), flwr_run(tmp_path, "refused", env, nodes=4) as refused:
            wait_for(lambda: "started run" in refused.output, 60, refused)
            with flwr_run(tmp_path, "done", env, nodes=3) as done:
                done.wait()
            refused.wait()
    finally:
        shutil.rmtree(ray, ignore_errors=True)
    log = " ".join(refused.output.split())
    assert "over 3 sites, but 4 nodes" in log and "--federation-config 'num-supernodes=3'" in log
    results = list((tmp_path / "home" / "runs").glob("*/results.csv"))
    assert len(results) == 1, str(done)
    check_part(stage_weights(tmp_path / "home"), one.weights())
    check_rows(untimed(results[0]), one.results())
