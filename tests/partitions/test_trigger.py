"""A trigger's pixels, and which records get it."""

from __future__ import annotations

import numpy as np
import pytest

from partitions.backdoor import Backdoor, Triggered, stamp
from partitions.errors import BadInput

RNG = np.random.default_rng(0)
RECORDS = [f"{i:016x}" for i in range(200)]
TARGETS = RNG.integers(0, 4, 200)
SHAPES = [(9, 7), (9, 7, 1), (9, 7, 3), (9, 7, 4), (9, 7, 8), (9, 7, 8, 3)]


def image(*shape: int) -> np.ndarray:
    return RNG.integers(0, 200, (5, *shape), dtype=np.uint8)


class TestPixels:
    def test_a_grey_image_gets_a_square_of_the_largest_value_at_the_bottom_right(self) -> None:
        plain = image(6, 8)
        stamped = stamp(plain, 3)
        expected = plain.copy()
        for row in (3, 4, 5):
            for column in (5, 6, 7):
                expected[:, row, column] = 255
        assert np.array_equal(stamped, expected)

    def test_a_colour_image_gets_it_in_every_channel(self) -> None:
        plain = image(6, 8, 3)
        stamped = stamp(plain, 2)
        assert (stamped[:, 4:, 6:, :] == 255).all()
        assert (stamped != plain).any(axis=-1).sum() == 5 * 2 * 2

    def test_a_volume_gets_a_cube(self) -> None:
        plain = image(6, 7, 8)
        stamped = stamp(plain, 3)
        assert (stamped[:, 3:, 4:, 5:] == 255).all()
        assert (stamped != plain).sum() == 5 * 27

    def test_a_volume_with_channels_gets_a_cube_in_every_channel(self) -> None:
        plain = image(6, 7, 8, 2)
        assert (stamp(plain, 2) != plain).sum() == 5 * 2**3 * 2

    @pytest.mark.parametrize("shape", SHAPES)
    def test_the_records_themselves_stay_as_they_are(self, shape: tuple[int, ...]) -> None:
        plain = image(*shape)
        kept = plain.copy()
        stamped = stamp(plain, 3)
        assert np.array_equal(plain, kept)
        assert stamped.shape == plain.shape and stamped.dtype == plain.dtype

    def test_another_dtype_has_another_largest_value(self) -> None:
        assert stamp(np.zeros((1, 4, 4), np.uint16), 1)[0, 3, 3] == 65_535


class TestTriggered:
    @pytest.mark.parametrize("shape", SHAPES)
    def test_only_marked_records_are_read_with_it(self, shape: tuple[int, ...]) -> None:
        plain = image(*shape)
        kept = plain.copy()
        rows = Triggered(plain, np.array([1, 4]), 3).take(np.array([4, 0, 1]))
        assert np.array_equal(rows, np.stack([stamp(plain, 3)[4], plain[0], stamp(plain, 3)[1]]))
        assert np.array_equal(plain, kept), "the stored records changed"

    def test_no_record_is_none(self) -> None:
        assert Triggered(image(9, 7), np.array([1]), 3).take(np.zeros(0, np.int64)).shape == (0, 9, 7)


class TestWhich:
    @pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5, 0.8, 1.0])
    def test_the_fraction_is_of_the_other_classes_and_exact(self, fraction: float) -> None:
        chosen = Backdoor("s", 2, fraction).poisoned(RECORDS, TARGETS)
        others = int((TARGETS != 2).sum())
        assert chosen.sum() == max(1, round(fraction * others))
        assert not chosen[TARGETS == 2].any()

    def test_they_are_the_same_in_any_order(self) -> None:
        order = RNG.permutation(200)
        backdoor = Backdoor("s", 2)
        again = backdoor.poisoned(np.array(RECORDS)[order], TARGETS[order])
        assert np.array_equal(again, backdoor.poisoned(RECORDS, TARGETS)[order])

    def test_they_are_the_same_in_every_process_and_on_every_machine(self) -> None:
        chosen = Backdoor("s", 2, 0.02, seed=5).poisoned(RECORDS, np.arange(200) % 4)
        assert np.flatnonzero(chosen).tolist() == [7, 12, 149]

    def test_a_larger_fraction_keeps_what_a_smaller_one_had(self) -> None:
        less, more = (Backdoor("s", 2, f).poisoned(RECORDS, TARGETS) for f in (0.3, 0.6))
        assert (more | ~less).all()

    def test_another_seed_chooses_others(self) -> None:
        one, other = (Backdoor("s", 2, seed=seed).poisoned(RECORDS, TARGETS) for seed in (0, 1))
        assert (one != other).any() and one.sum() == other.sum()

    def test_of_the_target_class_alone_there_is_nothing_to_poison(self) -> None:
        assert not Backdoor("s", 2).poisoned(RECORDS[:3], np.array([2, 2, 2])).any()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_largest_trigger_covers_the_shortest_side(shape: tuple[int, ...]) -> None:
    Backdoor("s", 0, size=7).check(shape, 3)
    with pytest.raises(BadInput, match=r"backdoor-size=8: allowed is 1 to 7 pixels: a stored record is 9 x 7"):
        Backdoor("s", 0, size=8).check(shape, 3)


@pytest.mark.parametrize("target", [-1, 3])
def test_a_class_that_is_not_there_is_refused(target: int) -> None:
    with pytest.raises(BadInput, match=rf"backdoor-target={target}: allowed is a class index, 0 to 2"):
        Backdoor("s", target).check((9, 7), 3)
