"""Layers are found in the order in which the network runs them."""

import torch
from torch import nn

from clients.models.cnn import MODEL as CNN
from clients.models.resnet18 import MODEL as RESNET
from unlearning.layers import layers_of


def test_the_cnn_has_four_layers_and_ends_with_its_head():
    found = layers_of(CNN.build((3, 32, 32), 6), torch.zeros(1, 3, 32, 32))
    assert [(layer.kind, layer.width, layer.norm) for layer in found] == [
        ("conv", 32, ""),
        ("conv", 64, ""),
        ("linear", 512, ""),
        ("linear", 6, ""),
    ]
    assert found[0].own == ("0.weight", "0.bias")


def test_a_shortcut_comes_where_it_is_run_and_knows_its_norm():
    model = RESNET.build((3, 32, 32), 6)
    model.train()
    found = layers_of(model, torch.zeros(1, 3, 32, 32))
    names = [layer.name for layer in found]
    assert names[0] == "conv1" and names[-1] == "fc" and len(names) == 21
    assert found[0].norm == "bn1" and found[0].bias == "" and found[-1].norm == ""
    assert all(layer.norm for layer in found[:-1])
    assert names.index("layer2.0.downsample.0") == names.index("layer2.0.conv2") + 1


def test_looking_at_a_model_changes_nothing_of_it():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2)).train()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    layers_of(model, torch.ones(1, 1, 4, 4))
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert all(module.training for module in model.modules())
