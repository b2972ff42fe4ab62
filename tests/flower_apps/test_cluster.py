"""Facts about a Ray cluster that is there already: what is asked of it, and which nodes are refused. No Ray here."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import pytest

from flower_apps import cluster, cluster_probe, doctor
from flower_apps.cluster import Cluster, Node, differs, join, look, ray_address
from flower_apps.settings import GroupSettings
from partitions.errors import BadInput, RunFailed

CODE, HOME = "/shared/home/flower/probe/app.fab", "/shared/home"
DATA = "/shared/home/data/digits/prepared-1/about.json"


def of(*nodes: tuple[float, float]) -> Cluster:
    made = tuple(Node(f"n{number}", cpus, gpus, {}) for number, (cpus, gpus) in enumerate(nodes))
    return Cluster("head:6379", made, sum(cpus for cpus, _ in nodes))


def group(**values) -> GroupSettings:
    return GroupSettings.parse({"dataset": "digits", **values})


@pytest.mark.parametrize(
    ("nodes", "workers", "threads", "cpus"),
    [
        ([(2, 0), (2, 0)], 2, 1, 2),
        ([(2, 0), (2, 0)], 4, 1, 1),
        ([(8, 0), (1, 0)], 3, 1, 3),  # 9 // 3 would leave out the small node as well
        ([(3, 0), (2, 0)], 2, 1, 2),
        ([(4, 0), (4, 0)], 1, 1, 4),  # one on each: fewer there cannot be
        ([(8, 0)], 8, 2, 2),
    ],
)
def test_workers_are_said_by_what_each_of_them_takes(nodes, workers, threads, cpus):
    _, asked = of(*nodes).federation(group(threads=threads), 5, workers)
    assert asked == {"num-supernodes": 5, "client-resources-num-cpus": cpus}


def test_no_argument_of_ray_init_is_ever_asked_for():
    for nodes in ([(2, 0), (2, 0)], [(4, 1), (4, 1)]):
        _, asked = of(*nodes).federation(group(), 5, 2)
        assert not [key for key in asked if key.startswith("init-args")]


def test_gpus_of_the_nodes_are_shared_out():
    each, asked = of((8, 1), (8, 1)).federation(group(), 9, 4)
    assert (each, asked["client-resources-num-gpus"]) == (2, 0.5)
    each, asked = of((8, 1), (8, 1)).federation(group(), 9, 4, limit=1)
    assert (each, asked["client-resources-num-gpus"]) == (1, 1.0)
    assert "client-resources-num-gpus" not in of((8, 1)).federation(group(device="cpu"), 9, 4)[1]


def test_a_site_larger_than_every_node_is_refused():
    with pytest.raises(BadInput, match="threads=4: allowed is up to 2"):
        of((2, 0), (2, 0)).federation(group(threads=4), 5, 2)


def test_as_many_workers_as_asked_for_or_as_the_cluster_carries():
    assert of((2, 0), (3, 0)).workers(None) == 5
    assert of((2, 0), (3, 0)).workers(3) == 3
    assert of((2, 0), (3, 0)).workers(99) == 5
    assert of((2, 0), (1, 1)).in_words() == "2 nodes, 3 CPUs, 1 GPU"


@pytest.mark.parametrize(
    ("value", "address"), [("", ""), ("local", ""), (" head:6379 ", "head:6379"), ("auto", "auto")]
)
def test_ray_address_names_a_cluster_or_none(monkeypatch, value, address):
    monkeypatch.setenv("RAY_ADDRESS", value)
    assert ray_address() == address


def test_a_ray_client_is_refused(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(BadInput, match="host:port of the cluster's head"):
        ray_address()


def test_an_address_where_nobody_listens_is_told_at_once():
    with pytest.raises(RunFailed, match=r"no Ray cluster answers at RAY_ADDRESS=127.0.0.1:1 .*unset RAY_ADDRESS"):
        look("127.0.0.1:1")
    with pytest.raises(BadInput, match="host:port"):
        look("head")


@pytest.fixture
def here():
    versions = dict.fromkeys(cluster.VERSIONS, "1.0")
    files = {CODE: "code", DATA: "data"}
    return {
        "versions": versions,
        "plugins": {"lethe.methods:x": "x 1"},
        "files": files,
        "write": {HOME: ""},
        "free": 9e9,
    }


def test_a_node_that_has_all_of_this_fits(here):
    assert differs(copy.deepcopy(here), here, code=CODE, home=HOME) == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"error": "it did not answer"}, "it did not answer"),
        ({"versions": {"torch": "0.9"}}, "torch is 0.9, here it is 1.0; install the same"),
        ({"versions": {"flwr": ""}}, "flwr is none, here"),
        ({"plugins": {"lethe.methods:x": "x 2"}}, "plug-in lethe.methods:x is x 2, here it is x 1"),
        ({"plugins": {"lethe.methods:y": "y 1"}}, "lethe.methods:y is y 1, here it is not there"),
        ({"files": {CODE: ""}}, f"does not see the code that this command put below {HOME}; share {HOME}"),
        ({"files": {DATA: ""}}, "lacks the prepared data /shared/home/data"),
        ({"files": {DATA: "z"}}, "has other data in /shared/home/data"),
        ({"write": {HOME: "Read-only file system"}}, f"cannot write to {HOME} (Read-only file system)"),
        ({"free": 1e9}, "1.0 GB are free"),
    ],
)  # fmt: skip
def test_a_node_that_differs_is_refused_with_what_and_the_remedy(here, change, said):
    there = copy.deepcopy(here)
    for key, value in change.items():
        there[key] = {**there[key], **value} if isinstance(value, dict) else value
    assert said in differs(there, here, code=CODE, home=HOME)


@pytest.fixture
def two_nodes(monkeypatch):
    """A cluster whose nodes are this machine, with what a test changes of the second."""
    change: dict = {}

    def look(address, paths=None, limit=0.0):
        found = cluster_probe.look(paths or {})
        nodes = (Node("a", 2, 0, found), Node("b", 2, 0, {**copy.deepcopy(found), **change}))
        return Cluster("head:6379", nodes, change.get("free_cpus", 4))

    monkeypatch.setattr(cluster, "look", look)
    return change


def test_joining_looks_at_every_node_and_leaves_nothing(tmp_path, two_nodes):
    prepared, out = tmp_path / "data" / "digits" / "prepared-1", tmp_path / "out"
    prepared.mkdir(parents=True)
    out.mkdir()
    (prepared / "about.json").write_text("{}")
    assert len(join("head:6379", tmp_path, out, [prepared], b"app").nodes) == 2
    assert list((tmp_path / "flower").iterdir()) == [] and list(out.iterdir()) == []
    two_nodes["error"] = "it is on fire"
    with pytest.raises(RunFailed, match="node b of the Ray cluster: it is on fire"):
        join("head:6379", tmp_path, out, [prepared], b"app")
    assert list((tmp_path / "flower").iterdir()) == []


def test_a_cluster_that_others_use_is_refused(tmp_path, two_nodes):
    two_nodes["free_cpus"] = 3
    with pytest.raises(BadInput, match="3 of 4 CPUs are free"):
        join("head:6379", tmp_path, tmp_path, [], b"app")


def test_what_the_probe_runs_on_a_node_needs_no_code_of_ours(tmp_path):
    (tmp_path / "file").write_text("x")
    code = (
        "import json, runpy, sys\n"
        f"look = runpy.run_path({cluster_probe.__file__!r})['look']\n"
        "print(json.dumps(look(json.loads(sys.argv[1]))))"
    )
    paths = {"files": [str(tmp_path / "file"), "/nowhere/file"], "write": [str(tmp_path), "/nowhere"]}
    done = subprocess.run([sys.executable, "-I", "-c", code, json.dumps(paths)], capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert len(found["files"][str(tmp_path / "file")]) == 64 and found["files"]["/nowhere/file"] == ""
    assert found["write"] == {str(tmp_path): "", "/nowhere": "No such file or directory"}
    assert found["versions"]["torch"] and found["free"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_doctor_shows_the_cluster_and_its_nodes(monkeypatch, two_nodes):
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    two_nodes["versions"] = {**cluster_probe.look({})["versions"], "torch": "0.1"}
    checks = list(doctor.check_cluster())
    assert [(check.name, check.level) for check in checks] == [
        ("ray cluster", "ok"),
        ("node a", "ok"),
        ("node b", "stop"),
    ]
    assert "2 nodes, 4 CPUs" in checks[0].found and "torch is 0.1" in checks[2].found
    monkeypatch.delenv("RAY_ADDRESS")
    assert not list(doctor.check_cluster())


def test_the_sites_really_at_once_are_those_of_the_pool():
    cluster = of((8, 1), (8, 1))
    _, asked = cluster.federation(group(), 9, 8, limit=1)
    assert cluster.sites_at_once(asked) == 2
    _, asked = of((2, 0), (3, 0)).federation(group(), 9, 5)
    assert of((2, 0), (3, 0)).sites_at_once(asked) == 5
