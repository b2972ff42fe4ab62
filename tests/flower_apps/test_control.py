"""Facts about the adapter to Flower, without a SuperLink."""

from __future__ import annotations

import http.server
import os
import sys
import threading
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import Status, SubStatus
from flwr.proto.control_pb2 import ListRunsResponse
from toy_app import write_toy_app

from flower_apps import control
from flower_apps.control import Control
from partitions.errors import BadInput, RunFailed
from strategies.handover import FOLDER


class Stub(http.server.BaseHTTPRequestHandler):
    status, body = 200, b""

    def do_GET(self):
        self.do_POST()

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(self.status)
        self.send_header("content-type", "application/x-protobuf")
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_):
        pass


@pytest.fixture
def stub():
    handler = type("OneStub", (Stub,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    link = Control(f"127.0.0.1:{server.server_port}")
    yield handler, link
    link.close()
    server.shutdown()
    server.server_close()


def finished_run(sub_status: str) -> bytes:
    reply = ListRunsResponse()
    reply.run_dict[7].status.status = Status.FINISHED
    reply.run_dict[7].status.sub_status = sub_status
    reply.run_dict[7].status.details = "why"
    return reply.SerializeToString()


def test_the_bundle_is_flowers_own(tmp_path):
    app = write_toy_app(tmp_path)
    assert control.build_app(app) == build_fab_from_disk(app)


def test_virtual_environments_and_caches_are_not_walked(tmp_path):
    app = write_toy_app(tmp_path)
    plain = control.build_app(app)
    for folder in ("my-env", ".hidden", "toyrooms/__pycache__"):
        (app / folder).mkdir()
        (app / folder / "module.py").write_text("x = 1")
    (app / "my-env" / "pyvenv.cfg").touch()
    assert control.build_app(app) == plain


def test_a_folder_without_an_app_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(BadInput, match="pip install -e"):
        control.app_config(tmp_path)


def test_the_apps_keys_are_read(tmp_path):
    assert set(control.app_config(write_toy_app(tmp_path))["config"]) == {"events", "mode"}


def test_runs_use_the_installed_environment_and_call_nobody(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("NO_PROXY", "intranet")
    env = control.superlink_environment(tmp_path, tmp_path / "ray")
    assert "RAY_ADDRESS" not in env
    assert env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert env["NO_PROXY"] == "intranet,127.0.0.1,localhost"
    assert env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert env["FLWR_TELEMETRY_ENABLED"] == env["RAY_USAGE_STATS_ENABLED"] == "0"


def test_models_are_handed_over_in_files_only_where_all_workers_are_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, "/of/an/outer/run")
    env = control.superlink_environment(tmp_path, tmp_path / "ray")
    assert Path(env[FOLDER]).is_relative_to(tmp_path / "ray")
    assert FOLDER not in control.superlink_environment(tmp_path, tmp_path / "ray", cluster="10.0.0.1:6379")


@pytest.mark.parametrize(("sub_status", "completed"), [(SubStatus.COMPLETED, True), (SubStatus.FAILED, False)])
def test_a_finished_run_is_completed_only_when_it_says_so(stub, sub_status, completed):
    handler, link = stub
    handler.body = finished_run(sub_status)
    status = link.status(7)
    assert (status.state, status.details) == (f"finished:{sub_status}", "why")
    assert status.finished and status.completed is completed


def test_the_proxy_of_the_environment_is_not_asked_for_the_own_machine(stub, monkeypatch):
    handler, link = stub
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    handler.body = finished_run(SubStatus.COMPLETED)
    assert link.healthy()
    assert link.status(7).completed


def test_a_refusal_and_a_silent_superlink_are_run_failures(stub):
    handler, link = stub
    handler.status, handler.body = 400, b'{"message": "the reason"}'
    with pytest.raises(RunFailed, match="the reason"):
        link.status(7)
    nobody = Control("127.0.0.1:9")
    assert not nobody.healthy()
    with pytest.raises(RunFailed, match="did not answer"):
        nobody.status(7)


def test_the_simulation_process_is_still_called_what_the_launcher_looks_for():
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType

    assert TASK_TYPE_TO_COMMAND[TaskType.SIMULATION] == control.RUN_COMMAND
    assert (Path(sys.executable).parent / control.RUN_COMMAND).exists()
    assert Path(control.superlink_command(1)[0]).exists()
