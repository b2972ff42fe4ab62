"""Oracles of METHODS 1.7: one tensor is negated, exactly, and which one."""

import pytest
import torch
from torch import nn

from clients.models.cnn import MODEL as CNN
from clients.models.resnet18 import MODEL as RESNET
from unlearning.layers import layers_of
from unlearning.state import State
from unlearning.weight_negation import first_layer, negate


def network(bias: bool = True, batch_norm: bool = True) -> nn.Sequential:
    torch.manual_seed(3)
    norm = [nn.BatchNorm2d(4)] if batch_norm else []
    model = nn.Sequential(nn.Conv2d(1, 4, 3, bias=bias), *norm, nn.Tanh(), nn.Flatten(), nn.Linear(16, 2, bias=bias))
    return model.train() if not batch_norm else _used(model)


def _used(model: nn.Sequential) -> nn.Sequential:
    model.train()
    for _ in range(3):
        model(2 + torch.randn(8, 1, 4, 4))
    return model


def parts(state: State) -> dict[str, torch.Tensor]:
    return state.params | state.float_buffers | state.int_buffers


EXAMPLE = torch.zeros(1, 1, 4, 4)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_exactly_one_tensor_differs_and_is_its_negative(batch_norm):
    model = network(batch_norm=batch_norm)
    before = State.from_module(model)
    after = negate(before, first_layer(layers_of(model, EXAMPLE)))
    differing = [n for n, t in parts(before).items() if not torch.equal(t, parts(after)[n])]
    assert differing == ["0.weight"]
    assert torch.equal(after.params["0.weight"], -before.params["0.weight"])


@pytest.mark.parametrize("bias", [False, True])
def test_twice_is_the_identity(bias):
    model = network(bias)
    before = State.from_module(model)
    layer = first_layer(layers_of(model, EXAMPLE))
    assert negate(negate(before, layer), layer).sha256() == before.sha256()


def test_the_output_of_an_odd_network_without_biases_is_negated():
    model = network(bias=False, batch_norm=False).double()
    x = torch.randn(5, 1, 4, 4, dtype=torch.float64)
    before = model(x)
    negate(State.from_module(model), first_layer(layers_of(model, EXAMPLE.double()))).load_into(model)
    assert torch.allclose(model(x), -before, atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
def test_the_corrected_mean_is_that_of_the_negated_layer(bias):
    model = network(bias).eval()
    layer = first_layer(layers_of(model, EXAMPLE))
    convolution, norm = model[0], model[1]
    x = 2 + torch.randn(64, 1, 4, 4)
    with torch.no_grad():
        norm.running_mean.copy_(convolution(x).mean((0, 2, 3)))
        negate(State.from_module(model), layer, negate_bn_mean=True).load_into(model)
        assert torch.allclose(norm.running_mean, convolution(x).mean((0, 2, 3)), atol=1e-5)


def test_the_original_leaves_the_running_mean():
    model = network()
    before = State.from_module(model)
    after = negate(before, first_layer(layers_of(model, EXAMPLE)))
    assert torch.equal(after.float_buffers["1.running_mean"], before.float_buffers["1.running_mean"])


def test_the_first_convolution_run_is_chosen_and_without_one_the_first_linear_layer():
    shape = torch.zeros(1, 3, 32, 32)
    assert first_layer(layers_of(CNN.build((3, 32, 32), 6), shape)).weight == "0.weight"
    assert first_layer(layers_of(RESNET.build((3, 32, 32), 6), shape)).weight == "conv1.weight"
    embedding_first = nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 1, 2))
    assert first_layer(layers_of(embedding_first, torch.zeros(1, 4))).weight == "2.weight"
    flat = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 4), nn.Linear(4, 2))
    assert first_layer(layers_of(flat, EXAMPLE)).weight == "2.weight"
    assert first_layer(()) is None
