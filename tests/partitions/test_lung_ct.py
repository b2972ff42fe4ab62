from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sequence import Sequence
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

from partitions.datasets import lung_ct
from partitions.datasets.lung_ct import (
    CLASSES,
    DATASET,
    WHEEL,
    Scan,
    files_of,
    held_out,
    label_patches,
    label_voxels,
    read_scan,
    to_grey,
)
from partitions.errors import BadInput
from partitions.records import LoadedData

AVAILABLE = {
    "patient-1": [9286, 13046, 2451, 27412, 507, 7290],
    "patient-2": [88, 14365, 493, 3450, 520, 99],
    "patient-3": [80, 8636, 693, 10385, 449, 189],
    "patient-4": [1624, 13669, 4316, 18826, 1243, 2435],
}
"""Patches of each patient and class before any cap, counted independently."""


# --- small DICOM files made here -------------------------------------------------------------------------------------


def saved(dataset: Dataset) -> bytes:
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = meta.MediaStorageSOPInstanceUID = generate_uid()
    dataset.file_meta = meta
    file = io.BytesIO()
    pydicom.dcmwrite(file, dataset, enforce_file_format=True)
    return file.getvalue()


def ct_slice(pixels: np.ndarray, z: float, orientation: tuple[int, ...] = (1, 0, 0, 0, 1, 0)) -> bytes:
    one = Dataset()
    one.Modality = "CT"
    one.ImagePositionPatient, one.ImageOrientationPatient, one.PixelSpacing = [10, 20, z], list(orientation), [2, 0.5]
    one.Rows, one.Columns = pixels.shape
    one.RescaleSlope, one.RescaleIntercept = 2, -1000
    one.SamplesPerPixel, one.PhotometricInterpretation = 1, "MONOCHROME2"
    one.BitsAllocated, one.BitsStored, one.HighBit, one.PixelRepresentation = 16, 12, 11, 0
    one.PixelData = pixels.astype("<u2").tobytes()
    return saved(one)


def contours(*outlines: list[tuple[float, float, float]], name: str = "GTV-1") -> bytes:
    structures, roi, drawn = Dataset(), Dataset(), Dataset()
    structures.Modality = "RTSTRUCT"
    roi.ROINumber, roi.ROIName = 7, name
    drawn.ReferencedROINumber = 7
    drawn.ContourSequence = Sequence([])
    for outline in outlines:
        one = Dataset()
        one.ContourData = [str(v) for point in outline for v in point]
        drawn.ContourSequence.append(one)
    structures.StructureSetROISequence, structures.ROIContourSequence = Sequence([roi]), Sequence([drawn])
    return saved(structures)


def rectangle(top: int, left: int, bottom: int, right: int, z: float) -> list[tuple[float, float, float]]:
    """Corners around rows top..bottom and columns left..right, in mm: columns 0.5 apart from 10, rows 2 from 20."""
    xs, ys = (10 + 0.5 * (left - 0.5), 10 + 0.5 * (right + 0.5)), (20 + 2 * (top - 0.5), 20 + 2 * (bottom + 0.5))
    return [(xs[0], ys[0], z), (xs[1], ys[0], z), (xs[1], ys[1], z), (xs[0], ys[1], z)]


PIXELS = np.arange(12).reshape(3, 4)


def test_slices_run_from_the_feet_up_and_keep_rows_and_columns() -> None:
    scan = read_scan([ct_slice(PIXELS, 3.0), contours(), ct_slice(PIXELS + 100, -6.0), ct_slice(PIXELS + 50, 0.0)])
    assert scan.hu.dtype == np.int16
    assert scan.hu.tolist() == (2 * np.stack([PIXELS + 100, PIXELS + 50, PIXELS]) - 1000).tolist()


def test_a_contour_marks_the_voxels_inside_it_on_its_slice() -> None:
    files = [ct_slice(np.zeros((8, 10)), z) for z in (0.0, 3.0)]
    scan = read_scan([*files, contours(rectangle(2, 5, 4, 8, 3.0))])
    expected = np.zeros((2, 8, 10), bool)
    expected[1, 2:5, 5:9] = True
    assert (scan.tumour == expected).all()


def test_a_contour_inside_another_is_a_hole() -> None:
    both = contours(rectangle(1, 1, 6, 8, 0.0), rectangle(3, 3, 4, 5, 0.0))
    tumour = read_scan([ct_slice(np.zeros((8, 10)), 0.0), both]).tumour[0]
    assert tumour.sum() == 6 * 8 - 2 * 3 and not tumour[3:5, 3:6].any()


def test_other_contours_are_not_tumour() -> None:
    other = contours(rectangle(1, 1, 6, 8, 0.0), name="heart")
    assert not read_scan([ct_slice(np.zeros((8, 10)), 0.0), other]).tumour.any()


def test_a_turned_slice_or_a_contour_between_slices_is_refused() -> None:
    with pytest.raises(ValueError, match="not axial"):
        read_scan([ct_slice(PIXELS, 0.0, (0, 1, 0, 1, 0, 0)), contours()])
    with pytest.raises(ValueError, match="on no slice"):
        read_scan([ct_slice(PIXELS, 0.0), contours(rectangle(0, 0, 1, 1, 1.5))])


# --- labels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "inside", "outside"),
    [
        (0, (-1000, -951), ()),
        (1, (-950, -601), (-600,)),
        (2, (-150, -41), (-151, -40)),
        (3, (0, 119), (-1, 120)),
        (4, (250, 3000), (249,)),
    ],
)
def test_a_voxel_has_the_tissue_of_its_hounsfield_units(
    label: int, inside: tuple[int, ...], outside: tuple[int, ...]
) -> None:
    hu = np.array([*inside, *outside], np.int16).reshape(1, 1, -1)
    expected = [label] * len(inside) + [-1] * len(outside)
    assert label_voxels(Scan(hu, np.zeros(hu.shape, bool))).ravel().tolist() == expected
    assert set(label_voxels(Scan(hu, np.ones(hu.shape, bool))).ravel()) == {CLASSES.index("tumour")}


