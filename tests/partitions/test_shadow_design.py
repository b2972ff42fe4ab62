"""Which shadow trains on what, and which records are compared (METRICS 1.3-1.5)."""

from __future__ import annotations

from collections import Counter

import pytest

from partitions.shadow_design import matched, unlearning_design

FORGET = {f"f{index:03d}": str(index % 3) for index in range(60)}
HOLDOUT = {f"h{index:03d}": str(index % 2) for index in range(24)}


@pytest.mark.parametrize("shadows", [0, 3, -2])
def test_shadows_come_in_pairs(shadows: int) -> None:
    with pytest.raises(ValueError, match="even"):
        unlearning_design(FORGET, HOLDOUT, shadows, 0)


def test_both_sides_of_a_match_have_one_histogram_and_no_record_more_than_there_is() -> None:
    positives, negatives = matched(FORGET, HOLDOUT, 0)
    assert Counter(FORGET[name] for name in positives) == Counter(HOLDOUT[name] for name in negatives)
    assert Counter(HOLDOUT[name] for name in negatives) == {"0": 12, "1": 12}
    assert len(set(positives)) == len(positives) == 24


def test_the_smaller_side_rules_in_each_stratum() -> None:
    positives, negatives = matched({"a": "x", "b": "y"}, {"c": "x", "d": "x", "e": "y", "g": "z"}, 0)
    assert positives == ("a", "b")
    assert len(negatives) == 2
    assert "g" not in negatives


def test_no_shared_stratum_leaves_nothing() -> None:
    assert matched({"a": "x"}, {"b": "y"}, 0) == ((), ())
    assert matched({}, {}, 0) == ((), ())


def test_a_record_on_both_sides_is_an_error() -> None:
    with pytest.raises(ValueError, match="'a' is both"):
        matched({"a": "x"}, {"a": "x"}, 0)


def test_a_match_follows_names_and_seed_not_order() -> None:
    backwards = [dict(reversed(list(side.items()))) for side in (FORGET, HOLDOUT)]
    assert matched(*backwards, 0) == matched(FORGET, HOLDOUT, 0)
    assert matched(FORGET, HOLDOUT, 1)[0] != matched(FORGET, HOLDOUT, 0)[0]


def test_the_challenged_records_are_the_holdouts_and_as_many_of_the_request() -> None:
    design = unlearning_design(FORGET, HOLDOUT, 8, 0)
    assert set(design.holdout) <= set(HOLDOUT)
    assert set(design.unlearned) <= set(FORGET)
    assert len(design.unlearned) == len(design.holdout) == 24 <= len(FORGET)
    assert set(design.rest) == set(FORGET) - set(design.unlearned)
    assert set(design.challenged) == set(design.unlearned) | set(design.holdout)


def test_there_are_at_most_as_many_holdouts_as_the_request_has_records() -> None:
    design = unlearning_design({"a": "x", "b": "x"}, {f"h{i}": "x" for i in range(9)}, 4, 0)
    assert len(design.holdout) == 2
    assert design.rest == ()


def test_every_shadow_forgets_a_set_like_the_request() -> None:
    design = unlearning_design(FORGET, HOLDOUT, 8, 0)
    for shadow in range(8):
        forgets = design.forget_set(shadow)
        assert len(set(forgets)) == len(FORGET)
        assert Counter((FORGET | HOLDOUT)[name] for name in forgets) == Counter(FORGET.values())
        assert set(design.rest) <= set(forgets)


def test_halves_are_complementary_in_pairs_so_half_of_the_shadows_forget_a_record() -> None:
    design = unlearning_design(FORGET, HOLDOUT, 8, 0)
    assert (design.forgotten[::2] == ~design.forgotten[1::2]).all()
    assert (design.forgotten.sum(axis=0) == 4).all()
    assert set(design.forget_set(0)) & set(design.forget_set(1)) == set(design.rest)
    assert (design.forgotten[0] != design.forgotten[2]).any()


def test_a_shadow_mixes_holdouts_and_records_of_the_request() -> None:
    design = unlearning_design(FORGET, HOLDOUT, 8, 0)
    of_holdout = design.forgotten[:, len(design.unlearned) :].sum(axis=1)
    assert 0 < of_holdout.min() <= of_holdout.max() < 24


def test_the_design_follows_names_and_seed_not_order() -> None:
    backwards = [dict(reversed(list(side.items()))) for side in (FORGET, HOLDOUT)]
    straight, mixed, other = (
        unlearning_design(*sides, 8, seed)
        for sides, seed in (((FORGET, HOLDOUT), 0), (backwards, 0), ((FORGET, HOLDOUT), 1))
    )
    assert straight.challenged == mixed.challenged
    assert (straight.forgotten == mixed.forgotten).all()
    assert [straight.forget_set(s) for s in range(8)] != [other.forget_set(s) for s in range(8)]


def test_without_a_shared_stratum_every_shadow_forgets_the_request_itself() -> None:
    design = unlearning_design({"a": "x"}, {"b": "y"}, 2, 0)
    assert design.challenged == ()
    assert design.forget_set(0) == design.forget_set(1) == ("a",)
