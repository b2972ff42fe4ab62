"""Facts about a model's state in three groups."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unlearning.state import State, Update, apply_updates, distance, norm, update_of


def a_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_the_three_groups_are_disjoint_and_complete() -> None:
    model = a_model()
    state = State.from_module(model)
    assert set(state.params) == {n for n, _ in model.named_parameters()}
    assert set(state.float_buffers) == {"1.running_mean", "1.running_var"}
    assert set(state.int_buffers) == {"1.num_batches_tracked"}


def test_a_state_is_a_copy_and_round_trips_bit_for_bit() -> None:
    model = a_model()
    state = State.from_module(model)
    before = state.sha256()
    model(torch.randn(5, 3)).sum().backward()
    assert state.sha256() == before
    again = State.from_arrays(state.to_arrays())
    assert again.sha256() == before
    assert again.int_buffers["1.num_batches_tracked"].shape == ()
    other = a_model().apply(lambda m: m.reset_parameters() if hasattr(m, "reset_parameters") else None)
    state.load_into(other)
    assert State.from_module(other).sha256() == before


def test_loading_a_state_of_another_model_is_refused() -> None:
    state = State.from_module(a_model())
    with pytest.raises(ValueError, match="differ in"):
        state.load_into(nn.Linear(3, 4))
    with pytest.raises(ValueError, match="shape"):
        State({"weight": torch.zeros(2, 2), "bias": torch.zeros(4)}, {}, {}).load_into(nn.Linear(3, 4))


def test_weighted_updates_average_parameters_and_buffers_but_copy_counters() -> None:
    start = State({"w": torch.tensor([1.0])}, {"running_mean": torch.tensor([0.0])}, {"n": torch.tensor(7)})
    updates = [
        Update({"w": torch.tensor([1.0])}, {"running_mean": torch.tensor([2.0])}),
        Update({"w": torch.tensor([3.0])}, {"running_mean": torch.tensor([4.0])}),
    ]
    after = apply_updates(start, updates, [0.75, 0.25])
    assert after.params["w"].item() == 2.5
    assert after.float_buffers["running_mean"].item() == 2.5
    assert after.int_buffers["n"].item() == 7
    assert after.int_buffers["n"].dtype == torch.int64


def test_a_variance_never_becomes_negative() -> None:
    start = State({}, {"bn.running_var": torch.tensor([0.1])}, {})
    after = apply_updates(start, [Update({}, {"bn.running_var": torch.tensor([-1.0])})], [1.0])
    assert after.float_buffers["bn.running_var"].item() == 0.0


def test_update_of_inverts_apply_updates() -> None:
    start = State.from_module(a_model())
    moved = State({n: p + 0.5 for n, p in start.params.items()}, start.float_buffers, start.int_buffers)
    again = apply_updates(start, [update_of(moved, start)], [1.0])
    assert distance(again, moved) < 1e-6


def test_norm_and_distance_are_taken_over_parameters_only() -> None:
    a = State({"x": torch.tensor([3.0]), "y": torch.tensor([4.0])}, {"running_mean": torch.tensor([9.0])}, {})
    b = State({"x": torch.tensor([0.0]), "y": torch.tensor([0.0])}, {"running_mean": torch.tensor([0.0])}, {})
    assert a.norm() == 5.0
    assert norm({}) == 0.0
    assert distance(a, b) == 5.0


def test_models_with_other_tensors_have_no_distance() -> None:
    with pytest.raises(ValueError, match="differ"):
        distance(State({"x": torch.ones(1)}, {}, {}), State({"y": torch.ones(1)}, {}, {}))


def test_an_array_in_no_group_is_refused() -> None:
    with pytest.raises(ValueError, match="none of the groups"):
        State.from_arrays({"weights/x": torch.ones(1).numpy()})


def test_finite_means_parameters_and_float_buffers() -> None:
    assert not State({"x": torch.tensor([float("nan")])}, {}, {}).is_finite()
    assert not State({}, {"running_mean": torch.tensor([float("inf")])}, {}).is_finite()
    assert State({"x": torch.ones(1)}, {}, {"n": torch.tensor(1)}).is_finite()


def test_finite_tensors_whose_sum_overflows_are_finite():
    huge = State({"w": torch.full((8,), 3e38)}, {}, {})
    assert huge.is_finite()
    huge.params["w"][3] = -torch.inf
    assert not huge.is_finite()


def test_no_update_gives_a_copy_of_the_start_in_fp64_too():
    start = State({"w": torch.ones(2, dtype=torch.float64)}, {}, {})
    apply_updates(start, [], []).params["w"].fill_(5.0)
    assert start.params["w"].tolist() == [1.0, 1.0]
