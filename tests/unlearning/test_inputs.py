"""Facts about inputs that are optimised against a model: the model is what it was before."""

from __future__ import annotations

import torch
from torch import nn

from unlearning.inputs import held, optimise_inputs
from unlearning.local import set_modes
from unlearning.state import State


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def norm_of_logits(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).pow(2).mean()


def test_the_inputs_move_and_the_model_does_not() -> None:
    model = network()
    set_modes(model, "train")
    model[0].weight.requires_grad_(False)
    before, start = State.from_module(model).sha256(), torch.randn(5, 4)
    with torch.no_grad():
        found = optimise_inputs(model, start, norm_of_logits, steps=20, lr=0.1)
    model.eval()
    assert norm_of_logits(model, found) < norm_of_logits(model, start) / 2
    assert State.from_module(model).sha256() == before
    assert all(p.grad is None for p in model.parameters())
    assert [p.requires_grad for p in model.parameters()] == [False, True, True, True, True, True]


def test_modes_come_back_layer_by_layer() -> None:
    model = network()
    set_modes(model, "eval")
    with held(model):
        assert not model.training and not model[0].training
    assert model.training and model[0].training and not model[1].training


def test_no_steps_leave_the_start() -> None:
    start = torch.randn(2, 4)
    assert torch.equal(optimise_inputs(network(), start, norm_of_logits, steps=0, lr=0.1), start)
