"""Oracles of METHODS 2.9."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from unlearning.advanced_neggrad import retain_minus_forget
from unlearning.local import run_epochs
from unlearning.state import State, distance


def classifier(batch_norm: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(8)] if batch_norm else []
    return nn.Sequential(nn.Linear(5, 8), *middle, nn.ReLU(), nn.Linear(8, 3))


def loss(model, x, y):
    return cross_entropy(model(x), y)


def records(n: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 5, generator=generator), torch.randint(0, 3, (n,), generator=generator)


def pairs(count: int = 3):
    return [(*records(4, 10 + i), *records(4, 20 + i)) for i in range(count)]


@pytest.mark.parametrize("batch_norm", [False, True])
def test_the_same_batch_on_both_sides_has_a_gradient_of_exactly_zero_in_eval_mode(batch_norm):
    model = classifier(batch_norm).eval()
    batch = records(6, 1)
    value = retain_minus_forget(loss)(model, *batch, *batch)
    gradients = torch.autograd.grad(value, list(model.parameters()))
    assert float(value.detach()) == 0.0 and all(not g.any() for g in gradients)


def test_one_joint_pass_gives_the_same_up_to_rounding_where_batch_norm_is_frozen():
    model = classifier().eval()
    (pair,) = pairs(1)
    two, joint = (retain_minus_forget(loss, joint=joint)(model, *pair) for joint in (False, True))
    assert float(two.detach()) == pytest.approx(float(joint.detach()), abs=1e-6)


@pytest.mark.parametrize(("joint", "passes"), [(False, 2), (True, 1)])
def test_batch_norm_sees_two_passes_or_a_joint_one(joint, passes):
    model = classifier()
    run_epochs(model, retain_minus_forget(loss, joint=joint), [pairs(1)], lr=0.0, bn_mode="train")
    assert int(model[1].num_batches_tracked) == passes


def test_the_value_is_the_difference_of_the_losses():
    model = classifier(batch_norm=False)
    xf, yf, xr, yr = pairs(1)[0]
    value = retain_minus_forget(loss, forget_weight=0.5)(model, xf, yf, xr, yr)
    expected = loss(model, xr, yr) - 0.5 * loss(model, xf, yf)
    assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)


def test_a_forget_weight_of_zero_is_fine_tuning_on_the_retain_batches():
    ours, plain = classifier(batch_norm=False), classifier(batch_norm=False)
    run_epochs(ours, retain_minus_forget(loss, forget_weight=0.0), [pairs()], lr=0.1, momentum=0.9)
    run_epochs(plain, loss, [[pair[2:] for pair in pairs()]], lr=0.1, momentum=0.9)
    assert State.from_module(ours).sha256() == State.from_module(plain).sha256()


def test_a_forget_batch_beyond_the_cap_has_no_gradient_and_one_below_it_has_its_own():
    def after(**settings) -> State:
        model = classifier(batch_norm=False)
        run_epochs(model, retain_minus_forget(loss, **settings), [pairs(1)], lr=0.1)
        return State.from_module(model)

    free, tuned = after(), after(forget_weight=0.0)
    assert after(cap=0.01).sha256() == tuned.sha256()
    assert after(cap=2 * math.log(3)).sha256() == free.sha256()
    assert distance(free, tuned) > 1e-3


def test_it_lowers_the_retain_loss_and_raises_the_forget_loss():
    model = classifier(batch_norm=False)
    pair = pairs(1)[0]
    before = [float(loss(model, *part).detach()) for part in (pair[:2], pair[2:])]
    run_epochs(model, retain_minus_forget(loss), [[pair]] * 10, lr=0.05)
    after = [float(loss(model, *part).detach()) for part in (pair[:2], pair[2:])]
    assert after[0] > before[0] and after[1] < before[1]


def test_both_halves_are_counted():
    run = run_epochs(classifier(), retain_minus_forget(loss), [pairs(2)], lr=0.0)
    assert (run.steps, run.examples) == (2, 16)
