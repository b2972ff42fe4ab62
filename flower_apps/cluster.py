"""A Ray cluster that is there already, named by RAY_ADDRESS: what it has, whether its nodes fit, what it is asked for.

Ray is never imported here (it takes seconds, and starts threads): `flower_apps.cluster_probe` asks in a process of its
own. Nothing of the cluster is started or ended by Lethe.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flower_apps import schedule
from flower_apps.control import Scalar
from flower_apps.settings import GroupSettings
from partitions.errors import BadInput, RunFailed

PROBE_LIMIT = 180.0
"""Seconds that the probe of all nodes may take."""
CONNECT_LIMIT = 10.0
"""Seconds that its head may take to take a connection."""
DISK_NEEDED = 2e9
"""Bytes free below LETHE_HOME under which a node is refused."""
VERSIONS = ("python", "torch", "numpy", "flwr", "ray", "lightning-fabric")
"""What must be equal on every node: another version gives other bits, or none."""


@dataclass(frozen=True)
class Node:
    """One node of a cluster.

    Attributes
    ----------
    name : str
        Host or address, as Ray has it, with the node's id where several share it.
    cpus, gpus : float
        What it has in all.
    found : mapping
        What the probe found there, see `flower_apps.cluster_probe.look`; ``error`` where it could not look.
    """

    name: str
    cpus: float
    gpus: float
    found: Mapping[str, Any]


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster.

    Attributes
    ----------
    address : str
        ``host:port`` of its head.
    nodes : tuple of Node
        Those that are alive.
    free_cpus : float
        CPUs that nobody has taken.
    """

    address: str
    nodes: tuple[Node, ...]
    free_cpus: float

    @property
    def cpus(self) -> float:
        """Return the CPUs of all nodes together."""
        return sum(node.cpus for node in self.nodes)

    @property
    def gpus(self) -> float:
        """Return the GPUs of all nodes together."""
        return sum(node.gpus for node in self.nodes)

    def in_words(self) -> str:
        """Return what it has, such as ``"2 nodes, 8 CPUs, 1 GPU"``."""
        counts = ((len(self.nodes), "node"), (self.cpus, "CPU"), (self.gpus, "GPU"))
        return ", ".join(f"{count:g} {what}{'' if count == 1 else 's'}" for count, what in counts)

    def workers(self, asked: int | None, threads: int = 1) -> int:
        """Return how many sites work at once at most: as many as asked for, else as the CPUs carry."""
        return max(1, min(asked or int(self.cpus), sum(int(node.cpus // threads) for node in self.nodes)))

    def federation(
        self, group: GroupSettings, sites: int, workers: int, limit: int | None = None
    ) -> tuple[int, dict[str, Scalar]]:
        """Return how many sites are on a GPU at once, and what Flower is asked for; never an argument of ``ray.init``.

        Flower's pool takes all that a cluster has, so how many sites work at once is said by what each of them takes.

        Raises
        ------
        BadInput
            When no node has the CPUs for one site.
        """
        threads = group.threads
        if max((node.cpus for node in self.nodes), default=0) < threads:
            most = max((node.cpus for node in self.nodes), default=0)
            raise BadInput("threads", threads, f"up to {most:g}, the CPUs of the largest node of {self.address}")
        share, each = 0.0, workers
        if self.gpus and group.device not in ("cpu", "mps"):
            slot = schedule.Slot(0, tuple(range(int(self.gpus))))
            each = schedule.at_once(group, workers, slot, limit)
            share = schedule.gpu_part(each)
        elif limit is not None:
            workers = each = min(workers, limit)
        possible = [cpus for cpus in range(threads, int(self.cpus) + 1) if self._pool(cpus, share)] or [threads]
        # a pool has at least one worker on each node that is large enough: the last is the smallest there is
        cpus = next((cpus for cpus in possible if self._pool(cpus, share) <= workers), possible[-1])
        asked: dict[str, Scalar] = {"num-supernodes": sites, "client-resources-num-cpus": cpus}
        return each, asked | ({"client-resources-num-gpus": share} if share else {})

    def sites_at_once(self, asked: Mapping[str, Scalar]) -> int:
        """Return how many sites really work at once with what `federation` asks for, were there sites enough."""
        return self._pool(int(asked["client-resources-num-cpus"]), float(asked.get("client-resources-num-gpus", 0.0)))

    def _pool(self, cpus: int, share: float) -> int:
        """Return how many workers Flower starts when each takes so much, as `pool_size_from_resources` counts."""
        by_cpus = [int(node.cpus / cpus) for node in self.nodes]
        if not share:
            return sum(by_cpus)
        return sum(min(count, int(node.gpus / share)) for count, node in zip(by_cpus, self.nodes, strict=True))


def ray_address() -> str:
    """Return RAY_ADDRESS where it names a cluster; empty when Ray is to be started here.

    Raises
    ------
    BadInput
        For an address of a Ray client, whose driver runs elsewhere.
    """
    address = os.environ.get("RAY_ADDRESS", "").strip()
    if address.startswith("ray://"):
        allowed = "host:port of the cluster's head (6379 by default), or auto"
        raise BadInput("RAY_ADDRESS", address, allowed, "ray:// has no node of ours: start lethe on one")
    return "" if address == "local" else address


def look(address: str, paths: Mapping[str, Any] | None = None, limit: float = PROBE_LIMIT) -> Cluster:
    """Ask a cluster what it has and, with `paths`, every node what is there; changes nothing.

    Raises
    ------
    RunFailed
        When the cluster does not answer, in one line.
    """
    _check_listens(address)
    command = [sys.executable, "-m", "flower_apps.cluster_probe", json.dumps(paths or {})]
    env = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": os.pathsep.join(filter(None, _path()))}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"the Ray cluster at {address} did not answer within {limit:.0f} s; see `ray status`") from None
    answer = next((line for line in reversed(done.stdout.splitlines()) if line.startswith("{")), "")
    if done.returncode or not answer:
        said = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), f"code {done.returncode}")
        raise RunFailed(f"the Ray cluster at {address} cannot be used from here: {said.strip()[:300]}")
    read = json.loads(answer)
    nodes = tuple(Node(one["name"], one["cpus"], one["gpus"], one["found"]) for one in read["nodes"])
    return Cluster(str(read["address"] or address), nodes, float(read["free_cpus"]))


def _check_listens(address: str) -> None:
    """Refuse an address where nobody listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdigit():
        raise BadInput("RAY_ADDRESS", address, "host:port of the cluster's head, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_LIMIT).close()
    except (OSError, OverflowError) as error:
        raise RunFailed(
            f"no Ray cluster answers at RAY_ADDRESS={address} ({error}); start it, or unset RAY_ADDRESS"
        ) from None


def _path() -> list[str]:
    root = str(Path(__file__).resolve().parent.parent)
    return [root, os.environ.get("PYTHONPATH", "")]


def join_cluster(address: str, groups: Sequence[GroupSettings], home: Path) -> Cluster:
    """Probe every node of a cluster for the groups of one command; see `join`."""
    from flower_apps.control import build_app
    from flower_apps.launcher import rooms_root

    prepared = {prepared_folder(group.dataset, home, group.cap) for group in groups}
    return join(address, home, Path(groups[0].out), sorted(prepared), build_app(rooms_root()))


def prepared_folder(dataset: str, home: Path, cap: int) -> Path:
    """Return where the prepared records of a data set lie, which are there already."""
    from partitions.catalogue import DATASETS

    inputs = DATASETS.get(dataset).load(home, cap).inputs
    return Path(str(getattr(inputs, "filename", home / "data" / dataset / "inputs.npy"))).parent


def join(address: str, home: Path, out: Path, prepared: Sequence[Path], app: bytes) -> Cluster:
    """Probe every node of a cluster before anything is submitted, and return the cluster.

    Parameters
    ----------
    address : str
        RAY_ADDRESS.
    home, out : Path
        LETHE_HOME and the run folder, absolute.
    prepared : sequence of Path
        The prepared data sets that sites will read.
    app : bytes
        The app bundle; nodes must see what this process writes of it.

    Raises
    ------
    RunFailed
        Naming the first node that does not fit, what differs there and the remedy.
    BadInput
        When others have taken CPUs of the cluster.
    """
    folder = home / "flower" / f"probe-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True)
    (home / "stages").mkdir(exist_ok=True)
    code = folder / "app.fab"
    try:
        code.write_bytes(app)
        files = [str(code), *(str(path / "about.json") for path in prepared)]
        cluster = look(address, {"files": files, "write": [str(home / "stages"), str(out), str(folder)]})
        from flower_apps.cluster_probe import look as look_here

        here = look_here({"files": files, "write": []})
        for node in cluster.nodes:
            if wrong := differs(node.found, here, code=str(code), home=str(home)):
                raise RunFailed(f"node {node.name} of the Ray cluster: {wrong}")
    finally:
        for path in sorted(folder.glob("*"), reverse=True):
            path.unlink(missing_ok=True)
        folder.rmdir()
    if cluster.free_cpus < cluster.cpus:
        allowed = f"a cluster nobody else uses ({cluster.free_cpus:g} of {cluster.cpus:g} CPUs are free)"
        raise BadInput("RAY_ADDRESS", address, allowed, "Flower takes all of it: wait, or see `ray status`")
    return cluster


def differs(there: Mapping[str, Any], here: Mapping[str, Any], *, code: str, home: str) -> str:
    """Return what makes a node unfit, with the remedy, in one line; empty when it fits.

    Parameters
    ----------
    there, here : mapping
        What `flower_apps.cluster_probe.look` found on the node and in this process.
    code, home : str
        The app bundle, and LETHE_HOME.
    """
    if wrong := other_software(there, here):
        return wrong
    shared = f"share {home} with it under this very path"
    if there["files"].get(code) != here["files"][code]:
        return f"it does not see the code that this command put below {home}; {shared}"
    for path, digest in here["files"].items():
        if there["files"].get(path) != digest:
            what = "has other data in" if there["files"].get(path) else "lacks the prepared data"
            return f"it {what} {Path(path).parent}; {shared}"
    for path, problem in there["write"].items():
        if problem:
            return f"it cannot write to {path} ({problem}); {shared}, writable by the user of its Ray"
    if there["free"] < DISK_NEEDED:
        return f"{there['free'] / 1e9:.1f} GB are free below {home}, and {DISK_NEEDED / 1e9:.0f} are needed; free some"
    return ""


def other_software(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Return what a node computes with that is not what is here, with the remedy; empty when all is the same."""
    if there.get("error"):
        return str(there["error"])
    for name in VERSIONS:
        if there["versions"].get(name) != here["versions"].get(name):
            have, want = (found["versions"].get(name) or "none" for found in (there, here))
            return f"{name} is {have}, here it is {want}; install the same version on both"
    for name in sorted(set(here["plugins"]) | set(there["plugins"])):
        if there["plugins"].get(name) != here["plugins"].get(name):
            have, want = (found["plugins"].get(name) or "not there" for found in (there, here))
            return f"plug-in {name} is {have}, here it is {want}; install the same on both"
    return ""
