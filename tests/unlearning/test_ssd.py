"""Oracles of METHODS 2.6."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.unlearning.toy_nets import changed, cut, data, normed, plain, seeded
from unlearning.ssd import Importance, dampen, importance, pooled
from unlearning.state import State

INFINITE = float("inf")


def loss(model, x, y):
    return cross_entropy(model(x), y)


def of(*values: float, batches: int = 1) -> Importance:
    return Importance({"w": torch.tensor(values, dtype=torch.float64)}, batches)


def params(*values: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(values, dtype=torch.float32)}


class TestDampen:
    def test_the_worked_example(self):
        done = dampen(params(2, 2, 2), of(4, 1, 0), of(1, 1, 0), alpha=2, strength=1)
        assert done.params["w"].tolist() == [0.5, 2, 2]
        assert (done.selected, done.total, done.share) == (1, 3, pytest.approx(1 / 3))

    def test_the_limit_is_not_reached_by_equality(self):
        assert dampen(params(2), of(2), of(1), alpha=2, strength=1).selected == 0

    def test_an_infinite_alpha_is_the_identity(self):
        given = params(2, -3, 4)
        done = dampen(given, of(4, 1e300, 0), of(1e-300, 0, 0), alpha=INFINITE, strength=1)
        assert torch.equal(done.params["w"], given["w"]) and done.selected == 0

    def test_what_only_the_forget_records_need_becomes_zero(self):
        assert dampen(params(2), of(1), of(0), alpha=10, strength=1).params["w"].item() == 0.0

    def test_nothing_grows(self):
        done = dampen(params(2, -2), of(4, 4), of(1, 1), alpha=2, strength=100)
        assert done.params["w"].tolist() == [2, -2] and done.selected == 2

    def test_a_smaller_lambda_dampens_more(self):
        assert dampen(params(2), of(4), of(1), alpha=2, strength=0.1).params["w"].item() == pytest.approx(0.05)

    def test_sums_are_compared_as_means_over_batches(self):
        forget, everything = of(8, batches=2), of(10, batches=10)
        assert dampen(params(2), forget, everything, alpha=3, strength=1).params["w"].item() == pytest.approx(0.5)

    def test_the_dtype_stays(self):
        assert dampen({"w": torch.ones(1, dtype=torch.float64)}, of(4), of(1), 2, 1).params["w"].dtype == torch.float64


@pytest.mark.parametrize("build", [plain, normed])
class TestImportance:
    def test_it_is_the_squared_gradient_of_each_batchs_mean_loss(self, build):
        model = seeded(build).eval()
        found = importance(model, loss, cut(*data(10), 4))
        wanted = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        for x, y in cut(*data(10), 4):
            model.zero_grad()
            loss(model, x, y).backward()
            for name, parameter in model.named_parameters():
                wanted[name] += parameter.grad**2
        assert (found.batches, found.examples) == (3, 10)
        for name in wanted:
            assert torch.allclose(found.sums[name].float(), wanted[name], rtol=1e-5, atol=1e-12), name

    def test_the_model_is_not_touched(self, build):
        model = seeded(build)
        model[0].weight.requires_grad_(False)
        before = State.from_module(model)
        found = importance(model, loss, cut(*data(8), 4))
        assert changed(before, State.from_module(model)) == set()
        assert found.sums["0.weight"].abs().max() > 0
        assert [n for n, p in model.named_parameters() if not p.requires_grad] == ["0.weight"]
        assert all(p.grad is None for p in model.parameters())

    def test_sites_with_the_same_batches_add_up_to_one_that_has_them_all(self, build):
        model = seeded(build)
        every = cut(*data(20), 4)
        parts = [importance(model, loss, part) for part in (every[:1], every[1:3], every[3:])]
        one, together = importance(model, loss, every), pooled(parts)
        assert (together.batches, together.examples) == (one.batches, one.examples) == (5, 20)
        for name in one.sums:
            assert torch.allclose(together.mean[name], one.mean[name], rtol=1e-12, atol=0)

    def test_batches_of_one_are_the_fisher_information_and_larger_ones_are_not(self, build):
        model = seeded(build)
        single, pairs = (importance(model, loss, cut(*data(8), size)) for size in (1, 2))
        assert single.batches == 8
        ratios = [float(pairs.mean[n].sum() / single.mean[n].sum()) for n in single.sums]
        assert max(ratios) < 1.0

    def test_the_seed_and_the_order_of_batches_do_not_matter_to_rounding(self, build):
        model = seeded(build)
        a = importance(model, loss, cut(*data(12), 4))
        b = importance(model, loss, cut(*data(12), 4)[::-1])
        assert all(torch.allclose(a.sums[n], b.sums[n], rtol=1e-12) for n in a.sums)


def test_no_batches_have_no_importance():
    found = importance(seeded(plain), loss, [])
    assert found.batches == 0 and all(float(mean.abs().sum()) == 0.0 for mean in found.mean.values())


def test_a_parameter_that_the_loss_does_not_reach_has_none():
    model = seeded(plain)
    model.extra = torch.nn.Parameter(torch.ones(2))
    model.forward = lambda x: torch.nn.Sequential.forward(model, x)
    found = importance(model, lambda m, x, y: m[0](x).sum(), cut(*data(4), 4))
    assert found.sums["extra"].tolist() == [0.0, 0.0] and float(found.sums["8.weight"].sum()) == 0.0


def test_dampening_what_matters_to_one_class_raises_its_loss_most():
    model = seeded(plain)
    x, y = data(120)
    x[torch.arange(120), 0, y * 2] += 2.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(40):
        optimizer.zero_grad()
        loss(model, x, y).backward()
        optimizer.step()
    gone = y == 1
    forget = importance(model, loss, cut(x[gone], y[gone], 8))
    everything = importance(model, loss, cut(x, y, 8))
    before = [float(loss(model, x[m], y[m]).detach()) for m in (gone, ~gone)]
    state = State.from_module(model)
    done = dampen(state.params, forget, everything, alpha=2.0, strength=1.0)
    State(done.params, state.float_buffers, state.int_buffers).load_into(model)
    after = [float(loss(model, x[m], y[m]).detach()) for m in (gone, ~gone)]
    assert 0 < done.share < 0.9
    assert after[0] - before[0] > 2 * abs(after[1] - before[1])
