"""Soft targets and their divergence, against scipy and torch."""

import math

import pytest
import torch
from scipy.stats import entropy
from torch.nn.functional import cross_entropy

from unlearning.outputs import Given, divergence, soft_targets


def logits(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 4.0])
def test_the_divergence_is_scipys_of_the_softened_outputs(temperature):
    teacher, student = logits(6, 4), logits(6, 4) * 2 + 1
    targets = soft_targets(teacher, temperature)
    expected = entropy(targets.numpy().T, torch.softmax(student / temperature, 1).numpy().T).mean()
    assert float(divergence(student, targets, temperature)) == pytest.approx(expected, rel=1e-12)


def test_a_certain_target_gives_minus_the_log_of_its_probability():
    student = torch.tensor([[0.3, -1.2]], dtype=torch.float64)
    value = divergence(student, torch.tensor([[1.0, 0.0]], dtype=torch.float64), 1.0)
    assert float(value) == pytest.approx(-math.log(torch.softmax(student, 1)[0, 0]), rel=1e-12)


def test_equal_outputs_have_no_divergence_and_no_gradient():
    student = logits(5, 3).requires_grad_(True)
    value = divergence(student, soft_targets(student, 2.0), 2.0)
    (gradient,) = torch.autograd.grad(value, student)
    assert abs(float(value)) < 1e-15 and gradient.abs().max() < 1e-15


def test_positions_count_like_records():
    teacher, student = logits(2, 3, 4, 4), logits(2, 3, 4, 4) + 1
    student[:, 0] *= 2
    flat = [z.permute(0, 2, 3, 1).reshape(-1, 3) for z in (teacher, student)]
    whole = divergence(student, soft_targets(teacher, 2.0), 2.0)
    assert float(whole) == pytest.approx(float(divergence(flat[1], soft_targets(flat[0], 2.0), 2.0)), rel=1e-12)


def test_targets_take_no_gradient_and_half_precision_is_widened():
    assert not soft_targets(logits(2, 3).requires_grad_(True), 1.0).requires_grad
    assert soft_targets(torch.zeros(1, 3, dtype=torch.bfloat16), 1.0).dtype == torch.float32
    assert divergence(torch.zeros(1, 3, dtype=torch.float16), torch.full((1, 3), 1 / 3), 1.0).dtype == torch.float32


def test_a_loss_on_given_outputs_is_the_loss_of_the_model_that_gave_them():
    torch.manual_seed(0)
    model, x, y = torch.nn.Linear(5, 3), torch.randn(4, 5), torch.tensor([0, 1, 2, 0])

    def loss(network, x, y):
        return cross_entropy(network(x), y)

    direct, given = (torch.autograd.grad(loss(m, x, y), model.weight)[0] for m in (model, Given(model(x))))
    assert torch.equal(direct, given)
