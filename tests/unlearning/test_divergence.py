import math

import pytest
import torch
from torch import nn

from unlearning.divergence import DivergenceGuard, norm_of, too_far


def scalar_model(value: float) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def test_a_norm_of_ten_times_the_start_is_too_far_and_just_below_is_not():
    assert too_far(10.0, 1.0)
    assert not too_far(9.999, 1.0)
    assert too_far(math.inf, 1.0)
    assert too_far(math.nan, 0.0)


def test_a_start_of_zero_may_grow():
    assert not too_far(5.0, 0.0)


def test_the_norm_is_accumulated_in_fp64():
    model = nn.Linear(4, 1, bias=False)
    nn.init.constant_(model.weight, 1e25)
    assert norm_of(model) == pytest.approx(2e25)


def test_a_bad_step_goes_back_to_the_state_whose_loss_was_finite():
    model = scalar_model(1.0)
    guard = DivergenceGuard(model)
    assert guard.loss_is_usable(torch.tensor(0.5))
    with torch.no_grad():
        model.weight.fill_(11.0)
    assert not guard.step_is_usable()
    assert model.weight.item() == 1.0
    assert "norm" in guard.reason


def test_a_loss_that_is_not_finite_goes_back_past_the_step_that_led_to_it():
    model = scalar_model(1.0)
    guard = DivergenceGuard(model)
    assert guard.loss_is_usable(torch.tensor(0.5))
    with torch.no_grad():
        model.weight.fill_(2.0)
    assert guard.step_is_usable()
    assert not guard.loss_is_usable(torch.tensor(math.inf))
    assert model.weight.item() == 1.0


def test_buffers_go_back_too():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    guard = DivergenceGuard(model)
    model.train()(torch.full((4, 2), 100.0))
    assert not guard.loss_is_usable(torch.tensor(math.nan))
    assert torch.equal(model[1].running_mean, torch.zeros(2))
    assert int(model[1].num_batches_tracked) == 0
