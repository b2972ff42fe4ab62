"""Oracles of METHODS 1.12, and facts about the reconstructed input noise."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from unlearning.feddni import (
    diffuse,
    diffusion_levels,
    forget_inputs,
    levels_of_epochs,
    perturb,
    structured_noise,
    uniform_loss,
)
from unlearning.local import run_epochs
from unlearning.state import State


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def state() -> State:
    values = torch.randn(20_000, generator=seeded(1))
    return State(
        {"w": 3 * values + 1, "scale": torch.ones(64), "alone": torch.tensor(2.0)},
        {"bn.running_var": torch.ones(4)},
        {"bn.num_batches_tracked": torch.tensor(7)},
    )


# ---------------------------------------------------------------------- weights
def test_no_sigma_is_the_identity():
    assert perturb(state(), 0.0, 5, seeded()).sha256() == state().sha256()


@pytest.mark.parametrize("steps", [1, 2, 5, 20])
def test_the_deviation_of_the_noise_is_sigma_whatever_the_steps(steps):
    before, sigma = state(), 0.1
    after = perturb(before, sigma, steps, seeded(steps))
    share = float((after.params["w"] - before.params["w"]).std() / before.params["w"].std())
    assert abs(share - sigma) < 3 * sigma / math.sqrt(2 * 20_000)


def test_constant_and_single_tensors_and_buffers_get_no_noise():
    before, after = state(), perturb(state(), 0.5, 3, seeded())
    assert all(torch.equal(before.params[n], after.params[n]) for n in ("scale", "alone"))
    assert torch.equal(before.float_buffers["bn.running_var"], after.float_buffers["bn.running_var"])
    assert after.int_buffers["bn.num_batches_tracked"].dtype == torch.int64


def test_the_seed_decides():
    assert perturb(state(), 0.1, 5, seeded()).sha256() == perturb(state(), 0.1, 5, seeded()).sha256()
    assert perturb(state(), 0.1, 5, seeded()).sha256() != perturb(state(), 0.1, 5, seeded(9)).sha256()


# ---------------------------------------------------------------------- inputs
def test_the_levels_fall_linearly_from_one():
    assert diffusion_levels(5, 0.05) == pytest.approx([1.0, 0.81, 0.62, 0.43, 0.24, 0.05])


@pytest.mark.parametrize(
    ("epochs", "levels", "expected"),
    [(5, 5, [1, 2, 3, 4, 5]), (1, 5, [5]), (2, 5, [3, 5]), (10, 5, [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]), (0, 5, [])],
)
def test_every_epoch_has_a_level_and_the_last_is_the_noisiest(epochs, levels, expected):
    assert levels_of_epochs(epochs, levels) == expected


def test_all_of_an_input_left_is_the_input():
    x = torch.randn(4, 3, 8, 8)
    assert torch.equal(diffuse(x, 1.0, structured_noise(x, seeded())), x)


@pytest.mark.parametrize("left", diffusion_levels(5, 0.05))
def test_unit_variance_stays_at_every_level(left):
    x = torch.randn(400, 1, 16, 16, generator=seeded(2))
    noisy = diffuse(x, left, structured_noise(x, seeded()))
    assert float(noisy.var()) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("shape", [(3000, 2, 6), (3000, 1, 4, 4), (3000, 1, 3, 3, 3), (3000, 5)])
def test_the_noise_has_unit_variance_at_every_place(shape):
    noise = structured_noise(torch.zeros(shape), seeded())
    assert torch.allclose(noise.var(dim=0), torch.ones(shape[1:]), atol=0.15)


def test_the_noise_is_low_pass():
    noise = structured_noise(torch.zeros(200, 1, 16, 16), seeded())
    neighbours = (noise[..., 4:12, 4:11] * noise[..., 4:12, 5:12]).mean()
    far = (noise[..., 4:12, 2:6] * noise[..., 4:12, 10:14]).mean()
    assert float(neighbours) == pytest.approx(6 / 9, abs=0.05)
    assert float(far) == pytest.approx(0.0, abs=0.05)


def test_the_loss_is_the_divergence_of_the_prediction_from_uniform():
    logits = torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.5, 0.5]])
    p = torch.softmax(logits, dim=1)
    expected = (torch.log(torch.tensor(1 / 3)) - torch.log(p)).mean(1).mean()
    assert float(uniform_loss(logits)) == pytest.approx(float(expected), rel=1e-5)
    assert float(uniform_loss(torch.full((2, 4), 7.0))) == pytest.approx(0.0, abs=1e-6)


def classifier(batch_norm: bool) -> nn.Sequential:
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(8)] if batch_norm else []
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), *middle, nn.ReLU(), nn.Linear(8, 3))


def epochs(count: int) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    x, y = torch.randn(12, 1, 4, 4, generator=seeded(4)), torch.randint(0, 3, (12,), generator=seeded(5))
    return [[(x[i : i + 4], y[i : i + 4]) for i in range(0, 12, 4)] for _ in range(count)]


OPTIONS = {"levels": 5, "last": 0.05, "lr": 0.2}


@pytest.mark.parametrize("batch_norm", [False, True])
def test_it_moves_the_predictions_towards_uniform(batch_norm):
    model = classifier(batch_norm)
    x, y = (torch.cat(parts) for parts in zip(*epochs(1)[0], strict=True))
    run_epochs(model, lambda m, x, y: cross_entropy(m(x), y), [[(x, y)]] * 20, lr=0.5, bn_mode="train")
    model.eval()
    before = float(uniform_loss(model(x).detach()))
    run = forget_inputs(model, epochs(10), generator=seeded(), **OPTIONS)
    model.eval()
    assert run.status == "ok" and run.steps == 30 and run.examples == 120
    assert float(uniform_loss(model(x).detach())) < before / 2


@pytest.mark.parametrize("changes", [{"lr": 0.0}, {"count": 0}])
def test_no_step_is_the_identity(changes):
    model = classifier(True)
    before = State.from_module(model).sha256()
    changes = dict(changes)
    forget_inputs(model, epochs(changes.pop("count", 2)), generator=seeded(), **{**OPTIONS, **changes})
    assert State.from_module(model).sha256() == before


def test_frozen_statistics_stay_and_others_move():
    kept, moved = classifier(True), classifier(True)
    start = State.from_module(kept)
    for model, mode in ((kept, "eval"), (moved, "train")):
        forget_inputs(model, epochs(1), generator=seeded(), bn_mode=mode, **OPTIONS)
    mean = "2.running_mean"
    assert torch.equal(State.from_module(kept).float_buffers[mean], start.float_buffers[mean])
    assert not torch.equal(State.from_module(moved).float_buffers[mean], start.float_buffers[mean])


def test_the_labels_are_not_looked_at():
    models = classifier(False), classifier(False)
    for model, shift in zip(models, (0, 1), strict=True):
        shifted = [[(x, (y + shift) % 3) for x, y in epoch] for epoch in epochs(2)]
        forget_inputs(model, shifted, generator=seeded(), **OPTIONS)
    assert State.from_module(models[0]).sha256() == State.from_module(models[1]).sha256()
