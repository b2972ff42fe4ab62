"""Oracles of METHODS 1.13."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.unlearning.toy_nets import changed, cut, data, layers, normed, plain, seeded
from unlearning.fused import (
    adapt,
    attach,
    average,
    critical_layers,
    drop,
    layer_scores,
    low_rank_start,
    merged_weight,
    sparse_mask,
    split,
)
from unlearning.state import State

BUILDS = [plain, normed]


def loss(model, x, y):
    return cross_entropy(model(x), y)


def chosen(model):
    return layers(model)[1:3]


def started(model, rank=3):
    modules, found = dict(model.named_modules()), chosen(model)
    factors = [low_rank_start(modules[layer.name].weight.detach(), rank, i) for i, layer in enumerate(found)]
    return [modules[layer.name] for layer in found], factors


def trained(model, *, epochs=2, **own):
    modules, factors = started(model)
    settings = {"scale": 2.0, "dropout": 0.0, "lr": 0.1, **own}
    run, after = adapt(model, modules, factors, loss, [cut(*data(12, e), 4) for e in range(epochs)], **settings)
    return run, factors, after


class TestLayers:
    def test_a_score_is_the_mean_size_of_a_change_over_entries_and_sites(self):
        model = seeded(plain)
        zero = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
        one = {**zero, "2.weight": torch.full_like(zero["2.weight"], -3.0)}
        two = {**zero, "2.bias": torch.ones(8)}
        scores = layer_scores(layers(model), [one, two])
        entries = 8 * 6 * 9 + 8
        assert scores["2"] == pytest.approx((3.0 * 8 * 6 * 9 + 8) / entries / 2)
        assert scores["0"] == scores["6"] == scores["8"] == 0.0

    @pytest.mark.parametrize(
        ("count", "share", "wanted"), [(4, 0.2, 2), (10, 0.2, 2), (11, 0.2, 3), (15, 0.2, 3), (4, 1.0, 4)]
    )
    def test_a_fifth_of_them_rounded_up_and_at_least_two(self, count, share, wanted):
        model = nn.Sequential(*(nn.Conv2d(1, 1, 1) for _ in range(count)))
        found = layers(model)
        assert len(critical_layers(found, {layer.name: 1.0 for layer in found}, share)) == wanted

    def test_the_most_moved_are_taken_in_the_networks_order(self):
        found = layers(seeded(plain))
        scores = {"0": 0.2, "2": 0.9, "6": 0.1, "8": 0.5}
        assert [layer.name for layer in critical_layers(found, scores, 0.2)] == ["2", "8"]
        assert [layer.name for layer in critical_layers(found, scores, 0.75)] == ["0", "2", "8"]

    def test_ties_go_to_the_earlier(self):
        found = layers(seeded(plain))
        assert critical_layers(found, dict.fromkeys(("0", "2", "6", "8"), 1.0), 0.2) == found[:2]


class TestSparse:
    @pytest.mark.parametrize(
        ("shape", "density", "wanted"), [((10, 4, 5, 5), 0.1, 100), ((2, 2), 0.1, 1), ((3,), 1.0, 3)]
    )
    def test_the_density_is_exact(self, shape, density, wanted):
        mask = sparse_mask(shape, density, 0)
        assert mask.shape == shape and mask.dtype == torch.bool and int(mask.sum()) == wanted

    def test_the_seed_decides(self):
        a, b, c = (sparse_mask((20, 20), 0.1, seed) for seed in (1, 1, 2))
        assert torch.equal(a, b) and not torch.equal(a, c)


class TestLowRank:
    def test_a_fresh_adapter_does_nothing_to_the_bit(self):
        model, x = seeded(normed).eval(), data(5)[0]
        modules, factors = started(model)
        before = model(x)
        for module, (down, up) in zip(modules, factors, strict=True):
            assert torch.equal(merged_weight(module.weight.detach(), down, up, 2.0), module.weight)
        assert up.abs().sum() == 0 and down.abs().sum() > 0
        assert torch.equal(model(x), before)

    def test_a_convolution_is_viewed_as_outputs_by_inputs_times_positions(self):
        down, up = low_rank_start(torch.zeros(8, 6, 3, 3), 4, 0)
        assert (down.shape, up.shape) == ((4, 54), (8, 4))
        assert float(down.abs().max()) <= 54**-0.5

    def test_the_seed_and_the_dtype(self):
        a, b, c = (low_rank_start(torch.zeros(4, 5, dtype=torch.float64), 2, seed)[0] for seed in (1, 1, 2))
        assert torch.equal(a, b) and not torch.equal(a, c) and a.dtype == torch.float64

    def test_equal_adapters_average_to_themselves_and_others_by_weight(self):
        a = {"x.A": torch.randn(3, 7), "x.B": torch.randn(5, 3)}
        mean = average([a, a, a], [2 / 9, 3 / 9, 4 / 9])
        assert all(torch.equal(mean[n], a[n]) for n in a)
        b = {n: t + 4 for n, t in a.items()}
        assert torch.allclose(average([a, b], [0.75, 0.25])["x.A"], a["x.A"] + 1)


@pytest.mark.parametrize("build", BUILDS)
class TestAdapt:
    def test_the_model_does_not_change_its_buffers_included(self, build):
        model = seeded(build)
        before = State.from_module(model)
        run, factors, after = trained(model, momentum=0.9)
        assert (run.status, run.steps, run.examples) == ("ok", 6, 24)
        assert changed(before, State.from_module(model)) == set()
        assert all(not torch.equal(b, a) for (_, b), (_, a) in zip(factors, after, strict=True))
        assert all(p.requires_grad for p in model.parameters())
        assert not any(module._forward_hooks for module in model.modules())

    def test_training_it_is_training_the_merged_weights_factors(self, build):
        model = seeded(build, dtype=torch.float64)
        modules, factors = started(model)
        x, y = data(6, dtype=torch.float64)
        _, after = adapt(model, modules, factors, loss, [[(x, y)]], scale=2.0, dropout=0.0, lr=0.1)
        names = [layer.weight for layer in chosen(model)]
        leaves = [(a.clone().requires_grad_(), b.clone().requires_grad_()) for a, b in factors]
        own = dict(model.named_parameters())
        merged = {n: own[n].detach() + 2.0 * (b @ a).view_as(own[n]) for n, (a, b) in zip(names, leaves, strict=True)}
        value = cross_entropy(torch.func.functional_call(model.eval(), merged, (x,)), y)
        value.backward()
        for (a, b), (new_a, new_b) in zip(leaves, after, strict=True):
            assert torch.allclose(new_b, b - 0.1 * b.grad, atol=1e-12)
            assert torch.allclose(new_a, a - 0.1 * a.grad, atol=1e-12)

    def test_the_retained_loss_falls_under_the_merged_weights(self, build):
        model = seeded(build)
        _, _, after = trained(model, epochs=10, lr=0.2)
        state = State.from_module(model)
        params = dict(state.params)
        for layer, (down, up) in zip(chosen(model), after, strict=True):
            params[layer.weight] = merged_weight(params[layer.weight], down, up, 2.0)
        x, y = data(12)
        before = float(loss(model.eval(), x, y).detach())
        State(params, state.float_buffers, state.int_buffers).load_into(model)
        assert float(loss(model.eval(), x, y).detach()) < before

    def test_a_rate_of_zero_or_no_epochs_leave_the_factors(self, build):
        for own in ({"lr": 0.0}, {"epochs": 0}):
            _, factors, after = trained(seeded(build), **own)
            assert all(
                torch.equal(a, b) for x, y in zip(factors, after, strict=True) for a, b in zip(x, y, strict=True)
            )

    def test_a_rate_too_high_ends_at_the_last_usable_factors(self, build):
        run, _, after = trained(seeded(build), lr=1e6, epochs=5)
        assert run.status == "diverged" and run.reason
        assert all(bool(torch.isfinite(t).all()) for pair in after for t in pair)


def test_dropout_is_of_the_adapters_input_and_follows_the_seed():
    def once(seed, dropout):
        model = seeded(plain)
        torch.manual_seed(seed)
        return trained(model, dropout=dropout)[2][0][1]

    assert torch.equal(once(1, 0.5), once(1, 0.5))
    assert len({tuple(once(seed, 0.5).flatten().tolist()) for seed in (1, 2)}) == 2
    assert not torch.equal(once(1, 0.5), once(1, 0.0))


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, padding_mode="reflect"), torch.randn(2, 4, 9, 9)),
        (nn.ConvTranspose2d(4, 6, 2, stride=2), torch.randn(2, 4, 5, 5)),
        (nn.Conv3d(2, 3, 2, dilation=2), torch.randn(2, 2, 5, 5, 5)),
        (nn.Linear(7, 3, bias=False), torch.randn(2, 4, 7)),
    ],
)
def test_any_layer_can_have_an_adapter(layer, x):
    model = nn.Sequential(layer)
    down, up = low_rank_start(layer.weight.detach(), 2, 0)
    run, ((down, up),) = adapt(
        model, [layer], [(down, up)], lambda m, x, y: m(x).square().mean(), [[(x, x)]], scale=2.0, dropout=0.0, lr=0.0
    )
    up = torch.randn_like(up)
    _, ((new, _),) = adapt(
        model, [layer], [(down, up)], lambda m, x, y: m(x).square().mean(), [[(x, x)]], scale=2.0, dropout=0.0, lr=0.1
    )
    leaf = down.clone().requires_grad_()
    weight = layer.weight.detach() + 2.0 * (up @ leaf).view_as(layer.weight)
    torch.func.functional_call(layer, {"weight": weight}, (x,)).square().mean().backward()
    assert run.steps == 1 and torch.allclose(new, down - 0.1 * leaf.grad, atol=1e-5)


@pytest.mark.parametrize("build", BUILDS)
class TestTakingOff:
    def adapted(self, build):
        model = seeded(build)
        base = State.from_module(model)
        params = dict(base.params)
        name = chosen(model)[0].weight
        mask = sparse_mask(params[name].shape, 0.1, 0)
        params[name] = torch.where(mask, params[name] + torch.randn_like(params[name]), params[name])
        return base, State(params, base.float_buffers, base.int_buffers), name, mask

    def test_the_adapter_is_where_the_two_differ(self, build):
        base, adapted, name, mask = self.adapted(build)
        adapter = split(adapted, base)
        assert list(adapter.entries) == [name] and torch.equal(adapter.entries[name], mask)

    def test_off_is_the_original_and_on_is_the_adapted_bit_for_bit(self, build):
        base, adapted, _, _ = self.adapted(build)
        adapter = split(adapted, base)
        assert drop(adapted, adapter).sha256() == base.sha256()
        assert attach(base, adapter).sha256() == adapted.sha256()

    def test_subtracting_would_not_give_the_original_back(self, build):
        base, adapted, name, _ = self.adapted(build)
        change = adapted.params[name] - base.params[name]
        assert not torch.equal(adapted.params[name] - change, base.params[name])

    def test_the_sign_of_a_zero_comes_back_too(self, build):
        base, adapted, name, mask = self.adapted(build)
        place = tuple(mask.nonzero()[0])
        base.params[name][place], adapted.params[name][place] = -0.0, 0.0
        assert drop(adapted, split(adapted, base)).sha256() == base.sha256()

    def test_no_difference_is_no_adapter(self, build):
        base = self.adapted(build)[0]
        adapter = split(base, base)
        assert adapter.entries == {} and drop(base, adapter).sha256() == base.sha256()


def test_a_model_with_other_buffers_is_not_the_base_with_an_adapter():
    base = State.from_module(seeded(normed))
    moved = {n: t + 1 for n, t in base.float_buffers.items()}
    with pytest.raises(ValueError, match="running_mean"):
        split(State(base.params, moved, base.int_buffers), base)
