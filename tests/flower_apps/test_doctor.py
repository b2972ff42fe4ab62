import json
import sys
from types import SimpleNamespace

import pytest

from flower_apps import cli, doctor
from flower_apps.doctor import Check


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LETHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def by_name(checks):
    return {check.name: check for check in checks}


def test_this_machine_can_run(home, capsys):
    assert cli.main(["doctor", "--json"]) == 0
    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
    assert {"python", "packages", "rooms", "cores", "memory", "LETHE_HOME", "disk", "leftovers"} <= rows.keys()
    assert all(row["level"] != "stop" for row in rows.values())
    assert not home.exists()


def test_the_table_fits_a_hundred_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main(["doctor"]) == 0
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 100


def test_a_stop_is_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda home: [Check("x", "stop", "broken", "mend it")])
    assert cli.main(["doctor"]) == 1
    assert "mend it" in capsys.readouterr().out


def test_an_unsupported_platform_is_told_what_to_use(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    platform = by_name(doctor.check_python())["platform"]
    assert (platform.level, platform.found) == ("stop", "Windows")
    assert "WSL" in platform.remedy


def test_a_room_from_elsewhere_stops(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "clients", SimpleNamespace(__file__=str(tmp_path / "clients" / "__init__.py")))
    (check,) = doctor.check_rooms()
    assert check.level == "stop"
    assert f"clients from {tmp_path}" in check.found


def test_an_unmet_requirement_stops_and_is_named(monkeypatch):
    monkeypatch.setattr(doctor, "requires", lambda name: ["flwr<1.0", "pytest>=8; extra == 'test'", "numpy>=1"])
    found = by_name(doctor.check_packages())
    assert found["requirements"].level == "stop"
    assert "flwr<1.0" in found["requirements"].found
    assert "numpy" not in found["requirements"].found


def test_a_full_disk_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=1e6, total=1e9))
    assert by_name(doctor.check_disk(tmp_path / "not" / "there"))["disk"].level == "note"


def test_a_check_that_cannot_run_is_a_finding(monkeypatch, tmp_path):
    def broken():
        raise ImportError("no torch")

    monkeypatch.setattr(doctor, "check_devices", broken)
    assert any("no torch" in check.found and check.level == "stop" for check in doctor.examine(tmp_path))


def test_leftover_processes_are_named_with_what_to_do(monkeypatch, tmp_path):
    import flower_apps.leftovers

    stale = SimpleNamespace(pid=4711, name="flower-superlink", why="its lethe command is gone: kill 4711")
    monkeypatch.setattr(flower_apps.leftovers, "stale_processes", lambda home: [stale])
    (check,) = doctor.check_leftovers(tmp_path)
    assert (check.level, check.found, check.remedy) == ("note", "flower-superlink (4711)", stale.why)
