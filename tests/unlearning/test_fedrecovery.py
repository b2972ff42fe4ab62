"""Oracles of METHODS 1.10 that need no history."""

import math

import pytest
import torch

from unlearning.fedrecovery import Correction, aggregate_without, corrected, privacy_sigma, residual


def update(seed: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"w": scale * torch.randn(3, 2, generator=generator), "b": scale * torch.randn(2, generator=generator)}


def mean(updates, shares):
    return {n: sum(p * u[n].double() for u, p in zip(updates, shares, strict=True)) for n in updates[0]}


def close(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[n].double(), b[n].double(), atol=1e-6) for n in a)


UPDATES, SHARES = [update(1), update(2, 3.0), update(3, 0.5)], [0.5, 0.2, 0.3]


@pytest.mark.parametrize(("gone", "left"), [((0,), (1, 2)), ((2,), (0, 1)), ((0, 2), (1,))])
def test_the_others_step_is_their_own_weighted_mean(gone, left):
    found = aggregate_without(mean(UPDATES, SHARES), [UPDATES[i] for i in gone], [SHARES[i] for i in gone])
    total = sum(SHARES[i] for i in left)
    assert close(found, mean([UPDATES[i] for i in left], [SHARES[i] / total for i in left]))


def test_the_residual_is_the_share_of_the_difference():
    step = mean(UPDATES, SHARES)
    added = residual(step, aggregate_without(step, [UPDATES[0]], [0.5]))
    assert close(added, {n: 0.5 * (UPDATES[0][n] - step[n]) / 0.5 for n in step})


def test_nobody_left_takes_no_step():
    found = aggregate_without(UPDATES[0], [UPDATES[0]], [1.0])
    assert all(float(t.abs().sum()) == 0.0 for t in found.values())


def test_leaving_one_after_the_other_adds_up_to_leaving_at_once():
    step = mean(UPDATES, SHARES)
    first = aggregate_without(step, UPDATES[:1], SHARES[:1])
    both = aggregate_without(step, UPDATES[:2], SHARES[:2])
    one, other = residual(step, first), residual(first, both)
    assert close({n: one[n] + other[n] for n in one}, residual(step, both))


def test_one_round_removes_the_departed_exactly():
    start, step = update(9), mean(UPDATES, SHARES)
    others = aggregate_without(step, [UPDATES[1]], [0.2])
    correction = Correction("norm")
    correction.add(4.2, residual(step, others))
    end = {n: start[n].double() + step[n] for n in start}
    assert close(corrected(end, correction.value(), 1.0), {n: start[n] + others[n] for n in start})


def test_rounds_weigh_by_the_square_of_their_step():
    correction = Correction("norm")
    correction.add(3.0, {"w": torch.tensor(1.0)})
    correction.add(1.0, {"w": torch.tensor(10.0)})
    correction.add(4.0, None)
    assert float(correction.value()["w"]) == pytest.approx((3 * 1 + 1 * 10) / 8)


def test_the_whole_replay_sums_the_residuals():
    correction = Correction("sum")
    correction.add(3.0, {"w": torch.tensor(1.0)})
    correction.add(1.0, {"w": torch.tensor(10.0)})
    assert float(correction.value()["w"]) == 11.0


def test_rounds_that_never_moved_weigh_the_same():
    correction = Correction("norm")
    correction.add(0.0, {"w": torch.tensor(1.0)})
    correction.add(0.0, {"w": torch.tensor(4.0)})
    assert float(correction.value()["w"]) == 2.5


def test_who_took_no_part_corrects_nothing():
    correction = Correction("norm")
    correction.add(2.0, None)
    assert correction.value() == {}
    params = update(1)
    kept = corrected(params, {}, 1.0)
    assert all(torch.equal(kept[n], params[n]) for n in params)


def test_the_dtype_is_that_of_the_parameters():
    for dtype in (torch.float32, torch.float64):
        params = {"w": torch.ones(2, dtype=dtype)}
        assert corrected(params, {"w": torch.ones(2, dtype=torch.float64)}, 0.5)["w"].dtype == dtype


def test_the_dp_deviation_is_the_solution_of_its_equation():
    sigma = privacy_sigma(1.0, 1.0, 1e-5)
    assert sigma == pytest.approx(4.90056, abs=1e-5)
    assert 1 / (2 * sigma**2) + (1 / sigma) * math.sqrt(2 * math.log(1e5)) == pytest.approx(1.0)
    assert privacy_sigma(3.0, 1.0, 1e-5) == pytest.approx(3 * sigma)
    assert privacy_sigma(0.0, 1.0, 1e-5) == 0.0
