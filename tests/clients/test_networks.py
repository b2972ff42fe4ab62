"""The networks have the studies' sizes and take the inputs of the task."""

from __future__ import annotations

import pytest
import torch

from clients.catalogue import MODELS, TASKS
from partitions.errors import BadInput


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("classes", "count"), [(6, 876_486), (8, 877_512), (11, 879_051)])
def test_the_cnn_has_exactly_the_studies_parameters(classes: int, count: int) -> None:
    assert parameters(MODELS.get("cnn").build((3, 32, 32), classes)) == count


def test_resnet18_keeps_a_small_image_through_its_stem() -> None:
    model = MODELS.get("resnet18").build((3, 32, 32), 8).eval()
    assert parameters(model) == 11_172_936
    assert model.conv1.stride == (1, 1)
    assert isinstance(model.maxpool, torch.nn.Identity)


def test_resnet18_has_its_usual_stem_from_64_pixels_on() -> None:
    model = MODELS.get("resnet18").build((3, 64, 64), 8)
    assert model.conv1.stride == (2, 2)


@pytest.mark.parametrize("name", ["cnn", "resnet18"])
@pytest.mark.parametrize("shape", [(8, 8), (28, 28), (28, 28, 3), (64, 64, 3)])
def test_every_network_takes_every_image_size(name: str, shape: tuple[int, ...]) -> None:
    task = TASKS.get("classification")
    model = task.build(name, shape, 5).eval()
    x = task.to_inputs(torch.zeros((2, *shape), dtype=torch.uint8))
    assert model(x).shape == (2, 5)


def test_the_cnn_has_one_size_whatever_the_image() -> None:
    assert parameters(MODELS.get("cnn").build((3, 224, 224), 8)) == 877_512


def test_an_unknown_network_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(BadInput, match="did you mean 'resnet18'"):
        TASKS.get("classification").build("resnet-18", (28, 28), 3)
