"""Facts about the launcher: most with a stand-in for the SuperLink, two with Flower itself."""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from toy_app import write_toy_app

from flower_apps import control, launcher
from flower_apps.launcher import Launcher, Relief, RunResult, check_resources, rooms_root
from flower_apps.watch import Ending
from partitions.errors import BadInput, RunFailed

STAND_IN = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
OWNER = """
import sys, time
from pathlib import Path
from flower_apps.launcher import Launcher
home, app, events = map(Path, sys.argv[1:])
with Launcher(home, app_dir=app) as launcher:
    launcher.run({"events": str(events), "mode": "hang"}, {"num-supernodes": 2, "init-args-num-cpus": 1}, events)
"""


@pytest.fixture
def app(tmp_path):
    return write_toy_app(tmp_path)


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setattr(control, "superlink_command", lambda port: [sys.executable, "-c", STAND_IN, str(port)])


@pytest.fixture
def attempts(monkeypatch):
    """Make runs end as the test says; counts the attempts."""
    endings, made = [], []

    def attempt(self, *args):
        made.append(args)
        return endings.pop(0)

    monkeypatch.setattr(Launcher, "_attempt", attempt)
    return endings, made


def lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def listening() -> set[int]:
    return {c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}


def wait_for(condition, limit=60.0):
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def test_open_and_close_leave_nothing(tmp_path, app, stand_in):
    home = tmp_path / "home"
    # other tests of this process may have left a resource tracker of multiprocessing, which lives as long as it does
    before = set(psutil.Process().children(recursive=True))
    with Launcher(home, app_dir=app) as open_launcher:
        link = open_launcher._ready()
        assert link.healthy()
        ray = open_launcher._ray_folder
        assert [folder.name for folder in (home / "flower").glob("*/")] and ray.is_dir()
        children = set(psutil.Process().children(recursive=True)) - before
        assert children
    assert not link.healthy()
    assert not any(lives(child) for child in children)
    assert not ray.exists() and list((home / "flower").iterdir()) == []


def test_a_taken_port_is_left_to_its_owner_and_another_tried(tmp_path, app, stand_in, monkeypatch):
    class Stranger(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Stranger) as stranger:
        threading.Thread(target=stranger.serve_forever, args=(0.02,), daemon=True).start()
        free = launcher._free_port()
        ports = [stranger.server_port, free]
        monkeypatch.setattr(launcher, "_free_port", lambda: ports.pop(0))
        with Launcher(tmp_path / "home", app_dir=app) as open_launcher:
            assert open_launcher._ready()._address == f"127.0.0.1:{free}"
        stranger.shutdown()


def test_a_superlink_that_died_is_started_again(tmp_path, app, stand_in):
    with Launcher(tmp_path / "home", app_dir=app) as open_launcher:
        first = open_launcher._ready()
        psutil.Process(open_launcher._guard.pid).children()[0].kill()
        wait_for(lambda: not first.healthy(), 5)
        assert open_launcher._ready().healthy()


def test_two_launchers_in_one_home_share_nothing(tmp_path, app, stand_in):
    home = tmp_path / "home"
    with Launcher(home, app_dir=app) as one, Launcher(home, app_dir=app) as two:
        assert one._ready()._address != two._ready()._address
        assert len(list((home / "flower").glob("*/"))) == 2
        two.close()
        assert one._ready().healthy()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_signals_that_end_a_command_become_an_interrupt_and_go_back_afterwards(tmp_path, app, stand_in, number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt, match=number.name), Launcher(tmp_path / "home", app_dir=app):
        os.kill(os.getpid(), number)
        time.sleep(5)
    assert signal.getsignal(number) is before


def test_an_interrupt_works_where_a_shell_had_it_ignored(tmp_path, app, stand_in):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), Launcher(tmp_path / "home", app_dir=app):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_unknown_key_is_refused_with_the_nearest_before_anything_is_submitted(tmp_path, app, attempts):
    with pytest.raises(BadInput, match="did you mean 'events'"):
        Launcher(tmp_path / "home", app_dir=app).run({"event": ""}, {}, tmp_path / "events.jsonl")
    assert attempts[1] == []


def test_a_run_that_can_be_resumed_is_submitted_once_more_and_says_so(tmp_path, app, attempts):
    endings, made = attempts
    endings += [Ending("failed", "a worker died", resumable=True), Ending("completed")]
    seen = []
    result = Launcher(tmp_path / "home", app_dir=app).run({}, {}, tmp_path / "events.jsonl", seen.append)
    assert (result.status, result.attempts, len(made)) == ("completed", 2, 2)
    assert [event["kind"] for event in seen] == ["note"] and "a worker died" in seen[0]["text"]


def test_a_second_failure_is_final(tmp_path, app, attempts):
    endings, made = attempts
    endings += [Ending("failed", "a worker died", resumable=True)] * 3
    result = Launcher(tmp_path / "home", app_dir=app).run({}, {}, tmp_path / "events.jsonl")
    assert (result.status, len(made)) == ("failed", 2)


def test_a_run_that_was_cancelled_before_its_turn_starts_nothing(tmp_path, app):
    cancel = threading.Event()
    cancel.set()
    result = Launcher(tmp_path / "home", app_dir=app).run({}, {}, tmp_path / "events.jsonl", cancel=cancel)
    assert result.status == "cancelled"


def test_a_failure_names_its_log(tmp_path):
    with pytest.raises(RunFailed, match=r"no reason at all; log: .*run\.log"):
        RunResult("failed", "no reason at all", 1.0, tmp_path / "run.log").raise_for_status()
    RunResult("completed", "", 1.0, tmp_path / "run.log").raise_for_status()


