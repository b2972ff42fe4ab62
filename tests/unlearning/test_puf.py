"""Oracles of METHODS 1.6 on the signed model."""

import pytest
import torch

from unlearning.puf import capped, signed_model
from unlearning.state import State, Update, apply_updates, distance, update_of


def state(seed: int) -> State:
    generator = torch.Generator().manual_seed(seed)
    return State(
        {"w": torch.randn(3, 2, generator=generator), "b": torch.randn(2, generator=generator)},
        {"bn.running_var": torch.rand(2, generator=generator)},
        {"bn.num_batches_tracked": torch.tensor(seed)},
    )


START = state(0)


def update(seed: int) -> Update:
    return update_of(state(seed), START)


def params_of(update_: Update, weight: float) -> State:
    return State({n: START.params[n] + weight * t for n, t in update_.params.items()}, {}, {})


def test_one_forget_holder_at_strength_one_mirrors_its_model():
    mirrored = signed_model(START, None, update(1), 0, 7, 1.0)
    expected = {n: 2 * t - state(1).params[n] for n, t in START.params.items()}
    assert distance(mirrored, State(expected, {}, {})) < 1e-6


def test_no_strength_is_the_identity():
    assert signed_model(START, None, update(1), 0, 7, 0.0).sha256() == START.sha256()


@pytest.mark.parametrize("strength", [0.0, 0.4, 20.0])
def test_both_kinds_weigh_by_their_records(strength):
    both = signed_model(START, update(1), update(2), 30, 10, strength)
    expected = {
        n: t + 0.75 * update(1).params[n] - 0.25 * strength * update(2).params[n] for n, t in START.params.items()
    }
    assert distance(both, State(expected, {}, {})) < 1e-5


def test_a_mean_over_sites_is_the_sum_over_all_records():
    """Sites with (retain, forget) records (30, 10), (0, 20) and (40, 0): N counts the records to forget."""
    sites = [(update(1), update(2), 30, 10), (None, update(3), 0, 20), (update(4), None, 40, 0)]
    models = [signed_model(START, *site, strength=1.5) for site in sites]
    merged = apply_updates(START, [update_of(m, START) for m in models], [0.4, 0.2, 0.4])
    expected = {
        n: t
        + (30 * update(1).params[n] + 40 * update(4).params[n]) / 100
        - 1.5 * (10 * update(2).params[n] + 20 * update(3).params[n]) / 100
        for n, t in START.params.items()
    }
    assert distance(merged, State(expected, {}, {})) < 1e-5


def test_buffers_stay_those_received():
    after = signed_model(START, update(1), update(2), 3, 4, 5.0)
    assert torch.equal(after.float_buffers["bn.running_var"], START.float_buffers["bn.running_var"])
    assert after.int_buffers["bn.num_batches_tracked"].dtype == torch.int64


def test_the_cap_keeps_the_direction():
    after = params_of(update(1), 1.0)
    short = capped(START, after, 0.25 * distance(after, START))
    assert distance(short, params_of(update(1), 0.25)) < 1e-6
    assert capped(START, after, 1e3) is after
    assert capped(START, START, 0.0) is START
