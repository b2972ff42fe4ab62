"""Oracles of METHODS 1.3 on the reference, the ball and the ascent in it."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from unlearning.ga import ascend
from unlearning.pga import Ball, ascend_in_ball, auto_radius, gap, reference
from unlearning.state import State, apply_updates, distance, update_of


def scalar(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(value, dtype=torch.float64)}


def classifier(batch_norm: bool = False, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    middle = [nn.BatchNorm1d(8)] if batch_norm else []
    return nn.Sequential(nn.Linear(5, 8), *middle, nn.ReLU(), nn.Linear(8, 3))


def task_loss(model, x, y):
    return cross_entropy(model(x), y)


def batches(epochs: int = 1):
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(12, 5, generator=generator), torch.randint(0, 3, (12,), generator=generator)
    return [[(x[i : i + 4], y[i : i + 4]) for i in range(0, 12, 4)] for _ in range(epochs)]


# ---------------------------------------------------------------------- the reference
def test_the_reference_is_the_others_weighted_mean():
    assert float(reference(scalar(1.9), [scalar(1.0)], [0.5])["w"]) == pytest.approx(2.8)
    assert float(reference(scalar(1.9), [scalar(1.0), scalar(4.0)], [0.5, 0.2])["w"]) == pytest.approx(2.0)


def test_nobody_to_take_out_leaves_the_model():
    assert torch.equal(reference(scalar(1.9), [], [])["w"], scalar(1.9)["w"])


def test_where_all_have_the_same_model_the_reference_is_it():
    same = State.from_module(classifier()).params
    found = reference(same, [same], [0.4])
    assert all(torch.allclose(found[n], t, rtol=1e-6, atol=0) for n, t in same.items())


@pytest.mark.parametrize("share", [1.0, 1.0 - 1e-7])
def test_a_reference_without_anybody_left_is_refused(share):
    with pytest.raises(ValueError, match="nothing is left"):
        reference(scalar(1.0), [scalar(1.0)], [share])


def test_the_authors_radius_is_in_unsquared_units():
    assert auto_radius(scalar(0.0), [scalar(3.0), scalar(-6.0)]) == pytest.approx(math.sqrt((9 + 36) / 2 / 3))


# ---------------------------------------------------------------------- the ball
@pytest.mark.parametrize(("moved", "radius", "expected"), [(3.0, 2.0, 2.0), (3.0, 4.0, 3.0), (-3.0, 0.5, -0.5)])
def test_a_point_outside_moves_to_the_surface_and_one_inside_stays(moved, radius, expected):
    model = nn.Linear(1, 1, bias=False).double()
    start = model.weight.item()
    ball = Ball(model, radius)
    with torch.no_grad():
        model.weight += moved
    ball.project()
    assert model.weight.item() - start == pytest.approx(expected)
    assert ball.distance() == pytest.approx(abs(expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("radius", [1e-9, 1e-4, 0.1])
def test_a_ball_smaller_than_the_rounding_is_kept_too(dtype, radius):
    model = classifier().to(dtype)
    ball = Ball(model, radius)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1.0
    ball.project()
    assert ball.distance() <= radius


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_model_that_is_not_finite_is_left_for_the_guard_to_see(value):
    model = classifier()
    ball = Ball(model, 1.0)
    with torch.no_grad():
        model[0].weight[0, 0] = value
    ball.project()
    assert not math.isfinite(ball.distance())


def test_the_distance_is_not_squared():
    assert gap([torch.tensor([3.0, 0.0])], [torch.tensor([0.0, 4.0])]) == 5.0


def test_a_mean_of_models_in_the_ball_is_in_the_ball():
    centre = State.from_module(classifier())
    ends = []
    for seed in range(3):
        model = classifier()
        ball = Ball(model, 0.3)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn(parameter.shape, generator=generator)
        ball.project()
        ends.append(State.from_module(model))
    mean = apply_updates(centre, [update_of(end, centre) for end in ends], [0.2, 0.3, 0.5])
    assert distance(mean, centre) <= 0.3 * (1 + 1e-6)


# ---------------------------------------------------------------------- the ascent
@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("radius", [0.001, 0.5, 3.0])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_every_step_ends_in_the_ball(batch_norm, radius, momentum):
    model = classifier(batch_norm)
    ball, seen = Ball(model, radius), []
    ascend_in_ball(
        model,
        task_loss,
        batches(5),
        ball,
        lr=0.5,
        momentum=momentum,
        max_norm=5.0,
        stop_step=lambda: bool(seen.append(ball.distance())),
    )
    assert len(seen) == 15 and max(seen) <= radius
    assert seen[-1] == pytest.approx(radius, rel=1e-4), "the ascent reached the surface"


@pytest.mark.parametrize("batch_norm", [False, True])
def test_no_radius_returns_the_centre_exactly(batch_norm):
    model = classifier(batch_norm)
    before = State.from_module(model).sha256()
    run = ascend_in_ball(model, task_loss, batches(2), Ball(model, 0.0), lr=0.5, momentum=0.9)
    assert State.from_module(model).sha256() == before
    assert run.status == "ok" and run.steps == 6


def test_a_wide_ball_is_plain_ascent():
    plain, balled = classifier(), classifier()
    ascend(plain, task_loss, batches(2), lr=0.1, momentum=0.9, max_norm=5.0)
    ascend_in_ball(balled, task_loss, batches(2), Ball(balled, 1e9), lr=0.1, momentum=0.9, max_norm=5.0)
    assert State.from_module(plain).sha256() == State.from_module(balled).sha256()


def test_the_loss_rises_in_the_ball_and_is_told_as_the_task_loss():
    model = classifier()
    x, y = (torch.cat(parts) for parts in zip(*batches()[0], strict=True))
    start = task_loss(model, x, y).item()
    run = ascend_in_ball(model, task_loss, batches(5), Ball(model, 0.5), lr=0.1)
    assert task_loss(model, x, y).item() > start and run.loss > 0


def test_the_stop_by_step_ends_within_an_epoch():
    model = classifier()
    ball = Ball(model, 10.0)
    run = ascend_in_ball(model, task_loss, batches(4), ball, lr=0.2, stop_step=lambda: ball.distance() > 0.3)
    assert 0 < run.steps < 12 and run.steps % 3
    assert ball.distance() > 0.3


def test_the_stop_by_epoch_ends_after_it():
    model = classifier()
    run = ascend_in_ball(model, task_loss, batches(4), Ball(model, 10.0), lr=0.1, stop_epoch=lambda number: number == 2)
    assert run.steps == 6
