"""Facts about what killed commands leave."""

from __future__ import annotations

import json
import os
import subprocess
import time

import psutil
import pytest

from flower_apps import leftovers


@pytest.fixture
def dead_pid():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.fixture
def launcher_folder(tmp_path, dead_pid):
    """A launcher's folder whose owner is gone, with a process that is not."""
    folder = (tmp_path / "flower" / "1-abc").resolve()
    ray = tmp_path / "lethe-12345678"
    folder.mkdir(parents=True)
    ray.mkdir()
    (folder / "owner.json").write_text(json.dumps({"pid": dead_pid, "created": 1.0, "ray": str(ray)}))
    process = subprocess.Popen(["sleep", "60"], env=os.environ | {"FLWR_HOME": str(folder)})
    while not psutil.Process(process.pid).environ():  # a process that is just being executed shows none yet
        time.sleep(0.001)
    yield folder, ray, process
    process.kill()
    process.wait()


def test_a_process_whose_launcher_is_gone_is_stale(tmp_path, launcher_folder):
    _, _, process = launcher_folder
    (stale,) = leftovers.stale_processes(tmp_path)
    assert (stale.pid, stale.name) == (process.pid, "sleep")
    assert f"kill {process.pid}" in stale.why


def test_a_process_of_a_living_launcher_is_not_stale(tmp_path, launcher_folder):
    folder, ray, _ = launcher_folder
    leftovers.write_owner(folder, ray)
    assert leftovers.stale_processes(tmp_path) == []


def test_a_reused_process_id_is_no_living_launcher(tmp_path, launcher_folder):
    folder, ray, process = launcher_folder
    (folder / "owner.json").write_text(json.dumps({"pid": os.getpid(), "created": 1.0, "ray": str(ray)}))
    assert [stale.pid for stale in leftovers.stale_processes(tmp_path)] == [process.pid]


def test_pruning_waits_for_the_last_process_and_then_takes_the_ray_folder_too(tmp_path, launcher_folder):
    folder, ray, process = launcher_folder
    leftovers.prune(tmp_path)
    assert folder.exists() and ray.exists()
    leftovers.end_processes(folder)
    process.wait(timeout=5)
    leftovers.prune(tmp_path)
    assert not folder.exists() and not ray.exists()


def test_pruning_leaves_living_launchers_and_foreign_folders(tmp_path, launcher_folder):
    folder, _, _ = launcher_folder
    precious = tmp_path / "precious"
    precious.mkdir()
    leftovers.write_owner(folder, precious)
    leftovers.prune(tmp_path)
    assert folder.exists()
    owner = json.loads((folder / "owner.json").read_text()) | {"created": 1.0}
    (folder / "owner.json").write_text(json.dumps(owner))
    leftovers.end_processes(folder)
    leftovers.prune(tmp_path)
    assert precious.exists()


def test_logs_of_failed_launchers_are_kept_for_a_month(tmp_path):
    (tmp_path / "flower").mkdir()
    new, old = tmp_path / "flower" / "new.log", tmp_path / "flower" / "old.log"
    new.touch()
    old.touch()
    os.utime(old, (1.0, 1.0))
    leftovers.prune(tmp_path)
    assert new.exists() and not old.exists()


def test_a_home_that_does_not_exist_has_no_leftovers(tmp_path):
    leftovers.prune(tmp_path / "nowhere")
    assert leftovers.stale_processes(tmp_path / "nowhere") == []


def test_what_another_host_left_in_a_shared_home_is_its_own(tmp_path, launcher_folder):
    folder, ray, _ = launcher_folder
    owner = json.loads((folder / "owner.json").read_text()) | {"host": "another"}
    (folder / "owner.json").write_text(json.dumps(owner))
    leftovers.end_processes(folder)
    leftovers.prune(tmp_path)
    assert folder.exists() and ray.exists()
