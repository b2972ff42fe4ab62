"""Oracles of METHODS 2.8, which are those of 1.2."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from unlearning.ga import ascend
from unlearning.local import run_epochs
from unlearning.neggrad import negated
from unlearning.state import State


def classifier(batch_norm: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(8)] if batch_norm else []
    return nn.Sequential(nn.Linear(5, 8), *middle, nn.ReLU(), nn.Linear(8, 3))


def loss(model, x, y):
    return cross_entropy(model(x), y)


def epochs(count: int = 2):
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(12, 5, generator=generator), torch.randint(0, 3, (12,), generator=generator)
    return [[(x[i : i + 4], y[i : i + 4]) for i in range(0, 12, 4)] for _ in range(count)]


def test_one_step_of_linear_regression_is_the_hand_computed_one():
    w = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(w.weight, 1.0)
    one = [[(torch.ones(1, 1, dtype=torch.float64), torch.full((1, 1), 3.0, dtype=torch.float64))]]
    run_epochs(w, negated(lambda model, x, a: ((model(x) - a) ** 2).mean() / 2), one, lr=0.1)
    assert w.weight.item() == pytest.approx(1.0 + 0.1 * (1.0 - 3.0), abs=1e-15)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_without_weight_decay_it_is_gradient_ascent_bit_for_bit(batch_norm):
    ours, theirs = classifier(batch_norm), classifier(batch_norm)
    run_epochs(ours, negated(loss), epochs(), lr=0.05, momentum=0.9)
    ascend(theirs, loss, epochs(), lr=0.05, momentum=0.9)
    assert State.from_module(ours).sha256() == State.from_module(theirs).sha256()


@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_learning_rate_of_zero_and_no_epochs_are_the_identity(batch_norm):
    model = classifier(batch_norm)
    before = State.from_module(model).sha256()
    run_epochs(model, negated(loss), epochs(), lr=0.0, weight_decay=0.1)
    run_epochs(model, negated(loss), [], lr=1.0)
    assert State.from_module(model).sha256() == before


def test_the_forget_loss_rises_after_one_small_step():
    model = classifier(batch_norm=False)
    ((batch, *_),) = epochs(1)
    before = float(loss(model, *batch).detach())
    run_epochs(model, negated(loss), [[batch]], lr=1e-3)
    assert float(loss(model, *batch).detach()) > before


def test_without_a_clip_it_diverges_to_its_last_usable_state():
    model = classifier(batch_norm=False)
    run = run_epochs(model, negated(loss), epochs(60), lr=1.0)
    assert run.status == "diverged" and State.from_module(model).is_finite()