def test_twenty_of_the_central_voxels_decide() -> None:
    labels = np.full((1, 28, 28), 3, np.int8)
    labels[0, 12:17, 12:17] = -1
    labels[0, 12:16, 12:17] = 1
    assert label_patches(labels).tolist() == [[[1]]]
    labels[0, 12, 12] = 2
    assert label_patches(labels).tolist() == [[[-1]]]


def test_the_lattice_has_a_stride_of_four() -> None:
    labels = np.full((2, 36, 41), -1, np.int8)
    labels[1, 16:21, 24:29] = 5
    patches = label_patches(labels)
    assert patches.shape == (2, 3, 4)
    assert np.argwhere(patches == 5).tolist() == [[1, 1, 3]]


def test_every_fifth_block_of_four_slices_is_held_out() -> None:
    assert np.flatnonzero(held_out(np.arange(45))).tolist() == [16, 17, 18, 19, 36, 37, 38, 39]


def test_the_window_maps_to_the_whole_grey_range() -> None:
    assert to_grey(np.array([-2000, -1000, -300, 400, 3000], np.int16)).tolist() == [0, 0, 128, 255, 255]


# --- the real scans --------------------------------------------------------------------------------------------------


def test_every_patient_has_the_expected_patches(lung_ct_home: Path) -> None:
    for name, expected in AVAILABLE.items():
        patches = label_patches(label_voxels(read_scan(files_of(lung_ct_home / "data/lung-ct" / WHEEL, name[-1]))))
        assert np.bincount(patches[patches >= 0], minlength=6).tolist() == expected


def test_a_cap_of_600_gives_12025_records(lung_ct_600: LoadedData) -> None:
    assert lung_ct_600.inputs.shape == (12025, 28, 28) and lung_ct_600.available == 141552
    counts = lung_ct_600.table.groupby(["patient", "stratum"]).size().unstack()
    assert counts.to_numpy().tolist() == [[min(n, 600) for n in row] for row in AVAILABLE.values()]
    assert (lung_ct_600.table["stratum"] == lung_ct_600.targets.astype(str)).all()


def test_patients_are_sites_and_every_class_of_each_is_held_out_too(lung_ct_600: LoadedData) -> None:
    table = lung_ct_600.table
    assert (table["site"] == table["patient"]).all() and table["record"].is_unique
    assert 0.17 < (table["split"] == "holdout").mean() < 0.19
    assert table[table["split"] == "holdout"].groupby(["patient", "stratum"]).size().shape == (24,)


def test_training_and_held_out_slices_are_apart(lung_ct_600: LoadedData) -> None:
    slices = lung_ct_600.table.groupby(["patient", "position"])["split"].nunique()
    assert (slices == 1).all()


def test_a_patch_has_the_grey_values_of_its_class(lung_ct_600: LoadedData) -> None:
    centres = np.median(lung_ct_600.inputs[:, 12:17, 12:17].reshape(-1, 25), axis=1)
    hu = centres / 255 * 1400 - 1000
    for index, (low, high) in enumerate([(-1000, -950), (-950, -600), (-150, -40), (0, 120), (250, 400)]):
        mine = hu[lung_ct_600.targets == index]
        assert low - 3 <= mine.min() and mine.max() <= high + 3


def test_the_prepared_records_are_these(lung_ct_600: LoadedData) -> None:
    assert lung_ct_600.fingerprint == "167a3d4eb0210f54a0702a415724616186b4398964402e0df30e193928c46fa1"


def test_a_check_of_the_real_data_is_clean(lung_ct_600: LoadedData, lung_ct_home: Path) -> None:
    assert DATASET.check(lung_ct_home) == []


# --- fetching --------------------------------------------------------------------------------------------------------


def test_a_download_that_fails_gives_the_one_clear_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lung_ct, "_download", lambda folder: "ERROR: no network")
    with pytest.raises(BadInput) as refused:
        DATASET.load(tmp_path, 600)
    for part in ("lung-cancer", "CC BY-NC 3.0", "10.17195", WHEEL, str(tmp_path / "data/lung-ct"), "no network"):
        assert part in str(refused.value)


def test_a_truncated_download_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lung_ct_home: Path
) -> None:
    whole = (lung_ct_home / "data/lung-ct" / WHEEL).read_bytes()

    def truncated(folder: Path) -> str:
        (folder / WHEEL).write_bytes(whole[:-1])
        return ""

    monkeypatch.setattr(lung_ct, "_download", truncated)
    with pytest.raises(BadInput, match="another SHA-256"):
        DATASET.fetch(tmp_path, lambda text: None)
    assert [path.name for path in (tmp_path / "data/lung-ct").iterdir()] == [".lock"]


def test_a_truncated_file_in_place_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lung_ct_home: Path
) -> None:
    whole = (lung_ct_home / "data/lung-ct" / WHEEL).read_bytes()
    place = tmp_path / "data/lung-ct" / WHEEL
    place.parent.mkdir(parents=True)
    place.write_bytes(whole[:1000])
    assert "missing or damaged" in DATASET._check_source(place.parent)[0]

    def complete(folder: Path) -> str:
        (folder / WHEEL).write_bytes(whole)
        return ""

    monkeypatch.setattr(lung_ct, "_download", complete)
    DATASET.fetch(tmp_path, lambda text: None)
    assert place.read_bytes() == whole
