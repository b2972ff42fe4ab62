"""Oracles of METHODS 1.9: the half-space, the recovery without rollback, pseudo-images and the floor."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from unlearning.fedcare import ascend_beside, project, pseudo_images, suppress_rollback
from unlearning.ga import ascend
from unlearning.state import State


def vector(*values: float) -> list[Tensor]:
    return [torch.tensor(values)]


def classifier(batch_norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(8)] if batch_norm else []
    return nn.Sequential(nn.Linear(5, 8), *middle, nn.ReLU(), nn.Linear(8, 3))


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y)


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return model(x).argmax(1).eq(y).float().mean()


def records(n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 5, generator=generator), torch.randint(0, 3, (n,), generator=generator)


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss(model, x, y), list(model.parameters())))


class TestProject:
    def test_a_conflict_is_removed(self) -> None:
        (d,) = project(vector(1.0, 0.0), vector(1.0, 1.0))
        assert d.tolist() == pytest.approx([0.5, -0.5])

    @pytest.mark.parametrize("ascent", [(1.0, -1.0), (-1.0, -2.0)])
    def test_without_a_conflict_nothing_changes(self, ascent: tuple[float, float]) -> None:
        given = vector(*ascent)
        assert torch.equal(project(given, vector(1.0, 1.0))[0], given[0])

    @pytest.mark.parametrize("reference", [(0.0, 0.0), (1e-13, 0.0)])
    def test_a_reference_without_a_gradient_constrains_nothing(self, reference: tuple[float, float]) -> None:
        assert project(vector(1.0, 2.0), vector(*reference))[0].tolist() == [1.0, 2.0]

    def test_the_margin_is_what_the_reference_may_rise_by(self) -> None:
        (d,) = project(vector(3.0, 1.0), vector(2.0, 0.0), margin=1.0)
        assert d.tolist() == pytest.approx([0.5, 1.0])

    def test_it_is_one_half_space_over_all_tensors(self) -> None:
        ascent, reference = [torch.tensor([1.0]), torch.tensor([-1.0])], [torch.tensor([1.0]), torch.tensor([2.0])]
        assert all(torch.equal(a, d) for a, d in zip(ascent, project(ascent, reference), strict=True))

    def test_products_do_not_lose_small_terms(self) -> None:
        ascent, reference = torch.ones(4_000_001), torch.full((4_000_001,), 1e-4)
        ascent[0] = reference[0] = 1e4
        (d,) = project([ascent], [reference])
        along = float((d.double() * reference.double()).sum())
        assert abs(along) <= 1e-6 * float(d.double().norm() * reference.double().norm())


class TestSuppressRollback:
    BEFORE = {"w": torch.tensor([1.0, 2.0]), "v": torch.tensor(0.5)}  # noqa: RUF012
    AFTER = {"w": torch.tensor([1.5, 2.5]), "v": torch.tensor(0.75)}  # noqa: RUF012
    BACK = {"w": torch.tensor([1.0, 0.0]), "v": torch.tensor(1.0)}  # noqa: RUF012

    def moved(self, kappa: float, back: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        found = suppress_rollback(self.BEFORE, self.AFTER, back, kappa)
        flat = [torch.cat([t[n].reshape(-1).double() for n in back]) for t in (found, self.BEFORE, back)]
        return flat[0] - flat[1], flat[2]

    def test_no_motion_back_is_left(self) -> None:
        update, b = self.moved(1.0, self.BACK)
        assert abs(float(update @ b)) <= 1e-6 * float(update.norm() * b.norm())
        assert update.tolist() == pytest.approx([0.125, 0.5, -0.125])

    def test_a_part_of_it_can_stay(self) -> None:
        update, b = self.moved(0.5, self.BACK)
        assert float(update @ b) == pytest.approx(0.375)

    def test_motion_away_is_left_alone(self) -> None:
        away = {n: -t for n, t in self.BACK.items()}
        found = suppress_rollback(self.BEFORE, self.AFTER, away, 1.0)
        assert all(torch.equal(found[n], t) for n, t in self.AFTER.items())

    @pytest.mark.parametrize(("kappa", "scale"), [(0.0, 1.0), (1.0, 0.0)])
    def test_kappa_of_zero_and_a_model_that_did_not_move_change_no_bit(self, kappa: float, scale: float) -> None:
        found = suppress_rollback(self.BEFORE, self.AFTER, {n: scale * t for n, t in self.BACK.items()}, kappa)
        assert list(found) == list(self.AFTER)
        assert all(torch.equal(found[n], t) for n, t in self.AFTER.items())


class TestAscent:
    @pytest.mark.parametrize("batch_norm", [False, True])
    def test_a_step_is_the_clipped_projection(self, batch_norm: bool) -> None:
        model, forget, retain = classifier(batch_norm).eval(), records(6, 1), records(6, 2)
        before = [p.detach().clone() for p in model.parameters()]
        expected = project(gradient(model, *forget), gradient(model, *retain))
        length = torch.cat([d.reshape(-1) for d in expected]).norm()
        ascend_beside(model, loss, [[forget]], lambda m, _: loss(m, *retain), lr=0.1, max_norm=0.01)
        for w, w_0, d in zip(model.parameters(), before, expected, strict=True):
            torch.testing.assert_close(w.detach(), w_0 + 0.1 * 0.01 / length * d, atol=1e-7, rtol=1e-4)

    def test_the_reference_loss_is_spared_where_plain_ascent_raises_it(self) -> None:
        forget, other = records(8, 1), records(8, 2)
        retain = torch.cat([forget[0][:4], other[0]]), torch.cat([forget[1][:4], other[1]])
        spared, plain = classifier(), classifier()
        start = loss(spared, *retain).item()
        ascend_beside(spared, loss, [[forget]], lambda m, _: loss(m, *retain), lr=1e-2)
        ascend(plain, loss, [[forget]], lr=1e-2, max_norm=5.0)
        assert loss(spared, *retain).item() == pytest.approx(start, abs=1e-4)
        assert loss(plain, *retain).item() > start + 1e-3
        assert loss(spared, *forget).item() > loss(classifier(), *forget).item()

    def test_a_constant_reference_gives_the_step_of_that_gradient(self) -> None:
        forget, retain = records(6, 1), records(6, 2)
        once, constant = classifier(), classifier()
        ascend_beside(once, loss, [[forget]], lambda m, _: loss(m, *retain), lr=0.1)
        ascend_beside(constant, loss, [[forget]], gradient(constant, *retain), lr=0.1)
        assert State.from_module(once).sha256() == State.from_module(constant).sha256()

    def test_a_reference_without_gradient_makes_it_gradient_ascent(self) -> None:
        beside, plain, forget = classifier(True), classifier(True), records(6, 1)
        run = ascend_beside(beside, loss, [[forget, forget]], lambda m, _: 0 * m(forget[0]).sum(), lr=0.1)
        expected = ascend(plain, loss, [[forget, forget]], lr=0.1, max_norm=5.0)
        assert State.from_module(beside).sha256() == State.from_module(plain).sha256()
        assert (run.loss, run.steps) == (expected.loss, expected.steps)

    @pytest.mark.parametrize("batch_norm", [False, True])
    def test_a_rate_of_zero_is_the_identity(self, batch_norm: bool) -> None:
        model, retain = classifier(batch_norm), records(6, 2)
        before = State.from_module(model).sha256()
        ascend_beside(model, loss, [[records(6, 1)]], lambda m, _: loss(m, *retain), lr=0.0)
        assert State.from_module(model).sha256() == before

    def test_it_stops_at_the_first_batch_at_the_floor_not_at_the_end_of_the_epoch(self) -> None:
        model, (x, y) = classifier(), records(6, 1)
        y = model(x).argmax(1)
        batch = (x, y)
        seen: list[float] = []

        def watched(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            seen.append(float(accuracy(m, x, y)))
            return accuracy(m, x, y)

        run = ascend_beside(
            model,
            loss,
            [[batch] * 500],
            lambda m, _: 0 * m(x).sum(),
            lr=0.1,
            accuracy=watched,
            floor=1 / 3,
        )
        assert 1 < run.steps < 500
        assert run.steps == len(seen)
        assert min(seen[:-1]) > 1 / 3 + 1e-6 >= seen[-1]

    def test_an_accuracy_of_exactly_chance_is_at_the_floor(self) -> None:
        run = ascend_beside(
            classifier(),
            loss,
            [[records(6, 1)] * 3],
            lambda m, _: 0 * m(records(1, 0)[0]).sum(),
            lr=0.1,
            accuracy=lambda *_: torch.tensor(0.1),
            floor=1 / 10,
        )
        assert run.steps == 1


class TestPseudoImages:
    def made(self, model: nn.Module, steps: int = 60, seed: int = 0) -> tuple[Tensor, Tensor, float]:
        generator = torch.Generator().manual_seed(seed)
        return pseudo_images(model, (5,), (0, 2), per_class=4, steps=steps, batch_size=3, generator=generator)

    @pytest.mark.parametrize("batch_norm", [False, True])
    def test_the_model_sees_the_retained_classes_in_them_and_stays_as_it_is(self, batch_norm: bool) -> None:
        model = classifier(batch_norm)
        before = State.from_module(model).sha256()
        x, y, fit = self.made(model)
        assert x.shape == (8, 5) and y.tolist() == [0, 2] * 4
        assert fit == pytest.approx(loss(model.eval(), x, y).item(), abs=1e-6)
        assert fit < self.made(model, steps=0)[2]
        assert State.from_module(model).sha256() == before

    def test_they_depend_on_the_seed_alone(self) -> None:
        model = classifier()
        assert torch.equal(self.made(model)[0], self.made(model)[0])
        assert not torch.equal(self.made(model)[0], self.made(model, seed=1)[0])

    def test_statistics_of_the_batch_are_drawn_to_the_running_ones(self) -> None:
        model = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3))
        model[0].running_mean.fill_(3.0)
        nn.init.zeros_(model[1].weight)
        start, _, _ = self.made(model, steps=0)
        found, _, _ = self.made(model, steps=60)
        assert (found.mean() - 3).abs() < (start.mean() - 3).abs() - 1

    def test_images_are_smoothed(self) -> None:
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 36, 3))
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        made = [
            pseudo_images(
                model,
                (1, 8, 8),
                (0,),
                per_class=2,
                steps=steps,
                batch_size=2,
                generator=torch.Generator().manual_seed(0),
            )[0]
            for steps in (0, 20)
        ]
        rough, smooth = (x.diff(dim=2).abs().mean() + x.diff(dim=3).abs().mean() for x in made)
        assert smooth < rough / 2
