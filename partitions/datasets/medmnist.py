"""The 2D MedMNIST sets at every size, from the provider's ``<flag>[_size].npz``."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from partitions.datasets.base import CHUNK, Records, StoredDataSet
from partitions.records import make_table, record_ids, within_cap

FLAGS = (
    "bloodmnist",
    "breastmnist",
    "chestmnist",
    "dermamnist",
    "octmnist",
    "organamnist",
    "organcmnist",
    "organsmnist",
    "pathmnist",
    "pneumoniamnist",
    "retinamnist",
    "tissuemnist",
)
SIZES = (28, 64, 128, 224)
MODALITIES = {
    "bloodmnist": "blood cell microscope",
    "breastmnist": "breast ultrasound",
    "chestmnist": "chest X-ray",
    "dermamnist": "dermatoscope",
    "octmnist": "retinal OCT",
    "organamnist": "abdominal CT",
    "organcmnist": "abdominal CT",
    "organsmnist": "abdominal CT",
    "pathmnist": "colon pathology",
    "pneumoniamnist": "chest X-ray",
    "retinamnist": "fundus camera",
    "tissuemnist": "kidney cortex microscope",
}
SPLITS = {"train": "", "test": "reference"}
"""Official split to ours. Sites hold out their own share of ``train``; the official validation images are left out."""
TIMEOUT = 30
DAMAGE = (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error)


class MedMNIST(StoredDataSet):
    """One 2D MedMNIST set at one size. No patients and no sites; the official test split is the reference set.

    Parameters
    ----------
    flag : str
        The provider's name, for example ``"bloodmnist"``.
    size : int
        28, 64, 128 or 224. The name is the flag, with ``-<size>`` above 28.
    """

    citation = "Yang J, Shi R, Wei D, et al. MedMNIST v2. Scientific Data (2023), doi:10.1038/s41597-022-01721-8"
    packaged = False

    def __init__(self, flag: str, size: int) -> None:
        self.flag, self.size = flag, size
        self.suffix = "" if size == 28 else f"_{size}"
        self.name = flag if size == 28 else f"{flag}-{size}"
        self.layout = f"{flag}{self.suffix}.npz"
        self.modality = MODALITIES[flag]

    @property
    def info(self) -> dict[str, Any]:
        """What the medmnist package says of the set."""
        found: dict[str, Any] = _provider_info()[self.flag]
        return found

    @property
    def title(self) -> str:  # type: ignore[override]
        """Name of the set and its size."""
        return f"{self.info['python_class']} {self.size}x{self.size} ({self.modality})"

    @property
    def licence(self) -> str:  # type: ignore[override]
        """The provider's licence."""
        return str(self.info["license"])

    @property
    def source(self) -> str:  # type: ignore[override]
        """The provider's address of the file."""
        return str(self.info[f"url{self.suffix}"])

    def _is_here(self, folder: Path) -> bool:
        return (folder / self.layout).is_file()

    def _get(self, folder: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder) as work:
            partial = Path(work) / self.layout
            try:
                md5 = _download(self.source, partial)
            except OSError as error:
                raise self.missing(folder, str(error)) from None
            if md5 != self.info[f"MD5{self.suffix}"]:
                raise self.missing(folder, "the download came with another MD5 than the provider's")
            partial.replace(folder / self.layout)

    def _source_key(self, folder: Path) -> str:
        if not self._is_here(folder):
            return "none"
        stat = (folder / self.layout).stat()
        return f"{stat.st_size} {stat.st_mtime_ns}"

    def _check_source(self, folder: Path) -> list[str]:
        if not self._is_here(folder):
            return [str(self.missing(folder))]
        with (folder / self.layout).open("rb") as file:
            md5 = hashlib.file_digest(file, "md5").hexdigest()
        expected = self.info[f"MD5{self.suffix}"]
        return [] if md5 == expected else [f"{self.layout} has MD5 {md5}, the provider's has {expected}"]

    def _read(self, folder: Path, cap: int) -> Records:
        path = folder / self.layout
        try:
            with np.load(path) as arrays:
                labels = {split: arrays[f"{split}_labels"].astype(np.int64) for split in SPLITS}
        except DAMAGE as error:
            raise self.missing(folder, f"{path} is damaged or has another layout ({error})") from None
        targets = np.concatenate(list(labels.values()))
        targets = targets[:, 0] if targets.shape[1:] == (1,) else targets
        splits = np.repeat(list(SPLITS.values()), [len(part) for part in labels.values()])
        table = make_table(
            record_ids(self.flag, (f"{split}/{i}" for split, part in labels.items() for i in range(len(part)))),
            stratum=[str(t) for t in targets] if targets.ndim == 1 else "",
            split=[str(split) for split in splits],
        )
        kept = within_cap(table, cap)
        return Records(
            chunks=self._images(path, labels, kept),
            targets=targets[kept],
            table=table.iloc[kept].reset_index(drop=True),
            classes=tuple(self.info["label"][str(i)] for i in range(len(self.info["label"]))),
            available=len(table),
        )

    def _images(self, path: Path, labels: dict[str, np.ndarray], kept: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the kept images, never holding a whole split: at size 224 one takes gigabytes."""
        start = 0
        for split, part in labels.items():
            wanted = kept[(kept >= start) & (kept < start + len(part))] - start
            try:
                yield from _rows(path, f"{split}_images.npy", wanted)
            except DAMAGE as error:
                raise self.missing(path.parent, f"{path} is damaged or has another layout ({error})") from None
            start += len(part)


def _rows(path: Path, member: str, wanted: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows `wanted` (ascending) of one array of an npz file, some at a time."""
    with zipfile.ZipFile(path) as archive, archive.open(member) as file:
        shape = _header(file)
        size = int(np.prod(shape[1:]))
        for start in range(0, shape[0], CHUNK):
            count = min(CHUNK, shape[0] - start)
            rows = np.frombuffer(file.read(count * size), dtype=np.uint8).reshape(count, *shape[1:])
            inside = wanted[(wanted >= start) & (wanted < start + count)] - start
            if len(inside):
                yield rows[inside]


def _header(file: IO[bytes]) -> tuple[int, ...]:
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, fortran, dtype = read[np.lib.format.read_magic(file)](file)
    if fortran or dtype != np.uint8:
        raise ValueError(f"images are {dtype}{' in Fortran order' if fortran else ''}, not uint8 in C order")
    return shape


def _download(url: str, path: Path) -> str:
    """Download to `path`; return the MD5 of what came."""
    from urllib.request import urlopen

    digest = hashlib.md5(usedforsecurity=False)
    with urlopen(url, timeout=TIMEOUT) as response, path.open("wb") as file:
        while block := response.read(1 << 20):
            digest.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


@cache
def _provider_info() -> dict[str, Any]:
    """Return the medmnist package's INFO without importing the package, which imports torch and takes seconds."""
    package = importlib.util.find_spec("medmnist")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("the medmnist package is not installed")
    path = Path(package.submodule_search_locations[0]) / "info.py"
    spec = importlib.util.spec_from_file_location("partitions._medmnist_info", path)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    info: dict[str, Any] = module.INFO
    return info


DATASET = [MedMNIST(flag, size) for flag in FLAGS for size in SIZES]
