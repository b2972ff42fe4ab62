"""Facts about the noise that is scaled to each tensor."""

import pytest
import torch

from unlearning.noise import relative_noise


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_its_deviation_is_sigma_times_the_tensors():
    tensor = 5 + 3 * torch.randn(40_000, generator=seeded(1))
    noise = relative_noise({"w": tensor}, 0.2, seeded())["w"]
    assert float(noise.std()) == pytest.approx(0.6, rel=0.02)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("tensor", [torch.tensor(4.0), torch.tensor([4.0]), torch.full((3, 2), 2.5)])
def test_one_element_or_a_constant_gets_none(tensor):
    assert torch.equal(relative_noise({"w": tensor}, 1.0, seeded())["w"], torch.zeros(tensor.shape).double())


def test_it_depends_on_the_seed_alone():
    tensors = {"a": torch.arange(6.0), "b": torch.arange(4.0)}
    first, again, other = (relative_noise(tensors, 1.0, seeded(s)) for s in (3, 3, 4))
    assert all(torch.equal(first[n], again[n]) and not torch.equal(first[n], other[n]) for n in tensors)
