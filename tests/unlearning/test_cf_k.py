"""Oracles of METHODS 2.2 about which layers are the last ones."""

from __future__ import annotations

import pytest
import torch

from clients.models.resnet18 import MODEL as RESNET
from tests.unlearning.toy_nets import ShortcutFirst, layers, normed, plain, seeded
from unlearning.cf_k import last_layers, parameters_of
from unlearning.layers import layers_of


@pytest.fixture(scope="module")
def resnet():
    model = RESNET.build((3, 32, 32), 6)
    return layers_of(model, torch.zeros(1, 3, 32, 32)), [name for name, _ in model.named_parameters()]


def test_the_last_layers_come_from_the_end():
    found = layers(seeded(plain))
    assert [layer.name for layer in last_layers(found, 3)] == ["2", "6", "8"]
    assert last_layers(found, 1) == (found[-1],)


@pytest.mark.parametrize("k", [4, 5, 100])
def test_as_many_as_there_are_or_more_are_all(k):
    found = layers(seeded(plain))
    assert last_layers(found, k) == found


def test_the_order_is_that_of_execution_not_of_modules():
    chosen = last_layers(layers(seeded(lambda: normed(ShortcutFirst))), 2)
    assert [layer.name for layer in chosen] == ["3.conv1", "6"]


def test_norms_passed_on_the_way_learn_and_are_not_counted():
    model = seeded(normed)
    names = [name for name, _ in model.named_parameters()]
    found = parameters_of(last_layers(layers(model), 3), names)
    assert found == (
        "3.conv1.weight",
        "3.bn1.weight",
        "3.bn1.bias",
        "3.shortcut.weight",
        "3.shortcut.bias",
        "6.weight",
        "6.bias",
    )


def test_two_definitions_of_the_last_three_of_a_resnet(resnet):
    found, names = resnet
    authors = parameters_of(last_layers(found, 3), names)
    assert set(authors) == {
        *("layer4.1.conv1.weight", "layer4.1.bn1.weight", "layer4.1.bn1.bias"),
        *("layer4.1.conv2.weight", "layer4.1.bn2.weight", "layer4.1.bn2.bias"),
        *("fc.weight", "fc.bias"),
    }
    notebook = parameters_of(last_layers(found, 3, "mufac"), names, "mufac")
    assert set(notebook) == {name for name in names if name.startswith(("layer3.", "layer4.", "fc."))}
    assert set(authors) < set(notebook)


def test_in_a_flat_network_both_definitions_are_the_same():
    model = seeded(plain)
    names = [name for name, _ in model.named_parameters()]
    both = [parameters_of(last_layers(layers(model), 2, d), names, d) for d in ("goel", "mufac")]
    assert both[0] == both[1] == ("6.weight", "6.bias", "8.weight", "8.bias")
