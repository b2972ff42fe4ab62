"""Facts about stages that homes share by a depot."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from flaky import Flaky

from flower_apps import cli
from flower_apps.depot import PATIENCE, StageDepot, check_depot, depot_url
from flower_apps.settings import GroupSettings
from flower_apps.stages import Stage, StageStore, StageWork, stage_key
from partitions.depot import open_depot
from partitions.errors import BadInput
from unlearning.state import State

URL = "flaky://depot"
PARTS = {"a": 1}
KEY = stage_key(PARTS)


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("LETHE_DEPOT", raising=False)
    Flaky.renew()
    open_depot.cache_clear()
    yield
    Flaky.renew()
    open_depot.cache_clear()


class Home:
    """A home's stages, with the depot or another."""

    def __init__(self, root: Path, url: str = URL, fresh_since: float = 0.0) -> None:
        self.said: list[str] = []
        self.depot = StageDepot(open_depot(url), self.said.append)
        self.store = StageStore(root / "stages", fresh_since, self.depot)

    def compute(self, value: float = 1.0, parts: dict[str, int] = PARTS, *, shared: bool = True) -> bool:
        """Have a stage, and tell whether it was computed here."""
        with self.store.claim("train", parts, shared=shared) as found:
            if isinstance(found, Stage):
                return False
            found.history.mkdir(exist_ok=True)
            (found.history / "round-0001").write_bytes(b"round" * 100)
            found.commit(state=State({"w": torch.full((2,), value)}, {}, {}), keep_history=True, cost={"seconds": 3.0})
            return True


def compute(root: Path, value: float = 1.0, **changes: object) -> tuple[bool, list[str]]:
    """Have a stage in a home, and tell whether it was computed there, and what was said."""
    home = Home(root, **changes)  # type: ignore[arg-type]
    with home.depot:
        computed = home.compute(value)
    return computed, home.said


def stage_files(root: Path) -> dict[str, bytes]:
    folder = root / "stages" / "train" / KEY
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def in_depot(name: str) -> str:
    (path,) = [path for path in Flaky.store if name in path]
    return path


def test_a_stage_is_computed_in_one_home_and_found_in_another(tmp_path: Path) -> None:
    assert compute(tmp_path / "one") == (True, [f"depot {URL}: 0 stages taken, 1 given"])
    assert compute(tmp_path / "two") == (False, [f"depot {URL}: 1 stages taken, 0 given"])
    assert stage_files(tmp_path / "one") == stage_files(tmp_path / "two")
    assert compute(tmp_path / "two") == (False, [])
    with Home(tmp_path / "three").store.claim("train", PARTS) as found:
        assert isinstance(found, Stage) and found.cost == {"seconds": 3.0}
        assert (found.history / "round-0001").exists()


def test_a_search_finds_it_too(tmp_path: Path) -> None:
    compute(tmp_path / "one")
    two = Home(tmp_path / "two").store
    assert two.here("train", KEY) is None
    found = two.find("train", KEY)
    assert found is not None and found.key == KEY
    assert two.find("train", "0" * 24) is None


def test_a_search_does_not_wait_for_who_computes_it(tmp_path: Path) -> None:
    with Home(tmp_path).store.claim("train", PARTS) as work:
        assert isinstance(work, StageWork)
        assert Home(tmp_path).store.find("train", KEY) is None


def test_what_was_half_done_here_is_dropped_for_what_comes(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), Home(tmp_path / "two").store.claim("train", PARTS) as work:
        assert isinstance(work, StageWork)
        (work.folder / "half").touch()
        raise RuntimeError
    compute(tmp_path / "one")
    assert not compute(tmp_path / "two")[0]
    assert [path.name for path in (tmp_path / "two" / "stages" / ".work").iterdir()] == [f"train-{KEY}.lock"]


def test_a_stage_computed_before_there_was_a_depot_is_given_when_it_is_used(tmp_path: Path) -> None:
    with StageStore(tmp_path / "one" / "stages").claim("train", PARTS) as work:
        assert isinstance(work, StageWork)
        work.commit()
    assert compute(tmp_path / "one") == (False, [f"depot {URL}: 0 stages taken, 1 given"])
    assert not compute(tmp_path / "two")[0]