@pytest.mark.parametrize(
    ("federation", "key"),
    [
        ({"client-resources-num-cpus": 10_000}, "client-resources-num-cpus"),
        ({"client-resources-num-cpus": 0}, "client-resources-num-cpus"),
        ({"client-resources-num-cpus": 3, "init-args-num-cpus": 2}, "init-args-num-cpus"),
        ({"client-resources-num-cpus": 1, "client-resources-num-gpus": 2, "init-args-num-gpus": 1}, "GPUs seen here"),
        ({"client-resources-num-cpus": 1, "client-resources-num-gpus": 1.5}, "whole number"),
    ],
)
def test_resources_that_are_not_there_are_refused_by_name(federation, key):
    with pytest.raises(BadInput, match=key):
        check_resources(federation)


def test_a_gpu_that_is_not_there_is_refused_but_logical_ones_are_taken(monkeypatch):
    monkeypatch.setattr(control, "visible_gpus", lambda: 0)
    wanted = {"client-resources-num-cpus": 1, "client-resources-num-gpus": 0.5}
    with pytest.raises(BadInput, match="up to 0"):
        check_resources(wanted)
    check_resources(wanted | {"init-args-num-gpus": 2})


def test_ray_gets_a_short_folder_however_long_the_temporary_one_is(tmp_path, monkeypatch):
    monkeypatch.setattr(launcher.tempfile, "gettempdir", lambda: str(tmp_path / ("x" * 80)))
    folder = launcher._short_folder()
    try:
        socket = folder / "ray" / "session_2026-12-31_23-59-59_123456_1234567" / "sockets" / "plasma_store"
        assert len(os.fsencode(socket)) < 104
        assert folder.stat().st_mode & 0o077 == 0
    finally:
        folder.rmdir()


def test_all_rooms_lie_in_the_checkout():
    assert rooms_root() == Path(__file__).resolve().parents[2]


def test_a_room_from_elsewhere_is_refused(monkeypatch):
    find = launcher.importlib.util.find_spec
    monkeypatch.setattr(
        launcher.importlib.util, "find_spec", lambda name: find("http" if name == "evaluation" else name)
    )
    with pytest.raises(BadInput, match="evaluation in"):
        rooms_root()


@pytest.mark.flower
def test_runs_side_by_side_end_each_in_its_own_way(tmp_path, app):
    results, reasons = {}, []

    def run(mode):
        events = tmp_path / f"{mode}.jsonl"
        federation = {"num-supernodes": 2, "init-args-num-cpus": 1}
        results[mode] = open_launcher.run({"events": str(events), "mode": mode}, federation, events, reasons.append)

    with Launcher(tmp_path / "home", app_dir=app) as open_launcher:
        threads = [threading.Thread(target=run, args=(mode,)) for mode in ("ok", "raise")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert psutil.Process(open_launcher._guard.pid).children(recursive=True)
    assert results["ok"].status == "completed" and results["ok"].reason == ""
    assert (results["raise"].status, results["raise"].reason) == ("failed", "the toy was told to raise")
    assert "ValueError: the toy was told to raise" in results["raise"].log_path.read_text()
    assert sum(event["kind"] == "finished" for event in reasons) == 1


@pytest.mark.flower
def test_a_launcher_killed_in_mid_run_leaves_no_process_port_memory_or_folder(tmp_path, app):
    events, home = tmp_path / "events.jsonl", tmp_path / "home"
    shared_before = set(Path("/dev/shm").iterdir()) if Path("/dev/shm").exists() else set()
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(home), str(app), str(events)])
    try:
        wait_for(lambda: events.exists() and '"round": 2' in events.read_text(), 240)
        processes = psutil.Process(owner.pid).children(recursive=True)
        ports = {c.laddr.port for p in processes for c in p.net_connections() if c.status == psutil.CONN_LISTEN}
        assert len(processes) > 5 and ports & listening()
        (ray,) = {Path(p.environ()["RAY_TMPDIR"]) for p in processes if "RAY_TMPDIR" in p.environ()}
        owner.kill()
        owner.wait()
        wait_for(lambda: not any(lives(p) for p in processes), 10)
        wait_for(lambda: not ray.exists(), 2)
        assert not ports & listening()
        assert not list((home / "flower").glob("*/"))
        if shared_before:
            assert set(Path("/dev/shm").iterdir()) <= shared_before
    finally:
        owner.kill()
        owner.wait()


@pytest.mark.slow
@pytest.mark.flower
def test_a_run_whose_worker_dies_is_resubmitted_and_completes(tmp_path, app):
    events = tmp_path / "events.jsonl"
    with Launcher(tmp_path / "home", app_dir=app) as open_launcher:
        result = open_launcher.run(
            {"events": str(events), "mode": "die"}, {"num-supernodes": 2, "init-args-num-cpus": 2}, events
        )
    assert (result.status, result.attempts) == ("completed", 2)


def test_a_run_that_is_relieved_is_submitted_with_what_changed(tmp_path, monkeypatch):
    submitted = []

    def attempt(self, run_config, federation, *_):
        submitted.append((run_config["workers"], federation["init-args-num-cpus"]))
        return (
            Ending("failed", "a GPU is full", error="OutOfMemory") if len(submitted) == 1 else Ending("completed", "")
        )

    monkeypatch.setattr(Launcher, "_attempt", attempt)
    relief = Relief({"workers": 1}, {"init-args-num-cpus": 1})
    result = Launcher(tmp_path, cluster="head:6379").run(
        {"workers": 2}, {"init-args-num-cpus": 2}, tmp_path / "events.jsonl", relieve=lambda ending: (relief, "fewer")
    )
    assert submitted == [(2, 2), (1, 1)]
    assert result.status == "completed"
