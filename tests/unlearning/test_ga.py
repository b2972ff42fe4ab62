"""Oracles of METHODS 1.2 and the conformance facts of METHODS 4 that concern the local step."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from unlearning.ga import ascend
from unlearning.local import run_epochs, set_modes
from unlearning.state import State


class Scalar(nn.Module):
    """One weight w; the loss is (w - a)^2 / 2 with a as the targets."""

    def __init__(self, w: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w, dtype=torch.float64))

    def forward(self, x):
        return self.w * x


def half_square(model, x, y):
    return ((model(x) - y) ** 2).mean() / 2


def classifier(batch_norm: bool) -> nn.Sequential:
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(8)] if batch_norm else []
    return nn.Sequential(nn.Linear(5, 8), *middle, nn.ReLU(), nn.Linear(8, 3))


def task_loss(model, x, y):
    return cross_entropy(model(x), y)


def batches(n: int = 12, size: int = 4, epochs: int = 1):
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(n, 5, generator=generator), torch.randint(0, 3, (n,), generator=generator)
    return [[(x[i : i + size], y[i : i + size]) for i in range(0, n, size)] for _ in range(epochs)]


ONE = [[(torch.ones(1, dtype=torch.float64), torch.full((1,), 3.0, dtype=torch.float64))]]


@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_learning_rate_of_zero_is_the_identity(batch_norm):
    model = classifier(batch_norm)
    before = State.from_module(model).sha256()
    run = ascend(model, task_loss, batches(), lr=0.0)
    assert State.from_module(model).sha256() == before
    assert (run.status, run.steps, run.examples) == ("ok", 3, 12)


def test_no_epochs_are_the_identity_with_no_loss():
    model = classifier(False)
    before = State.from_module(model).sha256()
    run = ascend(model, task_loss, [], lr=1.0)
    assert State.from_module(model).sha256() == before
    assert run.steps == 0 and run.loss != run.loss


def test_one_step_of_linear_regression_is_the_hand_computed_one():
    model = Scalar(1.0)
    ascend(model, half_square, ONE, lr=0.1)
    assert model.w.item() == pytest.approx(1.0 + 0.1 * (1.0 - 3.0), abs=1e-15)


def test_the_forget_loss_rises_after_one_small_step_and_falls_with_the_other_sign():
    (batch,) = batches(4, 4)[0]
    up, down = classifier(False), classifier(False)
    start = float(task_loss(up, *batch))
    ascend(up, task_loss, [[batch]], lr=1e-3)
    run_epochs(down, task_loss, [[batch]], lr=1e-3)
    assert float(task_loss(up, *batch)) > start > float(task_loss(down, *batch))


def test_the_opposite_sign_is_fine_tuning_on_the_forget_records():
    tuned, plain = classifier(False), classifier(False)
    ascend(tuned, lambda m, x, y: -task_loss(m, x, y), batches(), lr=0.05)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05)
    for x, y in batches()[0]:
        optimizer.zero_grad()
        task_loss(plain, x, y).backward()
        optimizer.step()
    assert State.from_module(tuned).sha256() == State.from_module(plain).sha256()


def test_the_clip_bounds_the_length_of_a_step():
    model = Scalar(100.0)
    ascend(model, half_square, ONE, lr=0.1, max_norm=5.0)
    assert model.w.item() == pytest.approx(100.5, abs=1e-6)


def test_the_loss_reported_is_the_task_loss():
    run = ascend(Scalar(1.0), half_square, ONE, lr=0.0)
    assert run.loss == pytest.approx(2.0)


def test_a_norm_ten_times_the_start_ends_at_the_last_usable_state():
    model = Scalar(1.0)
    run = ascend(model, half_square, ONE * 50, lr=2.0)
    assert run.status == "diverged" and "norm" in run.reason
    assert abs(model.w.item()) < 10.0
    assert run.steps < 50


def test_a_loss_that_overflows_ends_at_the_last_state_with_a_finite_loss():
    def overflowing(model, x, y):
        return torch.exp(200 * model.w * x).sum()

    model = Scalar(1.0)
    run = ascend(model, overflowing, [[(torch.ones(1, dtype=torch.float64), None)]] * 5, lr=1e-87 * 4, growth=1e9)
    assert run.status == "diverged" and "loss" in run.reason
    assert torch.isfinite(torch.exp(200 * model.w))


def test_the_state_after_the_last_step_needs_a_finite_loss_as_well():
    def cliff(model, x, y):
        return torch.where(model.w > 1.5, torch.inf, 1.0) * model.w.sum()

    model = Scalar(1.0)
    run = ascend(model, cliff, ONE, lr=1.0)
    assert run.status == "diverged"
    assert model.w.item() == 1.0


def test_batch_norm_statistics_stay_by_default_and_move_when_asked():
    still, moving = classifier(True), classifier(True)
    ascend(still, task_loss, batches(), lr=1e-3)
    ascend(moving, task_loss, batches(), lr=1e-3, bn_mode="train")
    assert torch.equal(still[1].running_mean, torch.zeros(8))
    assert not torch.equal(moving[1].running_mean, torch.zeros(8))
    assert (moving[1].running_var >= 0).all() and moving[1].num_batches_tracked.dtype == torch.int64


def test_a_batch_of_one_record_does_not_raise_in_train_mode():
    run = ascend(classifier(True), task_loss, batches(5, 4), lr=1e-3, bn_mode="train")
    assert (run.status, run.steps) == ("ok", 2)


def test_the_learning_rate_can_change_from_epoch_to_epoch():
    changing, plain = classifier(False), classifier(False)
    run_epochs(changing, task_loss, batches(epochs=3), lr=lambda epoch: 0.1 / epoch, momentum=0.9)
    optimizer = torch.optim.SGD(plain.parameters(), lr=1.0, momentum=0.9)
    for epoch, rate in zip(batches(epochs=3), (0.1, 0.05, 0.1 / 3), strict=True):
        optimizer.param_groups[0]["lr"] = rate
        for x, y in epoch:
            optimizer.zero_grad()
            task_loss(plain, x, y).backward()
            optimizer.step()
    assert State.from_module(changing).sha256() == State.from_module(plain).sha256()


def test_modes_are_set_explicitly():
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)).eval()
    set_modes(model, "eval")
    assert model[0].training and not model[1].training


def test_the_same_batches_give_the_same_bits():
    hashes = set()
    for _ in range(2):
        model = classifier(True)
        ascend(model, task_loss, batches(), lr=0.01, momentum=0.9)
        hashes.add(State.from_module(model).sha256())
    assert len(hashes) == 1
