"""Oracles of METHODS 2.3."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import kl_div

from unlearning.bad_teacher import two_teachers
from unlearning.local import run_epochs
from unlearning.state import State, distance


def classifier(seed: int = 0, batch_norm: bool = True) -> nn.Sequential:
    torch.manual_seed(seed)
    middle = [nn.BatchNorm1d(8)] if batch_norm else []
    return nn.Sequential(nn.Linear(5, 8), *middle, nn.ReLU(), nn.Linear(8, 4)).double()


def uniform() -> nn.Module:
    teacher = nn.Linear(5, 4).double()
    nn.init.zeros_(teacher.weight), nn.init.zeros_(teacher.bias)
    return teacher


def inputs(n: int = 6) -> torch.Tensor:
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


NONE, ALL = torch.zeros(6, dtype=torch.bool), torch.ones(6, dtype=torch.bool)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_without_forget_records_the_student_that_is_its_teacher_has_no_loss_and_no_gradient(batch_norm):
    student = classifier(batch_norm=batch_norm).eval()
    value = two_teachers(uniform(), copy.deepcopy(student), temperature=1.0)(student, inputs(), NONE)
    gradients = torch.autograd.grad(value, list(student.parameters()))
    assert abs(float(value.detach())) < 1e-15 and all(g.abs().max() < 1e-15 for g in gradients)


def test_a_uniform_teacher_gives_the_closed_form_which_is_zero_only_for_a_uniform_student():
    student = classifier().eval()
    value = two_teachers(uniform(), student, temperature=1.0)(student, inputs(), ALL)
    expected = (-math.log(4) - torch.log_softmax(student(inputs()), 1).mean(1)).mean()
    assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=1e-12) and value > 1e-3
    assert float(two_teachers(uniform(), student, temperature=1.0)(uniform(), inputs(), ALL).detach()) == pytest.approx(
        0
    )


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_mean_times_the_classes_is_the_batch_mean_and_both_are_torchs(temperature):
    student, bad = classifier(1).eval(), classifier(2)
    log_student = torch.log_softmax(student(inputs()) / temperature, 1)
    targets = torch.softmax(bad.eval()(inputs()) / temperature, 1)
    for reduction in ("mean", "batchmean"):
        value = two_teachers(bad, bad, temperature=temperature, reduction=reduction)(student, inputs(), ALL)
        expected = kl_div(log_student, targets, reduction=reduction)
        assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    assert float(value.detach()) == pytest.approx(
        4 * float(two_teachers(bad, bad, temperature=temperature, reduction="mean")(student, inputs(), ALL).detach())
    )


def test_each_record_has_its_own_teacher():
    student, bad, good = classifier(1).eval(), classifier(2), classifier(3)
    mixed = torch.tensor([True, False, False, True, False, True])
    both = two_teachers(bad, good, temperature=1.0)
    parts = [both(student, inputs()[mixed], ALL[mixed]), both(student, inputs()[~mixed], NONE[~mixed])]
    assert float(both(student, inputs(), mixed).detach()) == pytest.approx(float(sum(parts).detach()) / 2, rel=1e-12)
    assert float(parts[0].detach()) == pytest.approx(
        float(two_teachers(bad, student, temperature=1.0)(student, inputs()[mixed], ALL[mixed]).detach())
    )


def test_positions_of_a_record_have_the_record_s_teacher():
    def network(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Conv2d(1, 3, 1).double()

    x = torch.randn(2, 1, 4, 4, dtype=torch.float64)
    student, bad, good = (network(seed) for seed in (1, 2, 3))
    forget = torch.tensor([True, False])
    both = two_teachers(bad, good, temperature=1.0)
    halves = both(student, x[:1], forget[:1]) + both(student, x[1:], forget[1:])
    assert float(both(student, x, forget).detach()) == pytest.approx(float(halves.detach()) / 2, rel=1e-12)


def test_the_teachers_are_in_eval_mode_and_never_change():
    student, bad, good = classifier(), classifier(2).train(), classifier().train()
    before = [State.from_module(m).sha256() for m in (bad, good)]
    run_epochs(student, two_teachers(bad, good, temperature=1.0), [[(inputs(), ALL)]], lr=0.1, bn_mode="train")
    assert [State.from_module(m).sha256() for m in (bad, good)] == before
    assert not bad.training and not good.training


def test_the_student_comes_nearer_to_the_bad_teacher_on_forget_records_and_stays_with_the_good_one():
    student, bad = classifier(0, batch_norm=False), classifier(5, batch_norm=False)
    good = copy.deepcopy(student)
    forget = torch.tensor([True, True, True, False, False, False])

    def gap(teacher: nn.Module, which: torch.Tensor) -> float:
        x = inputs()[which]
        return float((torch.softmax(student(x), 1) - torch.softmax(teacher(x), 1)).abs().sum(1).mean().detach())

    before = gap(bad, forget)
    run_epochs(student, two_teachers(bad, good, temperature=1.0), [[(inputs(), forget)]] * 300, lr=0.3)
    assert gap(bad, forget) < before / 2 and gap(good, ~forget) < before / 2


def test_a_learning_rate_of_zero_keeps_the_parameters():
    student = classifier()
    before = State.from_module(student)
    run_epochs(student, two_teachers(classifier(2), classifier(), temperature=1.0), [[(inputs(), ALL)]], lr=0.0)
    assert distance(State.from_module(student), before) == 0.0
