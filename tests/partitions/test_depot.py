"""Facts about the depot: folders on an fsspec file system, visible only when complete."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from flaky import Flaky

from partitions.depot import RECORD, Depot, DepotDamaged, DepotFailed, check_url, files_below, open_depot
from partitions.errors import BadInput


@pytest.fixture(autouse=True)
def nothing_cached() -> Iterator[None]:
    Flaky.renew()
    open_depot.cache_clear()
    yield
    Flaky.renew()
    open_depot.cache_clear()


@pytest.fixture(params=["file", "path", "flaky"])
def depot(request: pytest.FixtureRequest, tmp_path: Path) -> Depot:
    folder = tmp_path / "made" / "depot"
    return open_depot({"file": f"file://{folder}", "path": str(folder), "flaky": "flaky://shared/depot"}[request.param])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "given"
    (made / "history").mkdir(parents=True)
    (made / "model").write_bytes(b"weights" * 1000)
    (made / "history" / "round-1").write_bytes(b"updates" * 1000)
    (made / "started").touch()
    return made


def change(depot: Depot, name: str, how: Callable[[bytes], bytes | None]) -> None:
    """Change a file of the depot, or remove it."""
    (path,) = [path for path in depot._fs.find(depot._root) if name in path]
    changed = how(depot._fs.cat_file(path))
    depot._fs.rm_file(path) if changed is None else depot._fs.pipe_file(path, changed)


def taken(depot: Depot, path: str, folder: Path) -> dict[str, bytes]:
    contents = depot.contents(path)
    assert contents is not None
    depot.pull(path, contents, folder)
    return {name: (folder / name).read_bytes() for name in files_below(folder)}


def test_what_is_given_is_taken(depot: Depot, folder: Path, tmp_path: Path) -> None:
    assert depot.contents("stages/train/a") is None
    assert depot.push("stages/train/a", folder, files_below(folder), created=12.5)
    contents = depot.contents("stages/train/a")
    assert contents is not None and contents.created == 12.5
    assert taken(depot, "stages/train/a", tmp_path / "there") == taken(depot, "stages/train/a", folder)
    assert files_below(tmp_path / "there") == ["history/round-1", "model", "started"]


def test_what_is_there_is_not_given_again(depot: Depot, folder: Path) -> None:
    assert depot.push("a", folder, files_below(folder))
    (folder / "model").write_bytes(b"of another host")
    assert not depot.push("a", folder, files_below(folder))
    assert depot.push("a", folder, files_below(folder), replace=True)


@pytest.mark.parametrize("at", range(1, 5))
@pytest.mark.parametrize("raised", [KeyboardInterrupt(), ConnectionError("gone")])
def test_an_interrupted_upload_is_never_seen_and_completed_next_time(
    folder: Path, tmp_path: Path, at: int, raised: BaseException
) -> None:
    depot = open_depot("flaky://depot")
    Flaky.fail("put_file" if at < 4 else "pipe_file", at if at < 4 else 1, raised)
    with pytest.raises(KeyboardInterrupt if isinstance(raised, KeyboardInterrupt) else DepotFailed):
        depot.push("a", folder, files_below(folder))
    Flaky.mend()
    assert depot.contents("a") is None
    before = Flaky.calls["put_file"]
    assert depot.push("a", folder, files_below(folder))
    assert Flaky.calls["put_file"] - before == 3 - (at - 1)
    assert taken(depot, "a", tmp_path / "there")["model"] == b"weights" * 1000


def test_two_hosts_that_give_the_same_folder_at_once_do_not_mix_theirs(
    depot: Depot, folder: Path, tmp_path: Path
) -> None:
    depot.push("a", folder, files_below(folder))
    change(depot, RECORD, lambda text: None)  # the first host is about to commit, while
    (folder / "history" / "round-1").write_bytes(b"seconds another host took")
    depot.push("a", folder, files_below(folder))
    found = taken(depot, "a", tmp_path / "there")
    assert found["history/round-1"] == b"seconds another host took" and found["model"] == b"weights" * 1000


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "cut short": lambda data: data[:-7],
    "one bit": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "gone": lambda data: None,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_and_written_again(depot: Depot, folder: Path, tmp_path: Path, damage: str) -> None:
    depot.push("a", folder, files_below(folder))
    change(depot, "model", DAMAGES[damage])
    with pytest.raises(DepotDamaged, match=r"a/model\.[0-9a-f]{16} is (damaged|missing)"):
        taken(depot, "a", tmp_path / "there")
    assert not (tmp_path / "there" / "model").exists()
    assert depot.push("a", folder, files_below(folder))
    assert taken(depot, "a", tmp_path / "there")["model"] == b"weights" * 1000
    assert not depot.push("a", folder, files_below(folder))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace(b"7000", b"7001", 1),
        lambda text: b"[]",
        lambda text: b"\xff",
        lambda text: b"{}",
    ],
)
def test_a_damaged_record_is_refused_and_written_again(
    depot: Depot, folder: Path, damage: Callable[[bytes], bytes]
) -> None:
    depot.push("a", folder, files_below(folder))
    change(depot, f"a/{RECORD}", damage)
    with pytest.raises(DepotDamaged, match=r"contents\.json is damaged"):
        depot.contents("a")
    assert depot.push("a", folder, files_below(folder))
    assert depot.contents("a") is not None


@pytest.mark.parametrize("name", ["../outside", "/outside", "in/../../outside"])
def test_a_record_that_names_a_file_outside_is_refused(depot: Depot, folder: Path, name: str) -> None:
    (folder.parent / "outside").write_text("x")
    (folder / "in").mkdir()
    if name == "/outside":
        name = str(folder.parent / "outside")
    depot.push("a", folder, [name])
    with pytest.raises(DepotDamaged, match="lies outside"):
        depot.contents("a")


def test_an_interrupted_download_goes_on_with_what_came(folder: Path, tmp_path: Path) -> None:
    depot = open_depot("flaky://depot")
    depot.push("a", folder, files_below(folder))
    Flaky.fail("get_file", 3)
    with pytest.raises(DepotFailed, match="ConnectionError: the line is down"):
        taken(depot, "a", tmp_path / "there")
    Flaky.mend()
    before = Flaky.calls["get_file"]
    assert len(taken(depot, "a", tmp_path / "there")) == 3
    assert Flaky.calls["get_file"] - before == 1


def test_a_depot_that_went_away_is_not_made_anew(tmp_path: Path, folder: Path) -> None:
    depot = open_depot(str(tmp_path / "share" / "depot"))
    (tmp_path / "share").rename(tmp_path / "unmounted")
    with pytest.raises(DepotFailed, match=r"lethe-depot\.json is gone"):
        depot.push("a", folder, files_below(folder))
    assert not (tmp_path / "share").exists()


def test_a_depot_is_used_by_its_version_only(tmp_path: Path) -> None:
    (tmp_path / "lethe-depot.json").write_text(json.dumps({"depot": 2}))
    with pytest.raises(BadInput, match="layout 2"):
        open_depot(str(tmp_path))
    (tmp_path / "lethe-depot.json").write_text("{")
    with pytest.raises(BadInput, match="damaged"):
        open_depot(str(tmp_path))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("webdav://host/depot", r"pip install webdav4$"),
        ("sftp://host/depot", r"paramiko"),
        ("nonsense://host/depot", r"Protocol not known: nonsense"),
        ("file:///proc/depot", r"a depot that can be read and written \(.*run without depot$"),
    ],
)
def test_one_that_cannot_be_used_is_refused_in_one_line(url: str, says: str) -> None:
    with pytest.raises(BadInput, match=says) as refused:
        open_depot(url)
    assert str(refused.value).startswith(f"depot='{url}': allowed is ") and "\n" not in str(refused.value)


def test_the_drivers_of_object_stores_are_named_in_the_version_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(BadInput, match=f"pip install s3fs=={fsspec.__version__}$"):
        open_depot("s3://bucket/depot")


def test_one_that_does_not_answer_is_refused(tmp_path: Path) -> None:
    Flaky.fail("cat_file")
    with pytest.raises(BadInput, match=r"\(ConnectionError: the line is down\); look at the address"):
        open_depot("flaky://depot")


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/a/b",
        "s3://bucket",
        "gs://bucket/a:b",
        "abfs://container@account.dfs.core.windows.net/x",
        "sftp://user@host:22/x",
        "memory://x",
        "file:///mnt/x",
        "/mnt/x",
    ],
)
def test_urls_that_can_name_a_depot(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:secret@bucket/a",
        "s3://key:sec/ret@bucket/a",
        "sftp://user:password@host/x",
        "https://token@host/x",
        "s3://bucket/a?token=1",
        "simplecache::s3://bucket/a",
        "relative/x",
        "file://relative/x",
        "./x",
        "s3://",
        "://x",
        "/",
        "file:///",
        "s3//bucket",
        "a b://x",
        "/mnt/x\n",
    ],
)
def test_urls_that_cannot(url: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        check_url(url)
