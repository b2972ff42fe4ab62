"""Facts about a run on a Ray cluster that is there already: two nodes of local processes with other homes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from commands import BIN, Home, wait_for
from in_process import run_group

from flower_apps.manifest import load_manifest

pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.timeout(1200)]
ACTOR = "ray::ClientAppActor"


class RayNode:
    """One node: `ray start` in the foreground, with a home, temporary folder and working directory of its own."""

    def __init__(self, folder: Path, arguments: list[str], first_port: int, before: tuple[str, ...] = ()) -> None:
        self.folder = folder
        for name in ("home", "tmp", "cwd"):
            (folder / name).mkdir(parents=True)
        env = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "LETHE_", "FLWR_"))}
        env |= {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "RAY_USAGE_STATS_ENABLED": "0"}
        ports = [f"--min-worker-port={first_port}", f"--max-worker-port={first_port + 200}"]
        command = [*before, str(BIN / "ray"), "start", *arguments, "--num-cpus=1", *ports, "--block"]
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                command, env=env, cwd=folder / "cwd", stdout=log, stderr=log, start_new_session=True
            )

    def actors(self) -> int:
        """Return the workers of Flower that are on this node now."""
        found = 0
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    found += ACTOR in " ".join(child.cmdline())
        return found

    def end(self) -> None:
        """End the node and what it started, by process id; nothing of another cluster."""
        with contextlib.suppress(psutil.Error):
            family = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
            self.process.send_signal(signal.SIGTERM)
            for process in psutil.wait_procs(family, timeout=15)[1]:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        self.process.wait()


@contextlib.contextmanager
def cluster(folder: Path, before: tuple[str, ...] = ()) -> Iterator[tuple[str, RayNode, RayNode]]:
    """Start a head and a second node, whose command has `before` in front; yields the address and both."""
    session = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    port, nodes = free_port(), []
    try:
        head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={session}"]
        nodes.append(RayNode(folder / "head", [*head, f"--ray-client-server-port={free_port(port + 1)}"], 24000))
        wait_for(lambda: listens(port), 120, nodes[0].folder)
        nodes.append(RayNode(folder / "second", [f"--address=127.0.0.1:{port}"], 25000, before))
        wait_for(lambda: "Ray runtime started" in (nodes[1].folder / "log").read_text(), 120, nodes[1].folder)
        yield f"127.0.0.1:{port}", nodes[0], nodes[1]
    finally:
        for node in reversed(nodes):
            node.end()
        shutil.rmtree(session, ignore_errors=True)


def free_port(first: int = 30100) -> int:
    """Return a port from `first` on that is free; all are outside the range that Ray gives its workers by default."""
    for port in range(first, 30900):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


def listens(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


def test_a_run_on_two_nodes_uses_both_and_gives_the_bits_of_one_machine(tmp_path: Path) -> None:
    home, alone = Home(tmp_path / "run"), Home(tmp_path / "alone")
    with cluster(tmp_path) as (address, head, second):
        seen: set[str] = set()

        def look() -> bool:
            seen.update(name for name, node in (("head", head), ("second", second)) if node.actors())
            return command.process.poll() is not None or len(seen) == 2

        env = {"RAY_ADDRESS": address}
        arguments = ("lean", "--workers", "2", "--jobs", "2", "--set", "timeout=600")
        with home.start(*arguments, env=env) as command:
            wait_for(look, 900, command)
            assert command.process.wait(900) == 0, command.errors
        assert seen == {"head", "second"}
        assert "one job at a time on a Ray cluster" in command.errors
        assert head.process.poll() is None and second.process.poll() is None, "the cluster is not ours to end"
        wait_for(lambda: head.actors() + second.actors() == 0, 30, command)
    (group,) = load_manifest(alone.manifest).groups(["lean"])
    run_group(group, alone.path, alone.out())
    assert home.weights() == alone.weights()


def test_a_node_that_lacks_the_home_is_refused_before_anything_is_submitted(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not give a process a file system of its own")
    home = Home(tmp_path / "run")
    home.path.mkdir()
    hidden = f"mount -t tmpfs none '{home.path}' && exec \"$@\""
    with cluster(tmp_path, ("unshare", "-m", "sh", "-c", hidden, "sh")) as (address, _, _):
        command = home.run("lean", "--workers", "2", env={"RAY_ADDRESS": address})
    assert command.process.returncode == 1
    said = command.errors.strip().splitlines()[-1]
    assert said.startswith("lethe: node ") and "does not see the code" in said and f"share {home.path}" in said
    assert not (home.out() / "lanes").exists()
