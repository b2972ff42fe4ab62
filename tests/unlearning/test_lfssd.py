"""Oracles of METHODS 2.7."""

from __future__ import annotations

import pytest
import torch

from tests.unlearning.toy_nets import cut, data, normed, plain, seeded
from unlearning.lfssd import output_energy, sensitivity
from unlearning.ssd import dampen
from unlearning.state import State


@pytest.mark.parametrize("build", [plain, normed])
class TestSensitivity:
    def test_it_is_the_absolute_gradient_of_the_mean_squared_output(self, build):
        model = seeded(build).eval()
        found = sensitivity(model, cut(*data(10), 4))
        wanted = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        for x, _ in cut(*data(10), 4):
            model.zero_grad()
            (sum(model(one[None]).pow(2).sum() for one in x) / len(x)).backward()
            for name, parameter in model.named_parameters():
                wanted[name] += parameter.grad.abs()
        for name in wanted:
            assert torch.allclose(found.sums[name].float(), wanted[name], rtol=1e-4, atol=1e-6), name

    def test_labels_do_not_matter(self, build):
        model, (x, y) = seeded(build), data(12)
        a, b = (sensitivity(model, cut(x, labels, 4)) for labels in (y, y.flip(0)))
        assert all(torch.equal(a.sums[name], b.sums[name]) for name in a.sums)

    def test_a_factor_on_the_head_leaves_the_selection_in_the_body_as_it_is(self, build):
        model = seeded(build, dtype=torch.float64)
        head = list(model)[-1]
        body = [name for name, p in model.named_parameters() if all(p is not own for own in head.parameters())]
        x, y = data(16, dtype=torch.float64)
        batches, few = cut(x, y, 4), cut(x[:6], y[:6], 4)
        once = sensitivity(model, few), sensitivity(model, batches)
        with torch.no_grad():
            for own in head.parameters():
                own.mul_(3.0)
        thrice = sensitivity(model, few), sensitivity(model, batches)
        state = State.from_module(model)
        for one, three in zip(once, thrice, strict=True):
            assert all(torch.allclose(three.sums[n], 9 * one.sums[n], rtol=1e-8, atol=1e-12) for n in body)
        alpha = 1.3
        chosen = [{n: i_f.mean[n] > alpha * i_all.mean[n] for n in body} for i_f, i_all in (once, thrice)]
        assert all(torch.equal(chosen[0][n], chosen[1][n]) for n in body)
        assert any(bool(mask.any()) for mask in chosen[0].values())
        assert dampen(state.params, *thrice, alpha, 1.0).selected > 0

    def test_an_infinite_alpha_is_the_identity(self, build):
        model = seeded(build)
        state = State.from_module(model)
        done = dampen(
            state.params, sensitivity(model, cut(*data(4), 4)), sensitivity(model, cut(*data(8), 4)), float("inf"), 1.0
        )
        assert all(torch.equal(done.params[n], state.params[n]) for n in state.params)


def test_outputs_of_any_shape_count_all_their_entries():
    x = torch.arange(12.0).view(2, 3, 2)
    assert float(output_energy(torch.nn.Identity(), x)) == pytest.approx(float((x**2).sum()) / 2)
