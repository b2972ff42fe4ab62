"""lung-ct: 2D patches of the chest CT of four real lung-cancer patients, four natural sites."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view

from partitions.datasets.base import CHUNK, Records, StoredDataSet
from partitions.records import make_table, record_ids, within_cap

PACKAGE, VERSION = "pycerr", "2.5.1"
WHEEL = f"{PACKAGE}-{VERSION}-py3-none-any.whl"
WHEEL_SHA256 = "5c3e82cc387538c5c38143827314fc2aa743ef886e8518f7f52beff6805c635d"
PATIENTS = ("1", "2", "3", "4")

SIDE, STRIDE = 28, 4
CENTRE, CENTRE_START, ENOUGH = 5, 12, 20
"""A patch is labelled by its central 5x5 voxels (rows and columns 12 to 16) when 20 of them agree."""
HU_WINDOW = (-1000, 400)
BLOCK, HELD_OUT_EVERY = 4, 5
"""Slices in a block, from the feet up; the last of every five blocks is held out."""
TISSUES = {
    "air": (-32768, -950),
    "lung": (-950, -600),
    "fat": (-150, -40),
    "soft tissue": (0, 120),
    "bone": (250, 32768),
}
"""Half-open ranges of Hounsfield units. A voxel inside the tumour contour is tumour and nothing else."""
CLASSES = (*TISSUES, "tumour")
TUMOUR, NO_CLASS = len(TISSUES), -1
CONTOUR = "GTV-1"


@dataclass(frozen=True)
class Scan:
    """One patient's CT.

    Attributes
    ----------
    hu : ndarray
        (slices, rows, columns) int16 Hounsfield units; slices from the feet up, rows and columns as stored.
    tumour : ndarray
        The same shape, bool: inside the contour.
    """

    hu: np.ndarray
    tumour: np.ndarray


class LungCT(StoredDataSet):
    """Patches of 28x28 voxels on a lattice of 4 in every slice, labelled by tissue or tumour; see DATA.md.

    Neighbouring patches overlap in plane, so whole blocks of four slices are held out. Holdout and training records
    of a site are the same patient's, by design.
    """

    name = "lung-ct"
    title = "chest CT of four lung-cancer patients with tumour contours (Radiomics Digital Phantom)"
    licence = "CC BY-NC 3.0"
    source = "https://doi.org/10.17195/candat.2016.08.1"
    citation = "Lambin P. Radiomics Digital Phantom, CancerData (2016), doi:10.17195/candat.2016.08.1"
    modality = "CT"
    packaged = True
    layout = WHEEL

    def _is_here(self, folder: Path) -> bool:
        return (folder / WHEEL).is_file() and _sha256(folder / WHEEL) == WHEEL_SHA256

    def _get(self, folder: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder) as work:
            reason = _download(Path(work))
            wheel = Path(work) / WHEEL
            if not wheel.is_file():
                raise self.missing(folder, reason or f"pip brought no {WHEEL}")
            if _sha256(wheel) != WHEEL_SHA256:
                raise self.missing(folder, f"{WHEEL} came with another SHA-256 than {WHEEL_SHA256}")
            wheel.replace(folder / WHEEL)

    def _source_key(self, folder: Path) -> str:
        return WHEEL_SHA256

    def _read(self, folder: Path, cap: int) -> Records:
        scans = {f"patient-{patient}": read_scan(files_of(folder / WHEEL, patient)) for patient in PATIENTS}
        found = pd.concat([_candidates(patient, scan) for patient, scan in scans.items()], ignore_index=True)
        places = zip(*(found[column] for column in ("patient", "position", "row", "column")), strict=True)
        table = make_table(
            record_ids(self.name, ("/".join(map(str, place)) for place in places)),
            patient=list(found["patient"]),
            stratum=list(found["label"].astype(str)),
            site=list(found["patient"]),
            split=list(np.where(held_out(found["position"].to_numpy()), "holdout", "train")),
            position=found["position"].to_numpy(),
        )
        kept = within_cap(table, cap)
        chosen = found.iloc[kept]
        return Records(
            chunks=_patches(scans, chosen),
            targets=chosen["label"].to_numpy(dtype=np.int64),
            table=table.iloc[kept].reset_index(drop=True),
            classes=CLASSES,
            available=len(found),
        )


def files_of(wheel: Path, patient: str) -> Iterator[bytes]:
    """Yield the DICOM files of one patient, read from the wheel without unpacking it."""
    with zipfile.ZipFile(wheel) as archive:
        inside = f"cerr/datasets/radiomics_phantom_dicom/pat_{patient}/"
        for name in sorted(archive.namelist()):
            if name.startswith(inside) and name.endswith(".dcm"):
                yield archive.read(name)


def read_scan(files: Iterable[bytes]) -> Scan:
    """Read one patient's CT slices and tumour contour.

    Parameters
    ----------
    files : iterable of bytes
        DICOM files in any order: axial CT slices, and one RTSTRUCT with the contour ``GTV-1``.

    Raises
    ------
    ValueError
        When the slices are not axial with rows and columns along the patient's axes, or a contour lies on no slice.
    """
    import pydicom

    read = [pydicom.dcmread(io.BytesIO(file)) for file in files]
    slices = sorted((d for d in read if d.Modality == "CT"), key=lambda d: float(d.ImagePositionPatient[2]))
    for one in slices:
        if [float(v) for v in one.ImageOrientationPatient] != [1, 0, 0, 0, 1, 0]:
            raise ValueError(f"slice orientation {list(one.ImageOrientationPatient)} is not axial")
    hu = [one.pixel_array * float(one.RescaleSlope) + float(one.RescaleIntercept) for one in slices]
    (structures,) = (d for d in read if d.Modality == "RTSTRUCT")
    return Scan(np.rint(np.stack(hu)).astype(np.int16), _tumour_mask(slices, structures))


def label_voxels(scan: Scan) -> np.ndarray:
    """Return the class index of every voxel, -1 where it has none; int8, shaped like the scan."""
    labels = np.full(scan.hu.shape, NO_CLASS, dtype=np.int8)
    for index, (low, high) in enumerate(TISSUES.values()):
        labels[(scan.hu >= low) & (scan.hu < high)] = index
    labels[scan.tumour] = TUMOUR
    return labels


def label_patches(labels: np.ndarray) -> np.ndarray:
    """Return the class of every patch on the lattice, -1 where fewer than 20 of its central 5x5 voxels agree.

    Parameters
    ----------
    labels : ndarray
        (slices, rows, columns) class of every voxel.

    Returns
    -------
    ndarray
        (slices, lattice rows, lattice columns) int8; entry (k, i, j) is the patch whose first voxel is (k, 4i, 4j).
    """
    _, rows, columns = labels.shape
    end = CENTRE_START + CENTRE
    middle = labels[:, CENTRE_START : rows - SIDE + end, CENTRE_START : columns - SIDE + end]
    windows = sliding_window_view(middle, (CENTRE, CENTRE), axis=(1, 2))[:, ::STRIDE, ::STRIDE]
    voxels = windows.reshape(*windows.shape[:3], -1)
    patches = np.full(windows.shape[:3], NO_CLASS, dtype=np.int8)
    for index in range(len(CLASSES)):
        patches[np.count_nonzero(voxels == index, axis=-1) >= ENOUGH] = index
    return patches


def held_out(position: np.ndarray) -> np.ndarray:
    """Say for each slice number, counted from the feet, whether it lies in a held-out block."""
    return np.asarray((position // BLOCK) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1)


def to_grey(hu: np.ndarray) -> np.ndarray:
    """Map Hounsfield units to uint8: -1000 and below to 0, 400 and above to 255."""
    low, high = HU_WINDOW
    return np.rint((np.clip(hu.astype(np.float64), low, high) - low) * (255 / (high - low))).astype(np.uint8)


def _candidates(patient: str, scan: Scan) -> pd.DataFrame:
    patches = label_patches(label_voxels(scan))
    position, i, j = np.nonzero(patches != NO_CLASS)
    columns = {"position": position, "row": i * STRIDE, "column": j * STRIDE, "label": patches[position, i, j]}
    return pd.DataFrame(columns).assign(patient=patient)


def _patches(scans: dict[str, Scan], chosen: pd.DataFrame) -> Iterator[np.ndarray]:
    """Yield the patches of `chosen`, in its order."""
    for patient, rows in chosen.groupby("patient", sort=False):
        windows = sliding_window_view(to_grey(scans[str(patient)].hu), (SIDE, SIDE), axis=(1, 2))
        for start in range(0, len(rows), CHUNK):
            some = rows.iloc[start : start + CHUNK]
            yield windows[some["position"].to_numpy(), some["row"].to_numpy(), some["column"].to_numpy()]


def _tumour_mask(slices: list[Any], structures: Any) -> np.ndarray:
    """Rasterise the contour: a voxel is inside when its centre is."""
    from matplotlib.path import Path as Outline

    heights = np.array([float(one.ImagePositionPatient[2]) for one in slices])
    x0, y0 = (float(v) for v in slices[0].ImagePositionPatient[:2])
    row_mm, column_mm = (float(v) for v in slices[0].PixelSpacing)
    mask = np.zeros((len(slices), int(slices[0].Rows), int(slices[0].Columns)), dtype=bool)
    for contour in _contours(structures):
        points = np.array([float(v) for v in contour.ContourData]).reshape(-1, 3)
        nearest = int(np.abs(heights - points[0, 2]).argmin())
        if abs(heights[nearest] - points[0, 2]) > 0.5:
            raise ValueError(f"a contour at z={points[0, 2]} mm lies on no slice")
        corners = (points[:, :2] - (x0, y0)) / (column_mm, row_mm)
        left, top = np.maximum(np.floor(corners.min(axis=0)).astype(int), 0)
        right, bottom = np.ceil(corners.max(axis=0)).astype(int) + 1
        box = mask[nearest, top:bottom, left:right]
        centres = np.argwhere(np.ones_like(box))[:, ::-1] + (left, top)
        box ^= Outline(corners).contains_points(centres).reshape(box.shape)
    return mask


def _contours(structures: Any) -> list[Any]:
    numbers = {roi.ROINumber for roi in structures.StructureSetROISequence if roi.ROIName == CONTOUR}
    chosen = [roi for roi in structures.ROIContourSequence if roi.ReferencedROINumber in numbers]
    return [contour for roi in chosen for contour in roi.ContourSequence]


def _download(folder: Path) -> str:
    """Let pip bring the wheel, checked by name and version; return why it could not, in one line, or nothing."""
    options = ["--no-deps", "--no-input", "--disable-pip-version-check", "--quiet", "--retries", "2"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), f"{PACKAGE}=={VERSION}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    lines = [line.strip() for line in done.stderr.splitlines() if line.startswith("ERROR") or "No module" in line]
    return "" if done.returncode == 0 else (lines[-1] if lines else f"pip download ended with {done.returncode}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


DATASET = LungCT()
