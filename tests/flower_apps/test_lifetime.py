"""Facts about a command's hold on a run folder, and about what the record says of how it ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs_made import AWAY, GONE, HERE, make_events, make_run

from evaluation.runs import read_record
from flower_apps import command_run
from flower_apps.lifetime import Lifetime, flower_run
from flower_apps.process_mark import ProcessMark
from flower_apps.run_state import Busy, state_of
from flower_apps.runs import RunFolder, group_id, run_folders
from flower_apps.settings import GroupSettings
from flower_apps.workshop import MissingStage
from partitions.errors import BadInput, RunFailed

GROUPS = [GroupSettings.parse({"name": name, "dataset": "digits"}) for name in ("one", "two", "three")]


def lifetime(folder: Path, **asked: object) -> Lifetime:
    return Lifetime(RunFolder(folder), asked, GROUPS)


def test_everything_that_a_resume_needs_is_recorded_before_anything_starts(tmp_path):
    with lifetime(tmp_path, jobs=2, sets=["rounds=3"]):
        record = read_record(tmp_path)
        assert record["status"] == "running" and record["ended"] is None
        assert record["command"]["groups"] == [group_id(group) for group in GROUPS]
        assert [record["groups"][id]["name"] for id in record["command"]["groups"]] == ["one", "two", "three"]
        assert ProcessMark.of(record["command"]).lives()
        assert (record["command"]["jobs"], record["command"]["sets"]) == (2, ["rounds=3"])
        assert state_of(tmp_path, record).word == "running"


@pytest.mark.parametrize(
    ("error", "status", "code", "said"),
    [
        (None, "completed", 0, []),
        (KeyboardInterrupt("SIGTERM"), "stopped", 130, []),
        (BadInput("lr", 0, "more"), "refused", 2, ["lr=0: allowed is more"]),
        (RunFailed("a worker\ndied"), "failed", 1, ["a worker died"]),
        (OSError(28, "No space left on device"), "failed", 1, ["[Errno 28] No space left on device"]),
    ],
)
def test_the_record_says_how_it_ended(tmp_path, error, status, code, said):
    try:
        with lifetime(tmp_path):
            if error:
                raise error
    except BaseException as raised:
        assert raised is error
    record = read_record(tmp_path)
    assert (record["status"], record["exit_code"], record["failures"]) == (status, code, said)
    assert record["ended"] >= record["started"]


def test_a_disk_too_full_for_the_record_hides_no_error(tmp_path, monkeypatch):
    with pytest.raises(RunFailed, match="first"), lifetime(tmp_path):
        monkeypatch.setattr(RunFolder, "end", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        raise RunFailed("first")


def test_a_second_command_on_the_folder_is_refused_with_the_first_ones_process(tmp_path):
    script = (
        "import sys, time; from pathlib import Path; from flower_apps.lifetime import Lifetime;"
        "from flower_apps.runs import RunFolder; from flower_apps.settings import GroupSettings\n"
        "with Lifetime(RunFolder(Path(sys.argv[1])), {}, [GroupSettings()]):\n"
        "    print('held', flush=True); time.sleep(600)"
    )
    first = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout.readline() == "held\n"
        before = read_record(tmp_path)
        with pytest.raises(Busy, match=rf"process {first.pid} on .*`lethe stop"), lifetime(tmp_path):
            pass
        assert read_record(tmp_path) == before
    finally:
        first.kill()
        first.wait()
        first.stdout.close()
    assert state_of(tmp_path, read_record(tmp_path)).word == "interrupted"
    with lifetime(tmp_path):
        assert read_record(tmp_path)["command"]["pid"] != first.pid


def test_a_process_is_told_by_boot_and_start_time_not_by_its_id_alone(tmp_path):
    mark = ProcessMark.here()
    assert mark.lives() is True
    assert ProcessMark.of({**HERE, "process_started": "1"}).lives() is False
    assert ProcessMark.of({**HERE, "boot": "another"}).lives() is False
    assert ProcessMark.of({**HERE, "host": "elsewhere"}).lives() is None
    assert ProcessMark.of({}) is None
    for by, word in ((HERE, "running"), (GONE, "interrupted")):
        folder = make_run(tmp_path, word, status="running", by=by)
        assert state_of(folder, read_record(folder)).word == word


def test_on_another_host_a_run_is_gone_once_it_was_silent_for_longer_than_a_round_may_take(tmp_path):
    folder = make_run(tmp_path, status="running", by=AWAY)
    state = state_of(folder, read_record(folder))
    assert state.word == "running" and "elsewhere" in state.note and "cannot be asked" in state.note
    with pytest.raises(Busy, match="elsewhere"), lifetime(folder):
        pass
    old = make_run(tmp_path, "old", status="running", by=AWAY, started=time.time() - 1000)
    make_events(old, {"kind": "note"})
    for path in (old / "run.json", old / "events" / "aaaa11112222.jsonl"):
        os.utime(path, (time.time() - 200, time.time() - 200))
    assert state_of(old, read_record(old)).word == "interrupted"


def test_an_older_record_has_no_state(tmp_path):
    folder = make_run(tmp_path, status="")
    assert state_of(folder, read_record(folder)).word == "unrecorded"


def test_a_run_that_computes_all_again_goes_on_where_it_stopped_and_begins_anew_once_it_is_complete(tmp_path):
    run = RunFolder(tmp_path)
    since = []
    for end in ("stopped", "failed", "completed", "stopped"):
        run.begin({"fresh": True}, {})
        since.append(run.fresh_since)
        run.end(end, 0, [])
        time.sleep(0.01)
    assert since[0] == read_record(tmp_path)["created"]
    assert since[0] == since[1] == since[2] < since[3]


def test_a_resume_of_what_computes_all_again_never_begins_anew(tmp_path):
    run = RunFolder(tmp_path)
    run.begin({}, {})
    run.end("completed", 0, [])
    run.begin({"fresh": True}, {})
    since = run.fresh_since
    for end in ("stopped", "completed", "completed"):
        run.end(end, 0, [])
        run.begin({"fresh": True}, {}, resumed=True)
        assert run.fresh_since == since


def test_what_flwr_run_submits_says_so_and_is_kept_from_a_folder_that_a_command_works_on(tmp_path):
    with flower_run(RunFolder(tmp_path), GROUPS[0], 7):
        command = read_record(tmp_path)["command"]
        assert (command["via"], command["run_id"]) == ("flwr run", "7")
    assert read_record(tmp_path)["status"] == "completed"
    with lifetime(tmp_path):
        before = read_record(tmp_path)
        with pytest.raises(Busy, match="being worked on"), flower_run(RunFolder(tmp_path), GROUPS[0], 7):
            pytest.fail("nothing may be written into a folder that another works on")
        assert read_record(tmp_path) == before


def test_a_run_folder_elsewhere_is_known_to_its_home(tmp_path):
    home, out = tmp_path / "home", tmp_path / "out"
    group = GROUPS[0].model_copy(update={"home": str(home)})
    for _ in range(2):
        with Lifetime(RunFolder(out), {}, [group]):
            pass
    with Lifetime(RunFolder(home / "runs" / "below"), {}, [group]):
        pass
    assert run_folders(home) == [home / "runs" / "below", out]


def test_other_data_under_the_same_settings_are_refused(tmp_path):
    run = RunFolder(tmp_path)
    run.keep_data("g", "digits", "a" * 64)
    run.keep_data("g", "digits", "a" * 64)
    with pytest.raises(BadInput, match=r"begun on .*another --out"):
        run.keep_data("g", "digits", "b" * 64)


class FakeLanes:
    """Ends the group ``two`` as failed and every other as completed."""

    def __init__(self, groups, means, expected, listener, on_end, say) -> None:
        self.groups, self.on_end = groups, on_end

    def run(self, home: Path) -> None:
        for group in self.groups:
            self.on_end(group, "site-1 raised" if group.name == "two" else "", Path("two.log"))


@pytest.fixture
def stubbed(monkeypatch):
    class Split:
        sites, fingerprint = ("a",), "f" * 64

    class Executor:
        def __init__(self, *_):
            pass

        def execute(self):
            raise MissingStage("train")

    monkeypatch.setattr(command_run, "partition_of", lambda group, home: Split())
    monkeypatch.setattr(command_run, "GroupExecutor", Executor)
    monkeypatch.setattr(command_run, "LocalSites", lambda *_: None)
    monkeypatch.setattr(command_run, "make_plan", lambda *_, **__: None)
    monkeypatch.setattr(command_run, "Lanes", FakeLanes)
    return monkeypatch


def run_three(tmp_path: Path) -> int:
    return command_run.run_experiments(
        GROUPS,
        home=tmp_path,
        out=tmp_path / "run",
        workers=1,
        jobs=2,
        gpus=0,
        json_output=False,
        fresh=False,
        manifest=None,
        experiments=["one", "two", "three"],
    )


def test_one_group_of_three_that_fails_ends_no_other_and_is_named(tmp_path, stubbed, capsys):
    assert run_three(tmp_path) == 1
    record = read_record(tmp_path / "run")
    assert (record["status"], record["exit_code"]) == ("failed", 1)
    assert record["failures"] == ["two: site-1 raised; log: two.log"]
    assert "lethe: two: site-1 raised" in capsys.readouterr().err
    outcomes = [record["outcomes"][id]["status"] for id in record["command"]["groups"]]
    assert outcomes == ["completed", "failed", "completed"]


def test_a_group_whose_cached_stages_already_fail_ends_no_other_either(tmp_path, stubbed):
    def execute(self):
        if self.name == "one":
            raise RunFailed("training diverged")
        raise MissingStage("train")

    stubbed.setattr(command_run.GroupExecutor, "__init__", lambda self, group, *_: setattr(self, "name", group.name))
    stubbed.setattr(command_run.GroupExecutor, "execute", execute)
    assert run_three(tmp_path) == 1
    outcomes = read_record(tmp_path / "run")["outcomes"]
    assert sorted(one["status"] for one in outcomes.values()) == ["completed", "failed", "failed"]
    assert any("training diverged" in line for line in read_record(tmp_path / "run")["failures"])


def test_an_interrupt_while_groups_are_on_says_stopped(tmp_path, stubbed):
    def interrupt(*_):
        raise KeyboardInterrupt

    stubbed.setattr(command_run, "_run_all", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_three(tmp_path)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["status"], record["exit_code"]) == ("stopped", 130)
    assert set(record["groups"]) == {group_id(group) for group in GROUPS}
