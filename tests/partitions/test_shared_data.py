"""Facts about data sets that homes share by a depot."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flaky import Flaky

from partitions.catalogue import DATASETS
from partitions.datasets.base import Records, StoredDataSet
from partitions.depot import Depot, DepotDamaged, DepotFailed, open_depot
from partitions.errors import BadInput
from partitions.loading import fetch_data, load_data
from partitions.records import make_table, record_ids, within_cap


class Toy(StoredDataSet):
    """Ten images, read from one file that `_get` writes; like some real ones it knows the file by when it changed."""

    name, title, licence, source, citation = "toy", "ten toy images", "CC0", "nowhere", "nobody"
    modality, packaged, layout = "none", True, "toy.txt"

    def _is_here(self, folder: Path) -> bool:
        return (folder / "toy.txt").is_file()

    def _get(self, folder: Path) -> None:
        (folder / "fetched").mkdir()
        (folder / "toy.txt").write_text("toy")

    def _check_source(self, folder: Path) -> list[str]:
        return [] if self._is_here(folder) and (folder / "toy.txt").read_text() == "toy" else ["toy.txt is another"]

    def _source_key(self, folder: Path) -> str:
        return str((folder / "toy.txt").stat().st_mtime_ns)

    def _read(self, folder: Path, cap: int) -> Records:
        (folder / "read").mkdir(exist_ok=True)
        table = make_table(record_ids(self.name, map(str, range(10))), stratum=[str(i % 2) for i in range(10)])
        kept = within_cap(table, cap)
        images = np.arange(10, dtype=np.uint8)[kept, None, None] + np.arange(4, dtype=np.uint8).reshape(1, 2, 2)
        return Records([images], kept % 2, table.iloc[kept].reset_index(drop=True), ("even", "odd"), 10)


TOY = Toy()


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    Flaky.renew()
    open_depot.cache_clear()
    monkeypatch.setitem(DATASETS._components, "toy", TOY)
    yield
    Flaky.renew()
    open_depot.cache_clear()


@pytest.fixture
def depot(tmp_path: Path) -> Depot:
    """A depot that a first home has given the toy images to."""
    url = f"file://{tmp_path / 'depot'}"
    load_data("toy", tmp_path / "first", 0, url, give=True)
    return open_depot(url)


def did(home: Path) -> set[str]:
    """Return what a home did by itself: fetch, read."""
    return {path.name for path in (home / "data" / "toy").iterdir()} & {"fetched", "read"}


def test_a_second_home_neither_fetches_nor_prepares(depot: Depot, tmp_path: Path) -> None:
    assert did(tmp_path / "first") == {"fetched", "read"}
    data = load_data("toy", tmp_path / "second", 0, depot.url)
    assert did(tmp_path / "second") == set()
    assert data.fingerprint == TOY.load(tmp_path / "first", 0).fingerprint and len(data.table) == 10
    assert TOY.check(tmp_path / "second") == []


def test_another_cap_is_prepared_from_the_provider_s_files_in_the_depot(depot: Depot, tmp_path: Path) -> None:
    load_data("toy", tmp_path / "second", 2, depot.url, give=True)
    assert did(tmp_path / "second") == {"read"}
    load_data("toy", tmp_path / "third", 2, depot.url)
    assert did(tmp_path / "third") == set()


def test_files_alone_are_fetched_and_given_too(tmp_path: Path) -> None:
    said: list[str] = []
    for home in ("first", "second"):
        fetch_data(TOY, tmp_path / home, str(tmp_path / "depot"), said.append)
    assert did(tmp_path / "first") == {"fetched"} and did(tmp_path / "second") == set()
    assert [line.split(":")[1].split(" the depot")[0] for line in said[1:]] == [" given to", " from"]
    assert "CC0" in said[0] and "CC0" in said[2]


def test_a_set_without_files_of_its_own_is_shared_as_prepared(tmp_path: Path) -> None:
    load_data("digits", tmp_path / "first", 5, str(tmp_path / "depot"), give=True)
    load_data("digits", tmp_path / "second", 5, str(tmp_path / "depot"))
    made = [sorted((tmp_path / home / "data" / "digits").glob("*/inputs.npy"))[0] for home in ("first", "second")]
    assert made[0].read_bytes() == made[1].read_bytes()


def test_whoever_only_takes_gives_nothing(tmp_path: Path) -> None:
    load_data("toy", tmp_path / "site", 0, str(tmp_path / "depot"))
    assert not (tmp_path / "depot" / "data").exists()


def test_files_that_are_not_the_provider_s_are_not_given(tmp_path: Path) -> None:
    folder = tmp_path / "first" / "data" / "toy"
    folder.mkdir(parents=True)
    (folder / "toy.txt").write_text("made up")
    load_data("toy", tmp_path / "first", 0, str(tmp_path / "depot"), give=True)
    assert [path.name.partition("-")[0] for path in (tmp_path / "depot" / "data" / "toy").iterdir()] == ["prepared"]


@pytest.mark.parametrize("what", ["prepared-", "source"])
def test_damaged_records_are_refused_made_here_and_given_again(
    depot: Depot, tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder,) = (tmp_path / "depot" / "data" / "toy").glob(f"{what}*")
    damaged = next(path for path in folder.iterdir() if path.name.startswith(("inputs", "toy")))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1] + b"\x07")
    if what == "source":
        shutil.rmtree(next((tmp_path / "depot" / "data" / "toy").glob("prepared-*")))
    data = load_data("toy", tmp_path / "second", 0, depot.url, give=True)
    assert len(data.table) == 10 and "is damaged" in capsys.readouterr().err
    assert TOY.check(tmp_path / "second") == []
    if what == "source":
        assert damaged.read_bytes() == whole
    assert not [path for path in (tmp_path / "second" / "data" / "toy").glob(".*") if path.name != ".lock"]


def test_what_was_given_damaged_is_found_out(tmp_path: Path) -> None:
    load_data("toy", tmp_path / "first", 0)
    (prepared,) = (tmp_path / "first" / "data" / "toy").glob("prepared-*")
    inputs = prepared / "inputs.npy"
    inputs.write_bytes(inputs.read_bytes()[:-1] + b"\x07")
    depot = open_depot(str(tmp_path / "depot"))
    TOY.give(tmp_path / "first", 0, depot)
    with pytest.raises(DepotDamaged, match="changed since it was prepared"):
        TOY.take(tmp_path / "second", 0, depot)


@pytest.mark.parametrize("call", ["cat_file", "get_file", "put_file", "pipe_file"])
def test_a_depot_that_fails_is_said_and_gone_without(
    tmp_path: Path, call: str, capsys: pytest.CaptureFixture[str]
) -> None:
    load_data("toy", tmp_path / "first", 0, "flaky://depot", give=call.startswith(("cat", "get")))
    Flaky.fail(call)
    assert len(load_data("toy", tmp_path / "second", 0, "flaky://depot", give=True).table) == 10
    assert did(tmp_path / "second") == {"fetched", "read"}
    assert "toy: not " in capsys.readouterr().err


def test_one_whose_driver_is_missing_at_a_site_is_gone_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(load_data("toy", tmp_path, 0, "webdav://host/depot").table) == 10
    assert "pip install webdav4" in capsys.readouterr().err


def test_prepared_records_need_no_depot(tmp_path: Path) -> None:
    load_data("toy", tmp_path, 0)
    assert len(load_data("toy", tmp_path, 0, "webdav://host/depot").table) == 10


def test_an_unwritable_home_is_still_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="LETHE_HOME"):
        load_data("toy", tmp_path / "file", 0, str(tmp_path / "depot"))


def _load(home: Path, url: str, results: multiprocessing.Queue[str]) -> None:
    results.put(load_data("toy", home, 0, url).fingerprint)


def test_the_workers_of_a_node_take_once(depot: Depot, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=_load, args=(tmp_path / "node", depot.url, results)) for _ in range(4)]
    for process in processes:
        process.start()
    assert len({results.get(timeout=60) for _ in processes}) == 1
    for process in processes:
        process.join(60)
    assert capfd.readouterr().err.count("toy: from the depot") == 1 and did(tmp_path / "node") == set()


def test_two_hosts_that_prepare_at_once_are_both_right(tmp_path: Path) -> None:
    url = str(tmp_path / "depot")
    for home in ("first", "second"):
        TOY.load(tmp_path / home, 0)
    for home in ("first", "second"):
        load_data("toy", tmp_path / home, 0, url, give=True)
    assert load_data("toy", tmp_path / "third", 0, url).fingerprint == TOY.load(tmp_path / "first", 0).fingerprint


def test_a_failure_of_the_depot_is_an_error_of_its_own(tmp_path: Path) -> None:
    depot = open_depot("flaky://depot")
    Flaky.fail("cat_file")
    with pytest.raises(DepotFailed):
        TOY.take(tmp_path, 0, depot)
