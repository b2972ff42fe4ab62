"""Oracles of METHODS 2.5: what the noise is, what it leaves alone, and what impair and repair do with it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from unlearning.local import LocalRun, run_epochs
from unlearning.state import State
from unlearning.unsir import Optimiser, class_noise, distant_noise, impair_and_repair, instance_objective


def classifier(batch_norm: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(8)] if batch_norm else []
    return nn.Sequential(nn.Linear(5, 8), *middle, nn.ReLU(), nn.Linear(8, 3))


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y)


def records(n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 5, generator=generator), torch.randint(0, 3, (n,), generator=generator)


START = records(6, 3)[0]
LABELS = torch.full((6,), 1)


def noise_loss(model: nn.Module, noise: Tensor, weight: float = 0.1) -> float:
    return float(weight * noise.pow(2).sum(1).mean() - loss(model.eval(), noise, LABELS))


class TestClassNoise:
    @pytest.mark.parametrize("batch_norm", [False, True])
    def test_it_makes_the_model_more_wrong_about_the_class(self, batch_norm: bool) -> None:
        model = classifier(batch_norm)
        found = [class_noise(model, START, 1, steps=steps, lr=0.1, weight=0.1) for steps in (0, 10, 40)]
        losses = [noise_loss(model, noise) for noise in found]
        assert losses[0] > losses[1] > losses[2]
        assert loss(model, found[2], LABELS) > loss(model, found[0], LABELS)

    def test_the_model_is_left_as_it_was(self) -> None:
        model = classifier().train()
        before = State.from_module(model).sha256()
        class_noise(model, START, 1, steps=5, lr=0.1, weight=0.1)
        assert State.from_module(model).sha256() == before
        assert model.training and all(p.requires_grad and p.grad is None for p in model.parameters())

    def test_a_large_weight_leaves_no_noise(self) -> None:
        assert class_noise(classifier(), START, 1, steps=400, lr=0.02, weight=1e6).abs().max() < 0.05


class TestDistantNoise:
    def test_it_is_further_from_the_forget_logits_than_it_began_and_within_the_range(self) -> None:
        model, (x, _) = classifier(), records(6, 1)
        found = distant_noise(model, START, x, steps=20, lr=0.05, low=-9, high=9)
        model.eval()
        assert mse_loss(model(found), model(x)) > mse_loss(model(START), model(x))
        clamped = distant_noise(model, START, x, steps=5, lr=0.01, low=-0.5, high=0.25)
        assert clamped.min() == -0.5 and clamped.max() == 0.25

    def test_the_model_is_left_as_it_was(self) -> None:
        model = classifier().train()
        before = State.from_module(model).sha256()
        distant_noise(model, START, records(6, 1)[0], steps=5, lr=0.01, low=-1, high=1)
        assert State.from_module(model).sha256() == before
        assert all(module.training for module in model.modules())


class TestInstanceObjective:
    def made(self, steps: int = 5):
        generator = torch.Generator().manual_seed(4)
        return instance_objective(loss, steps=steps, lr=0.01, low=-1.0, high=1.0, generator=generator)

    def test_the_noise_carries_the_retained_labels_beside_the_retained_records(self) -> None:
        model, (x, y), (xr, yr) = classifier().eval(), records(6, 1), records(6, 2)
        start = torch.randn(x.shape, generator=torch.Generator().manual_seed(4))
        noise = distant_noise(model, start, x, steps=5, lr=0.01, low=-1.0, high=1.0)
        expected = loss(model, noise, yr) + loss(model, xr, yr)
        assert self.made()(model, x, y, xr, yr).item() == pytest.approx(expected.item())

    @pytest.mark.parametrize(("forget", "retain"), [(6, 4), (4, 6)])
    def test_unequal_batches_are_cut_to_the_smaller(self, forget: int, retain: int) -> None:
        model, (x, y), (xr, yr) = classifier().eval(), records(forget, 1), records(retain, 2)
        whole = self.made()(model, x, y, xr, yr)
        assert whole.item() == pytest.approx(self.made()(model, x[:4], y[:4], xr[:4], yr[:4]).item())

    @pytest.mark.parametrize("bn_mode", ["train", "eval"])
    def test_it_is_a_step_of_the_guarded_loop(self, bn_mode: str) -> None:
        model = classifier()
        pairs = [(*records(6, 1), *records(4, 2)), (*records(1, 5), *records(4, 6))]
        run = run_epochs(model, self.made(), [pairs], lr=0.1, bn_mode=bn_mode)  # type: ignore[arg-type]
        assert (run.status, run.steps, run.examples) == ("ok", 2, 15)
        moved = not torch.equal(model[1].running_mean, torch.zeros(8))
        assert moved == (bn_mode == "train")

    def test_the_generator_decides_the_noise(self) -> None:
        batch = (*records(6, 1), *records(6, 2))
        first, again = self.made(), self.made()
        model = classifier().eval()
        assert first(model, *batch).item() == again(model, *batch).item() != first(model, *batch).item()


class TestImpairAndRepair:
    def run(self, impair, repair, **changes: float) -> tuple[nn.Module, LocalRun]:
        model = classifier()
        rates = {"impair_lr": 0.1, "repair_lr": 0.05, **changes}
        return model, impair_and_repair(model, loss, impair, loss, repair, optimiser=Optimiser(), **rates)

    def test_they_are_two_runs_one_after_the_other(self) -> None:
        noise, retain = records(6, 1), records(8, 2)
        model, run = self.run([[noise, retain]], [[retain]])
        expected = classifier()
        run_epochs(expected, loss, [[noise, retain]], lr=0.1, bn_mode="train")
        run_epochs(expected, loss, [[retain]], lr=0.05, bn_mode="train")
        assert State.from_module(model).sha256() == State.from_module(expected).sha256()
        assert (run.status, run.steps, run.examples) == ("ok", 3, 22)

    def test_no_epochs_leave_the_model_as_it_is(self) -> None:
        model, run = self.run([], [])
        assert State.from_module(model).sha256() == State.from_module(classifier()).sha256()
        assert (run.status, run.steps) == ("ok", 0)

    def test_what_diverged_is_not_repaired(self) -> None:
        batch = records(6, 1)
        model, run = self.run([[batch]], [[batch]], impair_lr=1e9)
        assert run.status == "diverged" and run.steps == 1
        assert State.from_module(model).is_finite()
