from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from partitions.datasets.base import Records, StoredDataSet
from partitions.errors import BadInput, RunFailed
from partitions.records import make_table, record_ids, within_cap


class Toy(StoredDataSet):
    """Ten images of two classes in one file that `_get` writes."""

    name = "toy"
    title = "ten toy images"
    licence = "CC0"
    source = "nowhere"
    citation = "nobody"
    modality = "none"
    packaged = True
    layout = "toy.txt"

    def _is_here(self, folder: Path) -> bool:
        return (folder / "toy.txt").is_file()

    def _get(self, folder: Path) -> None:
        with (folder.parent / "fetched.log").open("a") as log:
            log.write("x")
        (folder / "toy.txt").write_text("toy")

    def _source_key(self, folder: Path) -> str:
        return "toy"

    def _chunks(self, kept: np.ndarray) -> Iterable[np.ndarray]:
        images = np.arange(10, dtype=np.uint8)[:, None, None] + np.arange(4, dtype=np.uint8).reshape(1, 2, 2)
        return [images[kept[:3]], images[kept[3:]]]

    def _read(self, folder: Path, cap: int) -> Records:
        table = make_table(record_ids(self.name, map(str, range(10))), stratum=[str(i % 2) for i in range(10)])
        kept = within_cap(table, cap)
        table = table.iloc[kept].reset_index(drop=True)
        return Records(self._chunks(kept), kept % 2, table, ("even", "odd"), 10)


class Interrupted(Toy):
    def _chunks(self, kept: np.ndarray) -> Iterator[np.ndarray]:
        yield from list(super()._chunks(kept))[:1]
        raise KeyboardInterrupt


class Short(Toy):
    def _chunks(self, kept: np.ndarray) -> Iterable[np.ndarray]:
        return list(super()._chunks(kept))[:1]


class Constant(Toy):
    def _chunks(self, kept: np.ndarray) -> Iterable[np.ndarray]:
        images = np.concatenate(list(super()._chunks(kept)))
        images[:4] = images[:4, :1, :1]
        return [images]


def prepared_folders(home: Path) -> list[Path]:
    return sorted((home / "data" / "toy").glob("prepared-*"))


def hidden(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "data" / "toy").glob(".*") if path.name != ".lock")


def test_first_use_fetches_and_prepares_and_the_second_reads(tmp_path: Path) -> None:
    one = Toy().load(tmp_path, 0)
    (tmp_path / "data" / "toy" / "toy.txt").unlink()
    two = Toy().load(tmp_path, 0)
    assert one.fingerprint == two.fingerprint
    assert (tmp_path / "data" / "fetched.log").read_text() == "x"
    assert one.inputs[:, 0, 0].tolist() == list(range(10)) and one.classes == ("even", "odd")
    assert len(one.table) == one.available == 10


def test_inputs_are_a_read_only_memory_map(tmp_path: Path) -> None:
    inputs = Toy().load(tmp_path, 0).inputs
    assert isinstance(inputs, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        inputs[0] = 1


def test_every_cap_is_prepared_apart(tmp_path: Path) -> None:
    whole, part = Toy().load(tmp_path, 0), Toy().load(tmp_path, 2)
    assert (len(whole.table), len(part.table), part.available) == (10, 4, 10)
    assert whole.fingerprint != part.fingerprint and len(prepared_folders(tmp_path)) == 2


def test_a_negative_cap_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cap=-1"):
        Toy().load(tmp_path, -1)


def test_the_licence_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        Toy().fetch(tmp_path, said.append)
    assert len(said) == 1 and "CC0" in said[0] and "nowhere" in said[0]


def test_a_fetch_at_first_use_says_the_licence_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Toy().load(tmp_path, 0)
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("CC0") == 1


def _load(home: Path, results: multiprocessing.Queue[str]) -> None:
    results.put(Toy().load(home, 0).fingerprint)


def test_processes_at_once_fetch_once_and_read_the_same(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=_load, args=(tmp_path, results)) for _ in range(6)]
    for process in processes:
        process.start()
    fingerprints = {results.get(timeout=30) for _ in processes}
    for process in processes:
        process.join(30)
    assert len(fingerprints) == 1
    assert (tmp_path / "data" / "fetched.log").read_text() == "x"
    assert len(prepared_folders(tmp_path)) == 1 and hidden(tmp_path) == []


def test_an_interrupted_preparation_is_never_seen(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        Interrupted().load(tmp_path, 0)
    assert prepared_folders(tmp_path) == [] and hidden(tmp_path) == []
    assert len(Toy().load(tmp_path, 0).table) == 10


def test_what_a_killed_preparation_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "data" / "toy" / ".preparing-killed"
    left.mkdir(parents=True)
    (left / "inputs.npy").write_bytes(b"half")
    Toy().load(tmp_path, 0)
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("name", ["inputs.npy", "table.parquet", "targets.npy", "about.json"])
def test_a_truncated_prepared_file_is_prepared_again(tmp_path: Path, name: str) -> None:
    before = Toy().load(tmp_path, 0).fingerprint
    path = prepared_folders(tmp_path)[0] / name
    path.write_bytes(path.read_bytes()[:-1])
    assert Toy().load(tmp_path, 0).fingerprint == before
    assert Toy().check(tmp_path) == []


def test_images_and_records_must_agree_in_number(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="3 images were read for 10 records"):
        Short().load(tmp_path, 0)


def test_too_little_disk_is_said_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 0))  # type: ignore[attr-defined]
    with pytest.raises(RunFailed, match=r"needs .* GB and 0\.0 GB are free"):
        Toy().load(tmp_path, 0)


def test_a_check_finds_changed_contents(tmp_path: Path) -> None:
    Toy().load(tmp_path, 0)
    path = prepared_folders(tmp_path)[0] / "inputs.npy"
    assert Toy().check(tmp_path) == []
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    (problem,) = Toy().check(tmp_path)
    assert "changed since they were prepared" in problem


def test_contents_that_changed_are_prepared_again_before_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean = np.array(Toy().load(tmp_path, 0).inputs)
    (prepared,) = (tmp_path / "data" / "toy").glob("prepared-*")
    Toy().renew_damaged(tmp_path, 0)
    assert prepared.is_dir() and "again" not in capsys.readouterr().err
    file = prepared / "inputs.npy"
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    Toy().renew_damaged(tmp_path, 0)
    assert "changed since it was prepared; preparing it again" in capsys.readouterr().err
    assert np.array_equal(Toy().load(tmp_path, 0).inputs, clean)


def test_what_is_not_prepared_yet_is_left_alone(tmp_path: Path) -> None:
    Toy().renew_damaged(tmp_path, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_check_counts_constant_images(tmp_path: Path) -> None:
    Constant().load(tmp_path, 0)
    (problem,) = Constant().check(tmp_path)
    assert "4 of 10 images are constant" in problem


def test_a_check_of_what_is_not_here_says_what_is_missing_and_makes_no_folder(tmp_path: Path) -> None:
    (problem,) = Toy().check(tmp_path)
    for part in ("ten toy images", "CC0", "nowhere", "toy.txt", str(tmp_path / "data" / "toy"), "LETHE_HOME"):
        assert part in problem
    assert not (tmp_path / "data").exists()


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file in the way")
    with pytest.raises(BadInput, match="LETHE_HOME"):
        Toy().load(tmp_path, 0)
