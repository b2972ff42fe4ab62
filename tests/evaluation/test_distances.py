"""Distances between weights (METRICS 3.4, 5.1)."""

from __future__ import annotations

import pytest
import torch

from evaluation.metrics.distances import l2_distance, layer_distances
from unlearning.state import State


def state(**params: object) -> State:
    return State({n: torch.as_tensor(v, dtype=torch.float32) for n, v in params.items()}, {}, {})


def test_two_layers_three_and_four_apart_are_five_apart() -> None:
    a, b = state(first=[3.0, 0.0], second=[[4.0]]), state(first=[0.0, 0.0], second=[[0.0]])
    assert l2_distance(a, b) == 5.0
    assert layer_distances(a, b)["distance"].tolist() == [3.0, 4.0]


def test_it_is_the_norm_of_the_concatenated_difference() -> None:
    torch.manual_seed(0)
    a, b = (state(w=torch.randn(5, 7), b=torch.randn(5)) for _ in range(2))
    flat = [torch.cat([t.double().flatten() for t in s.params.values()]) for s in (a, b)]
    assert l2_distance(a, b) == pytest.approx(float(torch.linalg.vector_norm(flat[0] - flat[1])), rel=1e-12)


def test_a_model_is_at_no_distance_from_itself() -> None:
    assert l2_distance(state(w=[1.0, 2.0]), state(w=[1.0, 2.0])) == 0.0


def test_negating_the_first_layer_is_twice_its_norm_away() -> None:
    gold = state(first=[3.0, 4.0], second=[1.0])
    assert l2_distance(state(first=[-3.0, -4.0], second=[1.0]), gold) == 10.0


def test_relative_distance_is_over_golds_norm() -> None:
    assert layer_distances(state(w=[6.0]), state(w=[4.0]))["relative"].iloc[0] == pytest.approx(0.5)


def test_buffers_do_not_count() -> None:
    a = State({"w": torch.ones(1)}, {"bn.running_mean": torch.ones(1)}, {})
    b = State({"w": torch.ones(1)}, {"bn.running_mean": torch.zeros(1)}, {})
    assert l2_distance(a, b) == 0.0


def test_the_order_of_names_does_not_matter() -> None:
    assert l2_distance(state(a=[1.0], b=[2.0]), state(b=[2.0], a=[1.0])) == 0.0


def test_missing_tensors_and_other_shapes_are_errors_not_truncated_or_broadcast() -> None:
    with pytest.raises(ValueError, match="adapter"):
        l2_distance(state(w=[1.0], adapter=[1.0]), state(w=[1.0]))
    with pytest.raises(ValueError, match="shapes"):
        l2_distance(state(w=[[1.0], [2.0]]), state(w=[[1.0, 2.0]]))
