"""Oracles of METHODS 1.11: the anchor, its stationary point, the cap, the stop."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from unlearning.bfu import anchor, gaussian_kl, posterior_scales, unlearn
from unlearning.state import State

SETTINGS = {"beta": 0.05, "eta_forget": 0.1, "eta_share": 0.1, "scale": 0.1, "loss_cap": math.inf, "stop": 0.0}


def classifier(batch_norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(8)] if batch_norm else []
    return nn.Sequential(nn.Linear(5, 8), *middle, nn.ReLU(), nn.Linear(8, 3))


def loss_and_accuracy(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    logits = model(x)
    return cross_entropy(logits, y), logits.argmax(1).eq(y).float().mean()


def records(n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 5, generator=generator), torch.randint(0, 3, (n,), generator=generator)


@pytest.mark.parametrize(("mean", "variance", "expected"), [(1.0, 1.0, 0.5), (0.0, 0.25, 0.31815), (0.0, 1.0, 0.0)])
def test_the_divergence_of_two_gaussians(mean: float, variance: float, expected: float) -> None:
    numbers = (torch.tensor(v) for v in (mean, variance, 0.0, 1.0))
    assert float(gaussian_kl(*numbers)) == pytest.approx(expected, abs=1e-5)


def test_the_anchor_is_the_mean_over_entries_of_scaled_squares() -> None:
    now, start = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])], [torch.tensor([0.0, 0.0]), torch.tensor([1.0])]
    scales = [torch.tensor(0.5), torch.tensor(2.0)]
    assert float(anchor(now, start, scales)) == pytest.approx((1 / 0.5 + 4 / 0.5 + 4 / 8) / 3)


def test_a_scale_is_a_share_of_the_entries_deviation_with_a_floor() -> None:
    wide, flat, single = torch.tensor([1.0, 3.0]), torch.ones(4), torch.tensor([2.0])
    assert [float(s) for s in posterior_scales([wide, flat, single], 0.1)] == pytest.approx([0.1, 1e-3, 1e-3])


@pytest.mark.parametrize("batch_norm", [False, True])
def test_without_a_loss_the_start_is_stationary(batch_norm: bool) -> None:
    model = classifier(batch_norm)
    before = State.from_module(model).sha256()
    pair = (*records(6, 1), *records(6, 2))
    run = unlearn(model, loss_and_accuracy, [[pair] * 3], lr=10.0, **{**SETTINGS, "eta_forget": 0.0, "eta_share": 0.0})
    assert run.steps == 3
    assert State.from_module(model).sha256() == before


def test_it_settles_where_the_quadratic_says() -> None:
    class Scalar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1.0, 3.0], dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.w

    beta, eta, a, s = 0.05, 0.1, 0.5, 0.5  # s = 0.5 * std([1, 3]); the anchor is a mean over two entries
    model = Scalar()

    def half_square(stepped: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return ((stepped(x) - y) ** 2).sum() / 2 / len(x), torch.ones(())

    batch = (torch.ones(1, 2, dtype=torch.float64), torch.full((1, 2), a, dtype=torch.float64))
    settings = {**SETTINGS, "beta": 2 * beta, "eta_forget": eta, "scale": 0.5}
    unlearn(model, half_square, [[batch] * 400], lr=1.0, max_norm=0.0, **settings)
    expected = [(beta * w_0 / s**2 - eta * a) / (beta / s**2 - eta) for w_0 in (1.0, 3.0)]
    assert model.w.tolist() == pytest.approx(expected, abs=1e-6)


def test_the_cap_stops_the_push_and_without_it_the_loss_grows_on() -> None:
    forget, capped, free = records(8, 1), classifier(), classifier()
    cap = 2 * math.log(3)
    for model, loss_cap in ((capped, cap), (free, math.inf)):
        settings = {**SETTINGS, "beta": 0.0, "eta_forget": 1.0, "loss_cap": loss_cap}
        unlearn(model, loss_and_accuracy, [[forget] * 60], lr=0.3, growth=1e9, **settings)
    ends = [loss_and_accuracy(model, *forget)[0].item() for model in (capped, free)]
    assert cap <= ends[0] < 3 * cap < ends[1]


def test_the_retained_loss_is_a_second_task() -> None:
    pair, alone, shared = (*records(8, 1), *records(8, 2)), classifier(), classifier()
    for model, eta in ((alone, 0.0), (shared, 1.0)):
        unlearn(model, loss_and_accuracy, [[pair] * 30], lr=0.1, **{**SETTINGS, "eta_share": eta})
    losses = [loss_and_accuracy(model, *pair[2:])[0].item() for model in (alone, shared)]
    assert losses[1] < losses[0] - 0.1


@pytest.mark.parametrize(
    ("accuracies", "epochs"), [([0.0, 0.0, 1.0, 1.0], 2), ([0.0, 1.0, 0.0, 0.0], 4), ([1.0] * 4, 4)]
)
def test_two_epochs_in_a_row_below_the_stop_end_it(accuracies: list[float], epochs: int) -> None:
    model, batch, asked = classifier(), records(6, 1), []

    def told(stepped: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        asked.append(1)
        return loss_and_accuracy(stepped, x, y)[0], torch.tensor(accuracies[min(len(asked), 4) - 1])

    run = unlearn(model, told, [[batch]] * 4, lr=1e-3, **{**SETTINGS, "stop": 0.1})
    assert run.steps == epochs


@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_rate_of_zero_is_the_identity(batch_norm: bool) -> None:
    model = classifier(batch_norm)
    before = State.from_module(model).sha256()
    unlearn(model, loss_and_accuracy, [[records(6, 1)]], lr=0.0, **SETTINGS)
    assert State.from_module(model).sha256() == before