def test_one_that_is_let_go_after_use_stays_out(tmp_path: Path) -> None:
    for root in ("one", "two"):
        home = Home(tmp_path / root)
        with home.depot:
            assert home.compute(shared=False)
    assert not [path for path in Flaky.store if "stages" in path]


def test_one_that_is_let_go_before_it_could_be_given_is_no_error(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.depot, home.store.claim("train", PARTS) as work:
        assert isinstance(work, StageWork)
        stage = work.commit()
        home.store.discard(stage)
    assert home.said == []


def test_two_hosts_may_compute_the_same_and_the_first_commit_stays(tmp_path: Path) -> None:
    one, two = Home(tmp_path / "one"), Home(tmp_path / "two")
    state = State({"w": torch.ones(2)}, {}, {})
    with one.depot, one.store.claim("train", PARTS) as first:
        with two.depot, two.store.claim("train", PARTS) as second:  # which gives it before the other has it
            assert isinstance(first, StageWork) and isinstance(second, StageWork)
            second.commit(state=state, cost={"seconds": 2.0})
        first.commit(state=state, cost={"seconds": 1.0})
    with Home(tmp_path / "three").store.claim("train", PARTS) as found:
        assert isinstance(found, Stage) and found.cost == {"seconds": 2.0}


@pytest.mark.parametrize("name", ["model.safetensors", "round-0001", "stage.json", "contents.json"])
@pytest.mark.parametrize("damage", ["cut", "bit", "gone"])
def test_a_damaged_stage_is_refused_computed_again_and_mended(tmp_path: Path, name: str, damage: str) -> None:
    compute(tmp_path / "one")
    fs, path = Flaky(), in_depot(f"{KEY}/{name}" if "round" not in name else name)
    data = bytearray(fs.cat_file(path))
    data[len(data) // 2] ^= 1
    if damage == "gone":
        fs.rm_file(path)
    else:
        fs.pipe_file(path, bytes(data) if damage == "bit" else bytes(data[:-4]))
    computed, said = compute(tmp_path / "two")
    assert computed and said[-1] == f"depot {URL}: 0 stages taken, 1 given"
    if (name, damage) != ("contents.json", "gone"):
        assert f"train {KEY[:8]} in the depot is not used" in said[0]
    assert not compute(tmp_path / "three")[0]
    assert stage_files(tmp_path / "two") == stage_files(tmp_path / "three")


@pytest.mark.parametrize("change", [{"kind": "retrain"}, {"key": "0" * 24}, {"parts": {"a": 2}}, {"sha256": "0" * 64}])
def test_a_stage_that_is_another_or_was_given_damaged_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    with StageStore(tmp_path / "one" / "stages").claim("train", PARTS) as work:
        assert isinstance(work, StageWork)
        work.commit(state=State({"w": torch.ones(2)}, {}, {}))
    record = tmp_path / "one" / "stages" / "train" / KEY / "stage.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), **change}))
    path = f"stages/train/{KEY}"
    open_depot(URL).push(path, record.parent, ["stage.json", "model.safetensors", "started"])
    computed, said = compute(tmp_path / "two")
    assert computed and ("another stage" in said[0] or "model is damaged" in said[0])


def test_fresh_leaves_what_is_older_and_replaces_it(tmp_path: Path) -> None:
    compute(tmp_path / "one")
    created = json.loads(stage_files(tmp_path / "one")["stage.json"])["created"]
    assert compute(tmp_path / "two", fresh_since=created + 1e-4) == (True, [f"depot {URL}: 0 stages taken, 1 given"])
    compute(tmp_path / "three")
    assert json.loads(stage_files(tmp_path / "three")["stage.json"])["created"] > created


@pytest.mark.parametrize("call", ["put_file", "pipe_file", "cat_file"])
def test_a_failure_is_said_loses_nothing_and_is_made_good_by_the_next_run(tmp_path: Path, call: str) -> None:
    home = Home(tmp_path / "one")
    Flaky.fail(call)
    with home.depot:
        assert home.compute()
    assert "(ConnectionError: the line is down); going on with what is here" in home.said[0]
    assert home.store.here("train", KEY) is not None
    Flaky.mend()
    assert compute(tmp_path / "one") == (False, [f"depot {URL}: 0 stages taken, 1 given"])
    assert not compute(tmp_path / "two")[0]


def test_after_some_failures_in_a_row_it_is_asked_no_more(tmp_path: Path) -> None:
    home = Home(tmp_path)
    Flaky.fail("cat_file")
    with home.depot:
        for number in range(6):
            assert home.compute(parts={"a": number})
    assert len(home.said) in (PATIENCE, PATIENCE + 1)  # one more when both sides fail at once
    assert home.said[PATIENCE - 1].endswith("the run goes on without it")


def test_an_upload_that_was_killed_is_never_seen_and_completed(tmp_path: Path) -> None:
    started, stop = threading.Event(), threading.Event()
    home = Home(tmp_path / "one")
    put = home.depot._depot._fs.put_file

    def slow(*arguments: object) -> None:
        started.set()
        stop.wait(30)
        raise ConnectionError

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt), home.depot:
        patch.setattr(home.depot._depot._fs, "put_file", slow)
        home.compute()
        assert started.wait(30)
        raise KeyboardInterrupt
    stop.set()
    assert put is not slow and not [path for path in Flaky.store if "contents.json" in path]
    open_depot.cache_clear()
    assert compute(tmp_path / "one") == (False, [f"depot {URL}: 0 stages taken, 1 given"])


def test_uploads_go_on_beside_the_work(tmp_path: Path) -> None:
    given = threading.Event()
    home = Home(tmp_path)
    pipe = home.depot._depot._fs.pipe_file

    def seen(path: str, data: bytes) -> None:
        pipe(path, data)
        given.set()

    with pytest.MonkeyPatch.context() as patch, home.depot:
        patch.setattr(home.depot._depot._fs, "pipe_file", seen)
        home.compute()
        assert given.wait(30)  # before the group ends


# settings
def test_the_environment_names_it_where_no_setting_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert depot_url(GroupSettings()) == ""
    monkeypatch.setenv("LETHE_DEPOT", "memory://shared/")
    assert depot_url(GroupSettings()) == "memory://shared"
    assert depot_url(GroupSettings(depot="/mnt/depot/")) == "/mnt/depot"
    assert depot_url(GroupSettings.parse({"depot": "none"})) == ""
    monkeypatch.setenv("LETHE_DEPOT", "none")
    assert depot_url(GroupSettings()) == ""
    monkeypatch.setenv("LETHE_DEPOT", "s3://key:secret@bucket")
    with pytest.raises(BadInput, match="LETHE_DEPOT"):
        depot_url(GroupSettings())


@pytest.mark.parametrize("url", ["s3://key:secret@bucket/x", "depot", "s3://"])
def test_one_with_a_secret_or_without_a_place_is_no_setting(url: str) -> None:
    with pytest.raises(BadInput, match="allowed is an fsspec URL"):
        GroupSettings.parse({"depot": url})


@pytest.mark.parametrize("where", ["home", "home/depot", "."])
def test_a_depot_in_or_around_the_home_is_refused(tmp_path: Path, where: str) -> None:
    with pytest.raises(BadInput, match="apart from LETHE_HOME"):
        check_depot(GroupSettings(depot=str(tmp_path / where)), tmp_path / "home")


def test_a_depot_in_the_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="outside the checkout"):
        check_depot(GroupSettings(depot=str(Path(__file__).parent / "depot")), tmp_path)


# the command
def test_an_unreachable_one_ends_the_command_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Flaky.fail("cat_file")
    out = tmp_path / "out"
    code = cli.main(f"run --set dataset=digits --depot {URL} --home {tmp_path / 'home'} --out {out}".split())
    told = capsys.readouterr().err.strip().splitlines()
    assert code == 2 and told[-1].startswith(f"lethe: depot='{URL}': allowed is a depot that can be read and written")
    assert not (tmp_path / "home" / "data").exists() and not (out / "run.json").exists()


def test_data_are_fetched_from_and_given_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for home in ("one", "two"):
        assert cli.main(f"data fetch digits --depot {URL} --home {tmp_path / home}".split()) == 0
    assert capsys.readouterr().out.splitlines() == ["digits: here"] * 2
