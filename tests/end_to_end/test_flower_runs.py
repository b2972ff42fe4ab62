"""Facts about whole runs through Flower and Ray: the same bits however they are run, killed or submitted."""

from __future__ import annotations

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


def in_process(home: Home, experiment: str) -> dict[str, str]:
    """Return the weights of every stage of an experiment that was run without Flower's transport."""
    (group,) = load_manifest(home.manifest).groups([experiment])
    run_group(group, home.path, home.out())
    return home.weights()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return in_process(Home(tmp_path_factory.mktemp("in-process")), "small")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """The small cell, run with one worker."""
    home = Home(tmp_path_factory.mktemp("one"))
    command = home.run("small", "--workers", "1")
    assert command.process.returncode == 0, command.errors
    return home


def test_one_worker_gives_the_bits_of_a_run_without_transport(one: Home, expected: dict[str, str]) -> None:
    assert sum(map(bool, expected.values())) >= 11
    assert one.weights() == expected


def test_two_workers_on_two_logical_gpus_give_the_same_bits(tmp_path: Path, expected: dict[str, str]) -> None:
    home = Home(tmp_path)
    command = home.run("small", "--workers", "2", "--gpus", "2", "--set", "device=cpu")
    assert command.process.returncode == 0, command.errors
    assert home.weights() == expected
    (history,) = home.history()
    rounds = pd.read_parquet(history / "rounds.parquet")
    assert set(rounds["gpu"]) == {"0", "1"}
    assert len(rounds) == 3 * 3


def test_a_second_run_starts_no_flower_and_prints_the_same_table(one: Home) -> None:
    shutil.rmtree(one.path / "flower", ignore_errors=True)
    command = one.run("small", "--workers", "1", out="second")
    assert command.process.returncode == 0, command.errors
    assert not (one.path / "flower").exists()
    assert not (one.out("second") / "events").exists()
    assert all(name in command.output for name in ("original", "retrain", "fine-tuning", "ga", "federaser", "fedquit"))
    pd.testing.assert_frame_equal(one.results("second"), one.results())


@pytest.mark.parametrize("experiment", ["small", pytest.param("batchnorm", marks=pytest.mark.slow)])
def test_a_run_killed_in_a_round_leaves_nothing_and_goes_on_to_the_same_bits(
    tmp_path: Path, experiment: str, request: pytest.FixtureRequest
) -> None:
    wanted = (
        request.getfixturevalue("expected")
        if experiment == "small"
        else in_process(Home(tmp_path / "in-process"), experiment)
    )
    home = Home(tmp_path)
    killed = home.start(experiment, "--workers", "2", out="run", env=hitch(tmp_path / "hitch", "stall"))
    try:
        wait_for(lambda: bool(replies(home.events(), "original", 2)), 240, f"a reply of round 2 {killed.errors}")
        traces = Traces(killed.process.pid)
        assert len(traces.processes) > 5 and traces.ports and traces.folders
        killed.process.kill()
        killed.process.wait()
        wait_for(lambda: not traces.left(), 10, "something is left")
    except AssertionError as error:
        raise AssertionError(f"{error} {traces.left() if 'traces' in locals() else killed.errors}") from None
    finally:
        killed.end()
    before = home.events()
    assert len(replies(before, "original", 1)) == 3 and 0 < len(replies(before, "original", 2)) < 3
    assert not home.weights()
    command = home.run(experiment, "--workers", "2", out="run")
    assert command.process.returncode == 0, command.errors
    assert home.weights() == wanted
    after = home.events()[len(before) :]
    assert not replies(after, "original", 1), "round 1 was computed again"
    assert len(replies(after, "original", 2)) == len(replies(after, "original", 3)) == 3


def test_two_commands_side_by_side_in_one_home_compute_everything_once(tmp_path: Path, one: Home) -> None:
    home = Home(tmp_path)
    commands = [home.start("small", "--workers", "1", out=name) for name in ("left", "right")]
    try:
        codes = [command.wait() for command in commands]
    finally:
        for command in commands:
            command.end()
    assert codes == [0, 0], [command.errors for command in commands]
    assert home.weights() == one.weights()
    pd.testing.assert_frame_equal(home.results("left"), home.results("right"))
    pd.testing.assert_frame_equal(home.results("left"), one.results())
    both = replies(home.events("left")) + replies(home.events("right"))
    assert sorted(both) == sorted(replies(one.events()))


def test_a_site_that_raises_ends_the_run_by_name_or_is_left_out_and_recorded(tmp_path: Path) -> None:
    home = Home(tmp_path)
    command = home.run("stops", "goes-on", "--workers", "1", env=hitch(tmp_path / "hitch", "raise"))
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
    """Run what the README says, with the small cell's settings."""
    (group,) = load_manifest(Home(folder).manifest).groups(["small"])
    settings = " ".join(
        f"{key}={str(value).lower() if isinstance(value, bool) else repr(value)}"
        for key, value in group.to_run_config().items()
        if key not in ("home", "out", "fresh", "jobs", "workers")
    ).replace("'", '"')
    arguments = [str(BIN / "flwr"), "run", ".", "--stream"]
    federation = f"num-supernodes={nodes} client-resources-num-cpus=1"
    command = Command(
        [*arguments, "--federation-config", federation, "--run-config", settings], env, folder / name, CHECKOUT
    )
    command.wait()
    return command


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
        with flower_ended(tmp_path / "flower"):
            refused = flwr_run(tmp_path, "refused", env, nodes=4)
            log = " ".join(refused.output.split())
            assert "over 3 sites, but 4 nodes" in log and "--federation-config 'num-supernodes=3'" in log, log
            done = flwr_run(tmp_path, "done", env, nodes=3)
            results = list((tmp_path / "home" / "runs").glob("*/results.csv"))
            assert len(results) == 1, done.output + done.errors
    finally:
        shutil.rmtree(ray, ignore_errors=True)
    assert stage_weights(tmp_path / "home") == one.weights()
    pd.testing.assert_frame_equal(untimed(results[0]), one.results())
