"""Oracles of METHODS 1.5."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clients.models.cnn import MODEL as CNN
from clients.models.resnet18 import MODEL as RESNET
from tests.unlearning.toy_nets import CLASSES, changed, cut, data, layers, normed, plain, seeded
from unlearning.layers import layers_of
from unlearning.partial import confined
from unlearning.prune import (
    Activations,
    choose,
    class_activations,
    class_scores,
    pooled,
    prunable,
    trainable_filters,
    zero_channels,
    zeroed,
)
from unlearning.state import State

A = torch.tensor([[4.0, 1, 1], [2, 2, 2], [1, 1, 4]], dtype=torch.float64)
ALL = torch.ones(3, dtype=torch.bool)


def none(scores):
    return {name: torch.zeros(len(values), dtype=torch.bool) for name, values in scores.items()}


class TestScores:
    def test_the_worked_example(self):
        scores = class_scores(A, ALL, [0], smooth=False)
        assert scores.tolist() == pytest.approx([0.23169, -0.08219, 0.05792], abs=1e-5)

    def test_below_four_classes_they_are_smoothed_and_the_ranks_stay(self):
        scores = class_scores(A, ALL, [0])
        assert scores.tolist() == pytest.approx([4 / 7 * 0.693147, 0.0, 1 / 7 * 0.693147], abs=1e-5)
        assert scores.argsort().tolist() == class_scores(A, ALL, [0], smooth=False).argsort().tolist()

    def test_with_two_classes_the_plain_score_tells_nothing_and_the_smoothed_one_does(self):
        means = torch.tensor([[5.0, 1.0], [1.0, 5.0], [3.0, 3.0]], dtype=torch.float64)
        two = torch.ones(2, dtype=torch.bool)
        assert class_scores(means, two, [0], smooth=False).max() <= 0
        smoothed = class_scores(means, two, [0])
        assert smoothed.argmax() == 0 and smoothed[0] > 0

    def test_from_four_classes_on_they_are_plain(self):
        means = torch.eye(4, dtype=torch.float64) + 0.1
        four = torch.ones(4, dtype=torch.bool)
        assert torch.equal(class_scores(means, four, [1]), class_scores(means, four, [1], smooth=False))

    def test_a_class_without_records_is_no_document(self):
        wider = torch.cat([A, torch.zeros(3, 1, dtype=torch.float64)], dim=1)
        present = torch.tensor([True, True, True, False])
        assert class_scores(wider, present, [0]).tolist() == class_scores(A, ALL, [0]).tolist()

    def test_a_class_to_forget_that_nobody_has_scores_nothing(self):
        assert class_scores(A, torch.tensor([False, True, True]), [0]).tolist() == [0, 0, 0]

    def test_a_dead_layer_scores_nothing(self):
        scores = class_scores(torch.zeros(2, 4, dtype=torch.float64), torch.ones(4, dtype=torch.bool), [1])
        assert scores.tolist() == [0, 0]

    def test_of_several_classes_the_largest_counts(self):
        both = class_scores(A, ALL, [0, 2])
        assert both.tolist() == torch.maximum(class_scores(A, ALL, [0]), class_scores(A, ALL, [2])).tolist()

    def test_the_width_of_a_layer_can_be_balanced(self):
        scaled = class_scores(A, ALL, [0], coe=3.0)
        assert torch.allclose(scaled, class_scores(A, ALL, [0]) * 1.0)
        assert torch.allclose(class_scores(A, ALL, [0], coe=1.0), class_scores(A, ALL, [0]) * 2.0986122886681096)


class TestChoice:
    def test_the_most_specific_channel_is_the_one_to_go(self):
        scores = {"a": class_scores(A, ALL, [0], smooth=False)}
        assert choose(scores, 1 / 3, none(scores))["a"].tolist() == [True, False, False]

    def test_nothing_of_a_share_of_zero(self):
        scores = {"a": torch.rand(5), "b": torch.rand(3)}
        assert not any(mask.any() for mask in choose(scores, 0.0, none(scores)).values())

    def test_layers_compete_and_the_share_is_rounded_down(self):
        scores = {"a": torch.tensor([0.1, 0.9, 0.2, 0.8]), "b": torch.tensor([0.7, 0.3, 0.05, 0.6])}
        chosen = choose(scores, 0.49, none(scores))
        assert chosen["a"].tolist() == [False, True, False, True] and chosen["b"].tolist() == [
            True,
            False,
            False,
            False,
        ]

    def test_no_layer_loses_more_than_half_and_the_others_make_up_for_it(self):
        scores = {"a": torch.tensor([9.0, 8, 7, 6]), "b": torch.tensor([1.0, 2, 3, 4])}
        chosen = choose(scores, 0.5, none(scores))
        assert [int(chosen[name].sum()) for name in "ab"] == [2, 2]
        assert sum(int(mask.sum()) for mask in choose(scores, 1.0, none(scores)).values()) == 4

    def test_what_is_zero_already_is_not_chosen_and_counts_towards_the_half(self):
        scores = {"a": torch.tensor([9.0, 8, 7, 6])}
        gone = {"a": torch.tensor([True, False, False, False])}
        assert choose(scores, 1.0, gone)["a"].tolist() == [False, True, False, False]


class TestScope:
    @pytest.fixture(scope="class")
    def cnn(self):
        return layers_of(CNN.build((3, 32, 32), 6), torch.zeros(1, 3, 32, 32))

    @pytest.fixture(scope="class")
    def resnet(self):
        return layers_of(RESNET.build((3, 32, 32), 6), torch.zeros(1, 3, 32, 32))

    def test_few_convolutions_are_joined_by_the_layer_before_the_head(self, cnn):
        names = {
            scope: [layer.name for layer in prunable(cnn, scope)] for scope in ("auto", "conv", "penultimate", "all")
        }
        assert names == {"auto": ["0", "3", "7"], "conv": ["0", "3"], "penultimate": ["7"], "all": ["0", "3", "7"]}

    def test_many_convolutions_are_enough(self, resnet):
        assert prunable(resnet, "auto") == prunable(resnet, "conv") == resnet[:-1]
        assert prunable(resnet, "penultimate") == resnet[-2:-1]

    def test_the_head_is_never_pruned(self, cnn, resnet):
        for found in (cnn, resnet):
            for scope in ("auto", "conv", "penultimate", "all"):
                assert found[-1] not in prunable(found, scope)
        assert prunable(cnn[-1:], "all") == ()


@pytest.mark.parametrize("build", [plain, normed])
class TestActivations:
    def names(self, build):
        return [layer.name for layer in prunable(layers(seeded(build)), "all")]

    def test_they_are_rectified_means_over_space_by_class(self, build):
        model, (x, y) = seeded(build).eval(), data(11)
        name = self.names(build)[1]
        found = class_activations(model, [name], cut(x, y, 4), CLASSES)
        outputs = []
        handle = dict(model.named_modules())[name].register_forward_hook(lambda *args: outputs.append(args[2]))
        model(x)
        handle.remove()
        per_image = outputs[0].detach().relu().mean((2, 3))
        for c in range(CLASSES):
            assert int(found.counts[c]) == int((y == c).sum())
            assert torch.allclose(found.sums[name][:, c].float(), per_image[y == c].sum(0), atol=1e-4)

    def test_two_sites_add_up_to_one_that_has_both(self, build):
        model, (x, y) = seeded(build), data(20)
        names = self.names(build)
        parts = [class_activations(model, names, cut(*part, 4), CLASSES) for part in ((x[:7], y[:7]), (x[7:], y[7:]))]
        one, both = class_activations(model, names, cut(x, y, 4), CLASSES), pooled(parts)
        assert torch.equal(one.counts, both.counts)
        assert all(torch.allclose(one.means[n], both.means[n], atol=1e-6) for n in names)

    def test_the_model_and_its_hooks_are_left_as_they_were(self, build):
        model = seeded(build)
        before = State.from_module(model)
        class_activations(model, self.names(build), cut(*data(6), 3), CLASSES)
        assert changed(before, State.from_module(model)) == set()
        assert not any(module._forward_hooks for module in model.modules())

    def test_a_record_without_a_class_is_left_out(self, build):
        model, (x, y) = seeded(build), data(6)
        y[2:4] = -1
        found = class_activations(model, self.names(build), [(x, y)], CLASSES)
        kept = class_activations(model, self.names(build), [(x[[0, 1, 4, 5]], y[[0, 1, 4, 5]])], CLASSES)
        assert torch.equal(found.counts, kept.counts)
        assert all(torch.allclose(found.sums[n], kept.sums[n], atol=1e-6) for n in found.sums)


def test_a_hidden_linear_layer_has_channels_too():
    model, (x, y) = seeded(plain), data(5)
    found = class_activations(model, ["6"], [(x, y)], CLASSES)
    expected = model[:7](x).relu().detach()
    assert torch.allclose(found.sums["6"].sum(1).float(), expected.sum(0), atol=1e-5)


def test_positions_of_a_linear_layer_are_averaged():
    model = nn.Sequential(nn.Linear(3, 2))
    x = torch.randn(4, 5, 3)
    found = class_activations(model, ["0"], [(x, torch.zeros(4, dtype=torch.int64))], 1)
    assert torch.allclose(found.sums["0"][:, 0].float(), model(x).relu().mean(1).sum(0), atol=1e-5)


def test_a_class_without_records_has_means_of_zero():
    found = Activations({"a": torch.tensor([[2.0, 0.0]])}, torch.tensor([4, 0]))
    assert found.means["a"].tolist() == [[0.5, 0.0]]


class TestZeroing:
    def channels(self, layer, *which):
        mask = torch.zeros(layer.width, dtype=torch.bool)
        mask[list(which)] = True
        return {layer.name: mask}

    def test_weight_bias_and_norm_of_a_channel_become_zero_and_nothing_else(self):
        model = seeded(normed)
        state, (first, *_) = State.from_module(model), layers(model)
        after = zeroed(state, [first], self.channels(first, 1, 4))
        assert changed(state, after) == {"0.weight", "1.weight", "1.bias"}
        for name in ("0.weight", "1.weight", "1.bias"):
            assert after.params[name][[1, 4]].abs().sum() == 0
            assert torch.equal(after.params[name][[0, 2, 3, 5]], state.params[name][[0, 2, 3, 5]])

    @pytest.mark.parametrize("build", [plain, normed])
    def test_a_pruned_channel_puts_out_nothing_behind_its_norm(self, build):
        model = seeded(build).eval()
        state, (first, *_) = State.from_module(model), layers(model)
        zeroed(state, [first], self.channels(first, 2)).load_into(model)
        seen = model[: 2 if first.norm else 1](data(3)[0])
        assert seen[:, 2].abs().max() == 0 and seen[:, [0, 1, 3, 4, 5]].abs().min(0).values.sum() > 0

    def test_zero_channels_are_found_again(self):
        model = seeded(normed)
        state, found = State.from_module(model), layers(model)
        after = zeroed(state, [found[0]], self.channels(found[0], 3))
        zero = zero_channels(after, found[:-1])
        assert zero[found[0].name].tolist() == [False, False, False, True, False, False]
        assert not any(zero[layer.name].any() for layer in found[1:-1])

    def test_a_dead_weight_row_with_a_bias_is_not_a_zero_channel(self):
        model = seeded(plain)
        found = layers(model)
        with torch.no_grad():
            model[0].weight[0] = 0
        assert not zero_channels(State.from_module(model), found)["0"].any()

    @pytest.mark.parametrize("build", [plain, normed])
    def test_masks_follow_from_the_zeros_and_name_every_parameter(self, build):
        model = seeded(build)
        state, found = State.from_module(model), layers(model)
        after = zeroed(state, [found[0]], self.channels(found[0], 0, 5))
        masks = trainable_filters(after, prunable(found, "all"))
        assert set(masks) == set(state.params)
        grown = State({n: t + 1 for n, t in after.params.items()}, after.float_buffers, after.int_buffers)
        held = confined(after, grown, masks)
        assert zero_channels(held, [found[0]])[found[0].name].tolist() == [True, False, False, False, False, True]
        others = [n for n in state.params if not n.startswith(("0.", "1."))]
        assert all(torch.equal(held.params[n], grown.params[n]) for n in others)

    def test_without_zeros_everything_may_change(self):
        model = seeded(normed)
        masks = trainable_filters(State.from_module(model), layers(model)[:-1])
        assert all(bool(mask) for mask in masks.values())
