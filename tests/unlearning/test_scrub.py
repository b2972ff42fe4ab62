"""Oracles of METHODS 2.10."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, kl_div

from unlearning.local import run_epochs
from unlearning.scrub import decayed, parameter_distance, scrub_epochs, scrub_objective
from unlearning.state import State, distance


def classifier(batch_norm: bool = True, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    middle = [nn.BatchNorm1d(8)] if batch_norm else []
    return nn.Sequential(nn.Linear(5, 8), *middle, nn.ReLU(), nn.Linear(8, 3))


def loss(model, x, y):
    return cross_entropy(model(x), y)


def records(n: int = 8, seed: int = 1, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 5, generator=generator).to(dtype), torch.randint(0, 3, (n,), generator=generator)


def objective(teacher, *, temperature=2.0, gamma=1.0, alpha=0.5, smoothing=0.0):
    return scrub_objective(teacher, loss, temperature=temperature, gamma=gamma, alpha=alpha, smoothing=smoothing)


# ---------------------------------------------------------------------- max steps
@pytest.mark.parametrize("batch_norm", [False, True])
def test_the_first_max_step_has_no_gradient_in_eval_mode_and_moves_by_decay_alone(batch_norm):
    student = classifier(batch_norm).double()
    teacher = copy.deepcopy(student)
    before = State.from_module(student)
    x, _ = records(dtype=torch.float64)
    run_epochs(student, objective(teacher), [[(x,)]], lr=1.0, bn_mode="eval")
    assert distance(State.from_module(student), before) < 1e-14  # zero but for rounding
    run_epochs(student, objective(teacher), [[(x,)]], lr=0.1, weight_decay=0.5, bn_mode="eval")
    for name, tensor in State.from_module(student).params.items():
        assert torch.allclose(tensor, before.params[name] * (1 - 0.1 * 0.5), atol=1e-13)


def test_the_first_max_step_moves_where_batch_norm_trains():
    student = classifier()
    teacher = copy.deepcopy(student)
    before = State.from_module(student)
    run_epochs(student, objective(teacher), [[records()[:1]]], lr=0.1, bn_mode="train")
    assert distance(State.from_module(student), before) > 1e-3


def test_a_max_step_minimises_minus_t_squared_times_the_divergence_from_the_teacher():
    student, teacher = classifier(False, seed=1), classifier(False)
    x, _ = records()
    log_student = torch.log_softmax(student(x) / 4, 1)
    expected = -16 * kl_div(log_student, torch.softmax(teacher(x) / 4, 1), reduction="sum") / len(x)
    value = objective(teacher, temperature=4.0, gamma=9.0, alpha=9.0)(student, x)
    assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


def test_the_divergence_is_from_teacher_to_student():
    certain, student = nn.Linear(1, 2), nn.Linear(1, 2)
    with torch.no_grad():
        certain.bias.copy_(torch.tensor([200.0, 0.0])), certain.weight.zero_()
        student.bias.copy_(torch.tensor([0.4, 1.0])), student.weight.zero_()
    value = objective(certain, temperature=1.0)(student, torch.ones(3, 1))
    assert float(value.detach()) == pytest.approx(float(torch.log_softmax(student.bias, 0)[0].detach()), rel=1e-6)


def test_max_steps_drive_the_student_away_until_the_clip_or_the_guard_hold_it():
    def away(**settings):
        student, teacher = classifier(False, seed=1), classifier(False)
        start = State.from_module(student)
        run = run_epochs(student, objective(teacher), [[records()[:1]]] * 40, **settings)
        return run, distance(State.from_module(student), start)

    run, moved = away(lr=0.01, max_norm=5.0)
    assert run.status == "ok" and 0 < moved <= 40 * 0.01 * 5.0 * 1.001
    run, _ = away(lr=50.0)
    assert run.status == "diverged"


# ---------------------------------------------------------------------- min steps
def test_a_min_step_weighs_the_task_loss_and_the_divergence():
    student, teacher = classifier(False, seed=1), classifier(False)
    x, y = records()
    away = -objective(teacher, temperature=2.0)(student, x)
    expected = 0.7 * loss(student, x, y) + 0.3 * away
    value = objective(teacher, temperature=2.0, gamma=0.7, alpha=0.3)(student, x, y)
    assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_without_max_epochs_and_without_the_teacher_it_is_fine_tuning(batch_norm):
    tuned, plain = classifier(batch_norm), classifier(batch_norm)
    epochs = [[records(8, 3), records(8, 4)], [records(8, 5)]]
    run_epochs(
        tuned,
        objective(classifier(batch_norm), alpha=0.0),
        scrub_epochs([], epochs, max_first=True),
        lr=0.1,
        momentum=0.9,
        bn_mode="train",
    )
    run_epochs(plain, loss, epochs, lr=0.1, momentum=0.9, bn_mode="train")
    assert State.from_module(tuned).sha256() == State.from_module(plain).sha256()


def test_a_step_is_one_forward_pass_of_the_student():
    student = classifier()
    run_epochs(student, objective(classifier()), [[records()]], lr=0.0, bn_mode="train")
    assert int(student[1].num_batches_tracked) == 1


# ---------------------------------------------------------------------- smoothing
def test_smoothing_adds_the_sum_of_unsquared_distances_to_both_steps():
    student, teacher = classifier(False, seed=1), classifier(False)
    x, y = records()
    expected = sum(float((p - q).norm()) for p, q in zip(student.parameters(), teacher.parameters(), strict=True))
    for batch in ((x,), (x, y)):
        smooth, plain = (objective(teacher, smoothing=s)(student, *batch) for s in (0.5, 0.0))
        assert float((smooth - plain).detach()) == pytest.approx(0.5 * expected, rel=1e-4)


def test_the_distance_has_no_gradient_at_zero():
    student, teacher = classifier(), classifier()
    gradients = torch.autograd.grad(parameter_distance(student, teacher), list(student.parameters()))
    assert all(not g.any() for g in gradients)


# ---------------------------------------------------------------------- the teacher, the order, the rate
def test_the_teacher_is_in_eval_mode_and_never_changes():
    student, teacher = classifier(seed=1), classifier().train()
    before = State.from_module(teacher).sha256()
    run_epochs(student, objective(teacher), [[records()[:1], records()]], lr=0.1, bn_mode="train")
    assert not teacher.training and State.from_module(teacher).sha256() == before


@pytest.mark.parametrize(
    ("max_first", "wanted"), [(True, [[1, 2, 2], [1, 2, 2], [2, 2]]), (False, [[2, 2, 1], [2, 2, 1], [2, 2]])]
)
def test_max_steps_come_first_or_last_in_the_first_epochs_and_the_last_one_has_none(max_first, wanted):
    forget = [[records(3, i)] for i in range(2)]
    retain = [[records(4, i), records(5, i)] for i in range(3)]
    epochs = scrub_epochs(forget, retain, max_first=max_first)
    assert [[len(batch) for batch in epoch] for epoch in epochs] == wanted


def test_one_kind_of_record_alone_takes_its_own_steps():
    assert [[len(b) for b in e] for e in scrub_epochs([[records()]], [], max_first=True)] == [[1]]
    assert [[len(b) for b in e] for e in scrub_epochs([], [[records()]] * 2, max_first=False)] == [[2], [2]]
    assert scrub_epochs([], [], max_first=True) == []


def test_one_optimiser_takes_max_and_min_steps():
    ours, plain, teacher = classifier(False, seed=1), classifier(False, seed=1), classifier(False)
    forget, retain = records(4, 1), records(4, 2)
    epochs = scrub_epochs([[forget]], [[retain]] * 2, max_first=True)
    run_epochs(ours, objective(teacher), epochs, lr=0.05, momentum=0.9)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    for batch in (forget[:1], retain, retain):
        optimizer.zero_grad()
        objective(teacher)(plain, *batch).backward()
        optimizer.step()
    assert State.from_module(ours).sha256() == State.from_module(plain).sha256()


def test_the_rate_falls_tenfold_after_the_epochs_named():
    rate = decayed(1.0, (5, 8, 9))
    assert [rate(e) for e in (1, 5, 6, 8, 9, 10)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.001])
    assert decayed(0.3, ())(100) == 0.3
