"""Oracles of METHODS 2.2 about the fresh start of the last layers."""

from __future__ import annotations

import pytest
import torch

from tests.unlearning.toy_nets import changed, layers, normed, plain, seeded
from unlearning.cf_k import last_layers
from unlearning.eu_k import reinitialised
from unlearning.layers import Layer
from unlearning.state import State


@pytest.mark.parametrize("build", [plain, normed])
def test_exactly_the_last_layers_change(build):
    model = seeded(build)
    state, chosen = State.from_module(model), last_layers(layers(model), 2)
    expected = {name for layer in chosen for name in layer.own}
    assert changed(state, reinitialised(state, chosen, 3)) == expected


def test_norms_keep_what_they_learnt():
    model = seeded(normed)
    state = State.from_module(model)
    fresh = reinitialised(state, last_layers(layers(model), 3), 3)
    assert not any("bn1" in name for name in changed(state, fresh))


def test_biases_are_zero_and_weights_are_normal_with_the_gain_of_relu():
    model = torch.nn.Sequential(torch.nn.Linear(200, 300))
    state = State.from_module(model)
    layer = Layer("0", "linear", "0.weight", "0.bias", "", 300)
    weight = reinitialised(state, (layer,), 0).params["0.weight"]
    wanted = (2 / 200) ** 0.5
    assert float(weight.std()) == pytest.approx(wanted, rel=0.02)
    assert abs(float(weight.mean())) < 3 * wanted / 60000**0.5
    assert float(reinitialised(state, (layer,), 0).params["0.bias"].abs().max()) == 0.0


def test_a_convolutions_fan_in_is_channels_times_positions():
    model = torch.nn.Sequential(torch.nn.Conv2d(32, 64, 5))
    state = State.from_module(model)
    weight = reinitialised(state, (Layer("0", "conv", "0.weight", "0.bias", "", 64),), 1).params["0.weight"]
    assert float(weight.std()) == pytest.approx((2 / (32 * 25)) ** 0.5, rel=0.02)


def test_the_seed_decides_and_the_dtype_stays():
    model = seeded(plain, dtype=torch.float64)
    state, chosen = State.from_module(model), last_layers(layers(model), 2)
    a, b, c = (reinitialised(state, chosen, seed) for seed in (1, 1, 2))
    assert a.sha256() == b.sha256() != c.sha256()
    assert a.params["8.weight"].dtype == torch.float64
