"""Oracles of METHODS 1.8."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, kl_div

from unlearning.fedquit import distil, quit_loss, quit_targets
from unlearning.state import State, distance


def model(batch_norm: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(8)] if batch_norm else []
    return nn.Sequential(nn.Linear(5, 8), *middle, nn.ReLU(), nn.Linear(8, 3))


def records(n: int = 12):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 5, generator=generator), torch.randint(0, 3, (n,), generator=generator)


def test_the_targets_of_the_specification():
    q = quit_targets(torch.tensor([[2.0, 1.0, 0.0, -1.0]]), torch.tensor([0]), temperature=4.0)
    assert torch.allclose(q, torch.tensor([[0.20273, 0.33424, 0.26031, 0.20273]]), atol=5e-6)
    assert float(q.sum()) == pytest.approx(1.0)


def test_the_ratios_among_the_other_classes_are_the_global_models():
    logits = torch.tensor([[2.0, 1.0, 0.3, -1.0]], dtype=torch.float64)
    q = quit_targets(logits, torch.tensor([0]), temperature=2.0)
    p = torch.softmax(logits / 2.0, dim=1)
    assert torch.allclose(q[0, 1] / q[0, 2], p[0, 1] / p[0, 2])
    assert torch.allclose(q[0, 1] / q[0, 3], p[0, 1] / p[0, 3])


def test_the_minimum_is_taken_over_all_classes():
    q = quit_targets(torch.tensor([[-1.0, 0.0, 3.0]]), torch.tensor([0]), temperature=1.0)
    assert torch.allclose(q, torch.softmax(torch.tensor([[-1.0, 0.0, 3.0]]), dim=1))


def test_two_classes_give_a_uniform_teacher():
    assert torch.allclose(quit_targets(torch.tensor([[4.0, -2.0]]), torch.tensor([0]), 1.0), torch.full((1, 2), 0.5))


def test_the_global_logits_are_not_changed():
    logits = torch.tensor([[2.0, 1.0]])
    quit_targets(logits, torch.tensor([0]), 1.0)
    assert logits.tolist() == [[2.0, 1.0]]


def test_the_loss_is_torchs_batch_mean_divergence():
    x, y = records()
    z = model()(x).detach()
    targets, student = quit_targets(z, y, 4.0), torch.randn_like(z)
    expected = kl_div(torch.log_softmax(student / 4.0, 1), targets, reduction="batchmean")
    assert quit_loss(student, targets, 4.0, scale_t2=False) == pytest.approx(float(expected), rel=1e-6)
    assert quit_loss(student, targets, 4.0, scale_t2=True) == pytest.approx(16 * float(expected), rel=1e-6)


def test_positions_count_like_records():
    z, y = torch.randn(2, 3, 4, 4), torch.randint(0, 3, (2, 4, 4))
    q = quit_targets(z, y, 1.0)
    flat = quit_targets(z.permute(0, 2, 3, 1).reshape(-1, 3), y.reshape(-1), 1.0)
    assert torch.allclose(q.permute(0, 2, 3, 1).reshape(-1, 3), flat)
    student = torch.randn_like(z)
    assert quit_loss(student, q, 1.0, False) == pytest.approx(
        float(quit_loss(student.permute(0, 2, 3, 1).reshape(-1, 3), flat, 1.0, False)), rel=1e-5
    )


def test_half_precision_logits_are_compared_in_fp32():
    assert quit_targets(torch.zeros(1, 3, dtype=torch.bfloat16), torch.tensor([0]), 1.0).dtype == torch.float32


def test_no_signal_where_the_true_class_is_the_smallest_already():
    student = model().double()
    teacher = copy.deepcopy(student)
    x, _ = records()
    with torch.no_grad():
        y = teacher.eval()(x.double()).argmin(dim=1)
    before = State.from_module(student)
    run = distil(student, teacher, [[(x.double(), y)]], temperature=4.0, scale_t2=False, lr=1.0, bn_mode="eval")
    assert run.status == "ok" and run.loss == pytest.approx(0.0, abs=1e-15)
    assert distance(State.from_module(student), before) < 1e-15  # the gradient is zero but for rounding


def test_distilling_lowers_the_probability_of_the_true_class():
    student = model(batch_norm=False)
    teacher = copy.deepcopy(student)
    x, _ = records()
    y = teacher(x).argmax(dim=1)
    before = cross_entropy(student(x), y).item()
    distil(student, teacher, [[(x, y)]] * 20, temperature=1.0, scale_t2=False, lr=0.5)
    assert cross_entropy(student(x), y).item() > before


def test_the_teacher_never_changes():
    student = model()
    teacher = copy.deepcopy(student)
    x, y = records()
    before = State.from_module(teacher).sha256()
    distil(student, teacher, [[(x, y)]], temperature=1.0, scale_t2=False, lr=0.1)
    assert State.from_module(teacher).sha256() == before


def test_a_learning_rate_of_zero_keeps_the_parameters():
    student = model()
    teacher = copy.deepcopy(student)
    before = State.from_module(student)
    distil(student, teacher, [[records()]], temperature=1.0, scale_t2=False, lr=0.0)
    assert all(torch.equal(t, before.params[n]) for n, t in State.from_module(student).params.items())


def test_adam_is_the_authors_optimiser():
    student = model(batch_norm=False)
    teacher, plain = copy.deepcopy(student), copy.deepcopy(student)
    x, y = records()
    distil(student, teacher, [[(x, y)]], temperature=1.0, scale_t2=False, lr=1e-4, optimizer="adam")
    optimizer = torch.optim.Adam(plain.parameters(), lr=1e-4)
    quit_loss(plain(x), quit_targets(teacher(x), y, 1.0), 1.0, False).backward()
    optimizer.step()
    assert State.from_module(student).sha256() == State.from_module(plain).sha256()
