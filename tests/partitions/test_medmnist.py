from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from partitions.catalogue import DATASETS
from partitions.datasets import medmnist
from partitions.datasets.base import DataSet
from partitions.datasets.medmnist import FLAGS, MedMNIST, _provider_info
from partitions.errors import BadInput

Place = Callable[..., dict[str, np.ndarray]]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return a writer of a tiny npz in the provider's layout, with its arrays."""

    def write(
        dataset: MedMNIST, labels: int = 1, channels: tuple[int, ...] = (3,), seed: int = 0
    ) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        classes, arrays = len(dataset.info["label"]), {}
        for split, count in (("train", 60), ("val", 10), ("test", 20)):
            shape = (count, dataset.size, dataset.size, *channels)
            arrays[f"{split}_images"] = rng.integers(0, 256, shape, dtype=np.uint8)
            high = classes if labels == 1 else 2
            arrays[f"{split}_labels"] = rng.integers(0, high, (count, labels), dtype=np.uint8)
        path = tmp_path / "data" / dataset.name / dataset.layout
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **arrays)
        return arrays

    return write


def named(name: str) -> MedMNIST:
    dataset: DataSet = DATASETS.get(name)
    assert isinstance(dataset, MedMNIST)
    return dataset


def test_every_2d_set_of_the_medmnist_package_is_here_at_every_size() -> None:
    assert sorted(flag for flag in _provider_info() if not flag.endswith("3d")) == sorted(FLAGS)
    names = {f"{flag}{size}" for flag in FLAGS for size in ("", "-64", "-128", "-224")}
    assert names <= set(DATASETS.names())


@pytest.mark.parametrize("flag", FLAGS)
def test_every_set_says_what_it_is(flag: str) -> None:
    dataset = named(f"{flag}-64")
    assert dataset.layout == f"{flag}_64.npz"
    assert dataset.licence.startswith("CC ") and dataset.source.startswith("https://") and "64" in dataset.title


def test_train_goes_to_sites_and_test_is_the_reference_set(place: Place, tmp_path: Path) -> None:
    dataset = named("bloodmnist")
    arrays = place(dataset)
    data = dataset.load(tmp_path, 0)
    assert (data.inputs == np.concatenate([arrays["train_images"], arrays["test_images"]])).all()
    assert data.targets.tolist() == [*arrays["train_labels"][:, 0], *arrays["test_labels"][:, 0]]
    assert data.targets.dtype == np.int64 and data.inputs.dtype == np.uint8
    assert data.table["split"].tolist() == [""] * 60 + ["reference"] * 20
    assert data.table["stratum"].tolist() == [str(t) for t in data.targets]
    assert data.classes[0] == "basophil" and len(data.classes) == 8


def test_a_cap_keeps_image_and_label_together(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(medmnist, "CHUNK", 7)
    dataset = named("bloodmnist")
    place(dataset)
    whole, part = dataset.load(tmp_path, 0), dataset.load(tmp_path, 2)
    where = {record: i for i, record in enumerate(whole.table["record"])}
    rows = [where[record] for record in part.table["record"]]
    assert 0 < len(rows) < 40 and part.available == 80
    assert (part.inputs == whole.inputs[rows]).all() and (part.targets == whole.targets[rows]).all()


def test_grey_sets_have_no_channel_axis_and_larger_ones_their_size(place: Place, tmp_path: Path) -> None:
    dataset = named("organamnist-64")
    place(dataset, channels=())
    assert dataset.load(tmp_path, 0).inputs.shape == (80, 64, 64)


def test_several_labels_a_record_give_no_stratum(place: Place, tmp_path: Path) -> None:
    dataset = named("chestmnist")
    place(dataset, labels=14, channels=())
    data = dataset.load(tmp_path, 0)
    assert data.targets.shape == (80, 14) and set(data.table["stratum"]) == {""}


def test_another_file_in_its_place_is_prepared_anew(place: Place, tmp_path: Path) -> None:
    dataset = named("bloodmnist")
    place(dataset)
    first = dataset.load(tmp_path, 0).fingerprint
    place(dataset, seed=1)
    assert dataset.load(tmp_path, 0).fingerprint != first


def test_a_missing_file_gives_the_one_clear_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(url: str, path: Path) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr(medmnist, "_download", no_network)
    dataset = named("bloodmnist-128")
    with pytest.raises(BadInput) as refused:
        dataset.load(tmp_path, 0)
    folder = tmp_path / "data" / "bloodmnist-128"
    for part in ("BloodMNIST 128x128", dataset.source, "CC BY 4.0", "bloodmnist_128.npz", str(folder), "no route"):
        assert part in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_download_is_checked_before_it_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, content = named("bloodmnist"), b"what came"
    source = tmp_path / "served.npz"
    source.write_bytes(content)
    info = {**dataset.info, "url": source.as_uri(), "MD5": hashlib.md5(content + b"!").hexdigest()}
    monkeypatch.setattr(medmnist, "_provider_info", lambda: {"bloodmnist": info})
    with pytest.raises(BadInput, match="another MD5"):
        dataset.fetch(tmp_path, lambda text: None)
    assert not (tmp_path / "data/bloodmnist/bloodmnist.npz").exists()
    info["MD5"] = hashlib.md5(content).hexdigest()
    dataset.fetch(tmp_path, lambda text: None)
    assert (tmp_path / "data/bloodmnist/bloodmnist.npz").read_bytes() == content


@pytest.mark.parametrize("damage", ["truncated", "other layout", "truncated images", "floats"])
def test_a_damaged_file_is_named(place: Place, tmp_path: Path, damage: str) -> None:
    dataset = named("bloodmnist")
    arrays = place(dataset)
    path = tmp_path / "data/bloodmnist/bloodmnist.npz"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "other layout":
        np.savez(path, images=arrays["train_images"])
    elif damage == "floats":
        np.savez(path, **{**arrays, "train_images": arrays["train_images"] / 255})
    else:
        content = bytearray(path.read_bytes())
        content[2000:4000] = bytes(2000)
        path.write_bytes(content)
    with pytest.raises(BadInput, match=r"bloodmnist\.npz is damaged or has another layout"):
        dataset.load(tmp_path, 0)


def test_a_check_compares_with_the_providers_checksum(place: Place, tmp_path: Path) -> None:
    dataset = named("bloodmnist")
    place(dataset)
    dataset.load(tmp_path, 0)
    (problem,) = dataset.check(tmp_path)
    assert "the provider's has" in problem
