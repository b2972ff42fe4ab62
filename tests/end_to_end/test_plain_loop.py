"""The federated training equals an independent plain-PyTorch FedAvg loop.

In 64-true, so that rounding does not blur the comparison: BatchNorm on small batches amplifies it. The loop below takes
from the project only the arrays, the initial weights and the batch order. Network, preprocessing, local SGD and
averaging are written out here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from in_process import run_group
from safetensors.torch import load_file
from torch import Tensor, nn

from clients.catalogue import MODELS
from clients.site import open_site
from clients.training import batch_order
from flower_apps.settings import GroupSettings
from flower_apps.sites import site_settings
from partitions.seeds import derive_seed

ROUNDS, EPOCHS, LR, MOMENTUM, DECAY, SEED = 2, 2, 0.02, 0.9, 1e-3, 7


def settings(model: str, cap: int) -> GroupSettings:
    return GroupSettings.parse(
        {
            "dataset": "digits",
            "cap": cap,
            "split": "dirichlet",
            "sites": 3,
            "alpha": 0.7,
            "model": model,
            "rounds": ROUNDS,
            "local-epochs": EPOCHS,
            "batch-size": 16,
            "lr": LR,
            "momentum": MOMENTUM,
            "weight-decay": DECAY,
            "train-seed": SEED,
            "requests": "client:site-0",
            "methods": "fine-tuning",
            "recovery-rounds": 0,
            "channels-last": False,
            "precision": "64-true",
            "device": "cpu",
        }
    )


def network(model: str) -> nn.Module:
    if model == "cnn":
        return nn.Sequential(
            *(nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(1600, 512), nn.ReLU(), nn.Linear(512, 10)),
        )
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(4)),
        *(nn.Flatten(), nn.Linear(392, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10)),
    )


class WithBatchNorm:
    """A small network with two kinds of BatchNorm, as a third-party package would register it."""

    name = "with-batchnorm"
    title = "for this test"

    def build(self, input_shape: tuple[int, int, int], outputs: int) -> nn.Module:
        return network(self.name)


def inputs(images: np.ndarray) -> Tensor:
    canvas = np.zeros((len(images), 32, 32), dtype=np.float32)
    canvas[:, 12:20, 12:20] = images
    return torch.from_numpy(np.repeat(canvas[:, None] / 127.5 - 1, 3, axis=1))


def plain_fedavg(
    model: str, initial: dict[str, Tensor], sites: dict[str, tuple[np.ndarray, np.ndarray]]
) -> dict[str, Tensor]:
    state = initial
    total = sum(len(labels) for _, labels in sites.values())
    for round_ in range(1, ROUNDS + 1):
        mean = {name: torch.zeros_like(t, dtype=torch.float64) for name, t in state.items()}
        for name, (images, labels) in sites.items():
            local = network(model).double()
            local.load_state_dict(state)
            local.train()
            sgd = torch.optim.SGD(local.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
            for batch in batch_order(len(labels), EPOCHS, 16, "merge", derive_seed(SEED, "train", name, round_)):
                sgd.zero_grad()
                output = local(inputs(images[batch]).double())
                nn.functional.cross_entropy(output, torch.from_numpy(labels[batch])).backward()
                sgd.step()
            for key, tensor in local.state_dict().items():
                mean[key] += tensor.double() * (len(labels) / total)
        state = {key: initial[key] if key.endswith("num_batches_tracked") else t for key, t in mean.items()}
    return state


def largest_difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    assert ours.keys() == theirs.keys()
    return max(float((ours[key].double() - theirs[key].double()).abs().max()) for key in ours)


@pytest.mark.parametrize(("model", "cap"), [("cnn", 20), ("with-batchnorm", 40)])
def test_federated_training_equals_a_plain_loop(
    tmp_path: Path, model: str, cap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    MODELS.names()
    monkeypatch.setitem(MODELS.__dict__["_components"], "with-batchnorm", WithBatchNorm())
    group = settings(model, cap)
    home = tmp_path / "home"
    torch.set_num_threads(1)
    run_group(group, home, tmp_path / "run")
    folder = next((home / "stages" / "train").iterdir())
    plain = {key.partition("/")[2]: tensor for key, tensor in load_file(folder / "model.safetensors").items()}
    first = load_file(folder / "history" / "round-0001.safetensors")
    initial = {k.partition("/")[2].partition("/")[2]: t for k, t in first.items() if k.startswith("before/")}
    sites = {}
    for name in ("site-0", "site-1", "site-2"):
        view = open_site(site_settings(group, home), None, name).train
        sites[name] = (np.asarray(view.inputs)[view.indices], np.asarray(view.targets)[view.indices])
    assert len({len(labels) for _, labels in sites.values()}) == 3, "the sites are of unequal size"

    expected = plain_fedavg(model, initial, sites)
    moved = largest_difference(initial, expected)
    assert largest_difference(plain, expected) < 1e-9 < moved

    key = next(key for key, tensor in initial.items() if tensor.is_floating_point())
    perturbed = {**initial, key: initial[key] + 0.05 * (torch.arange(initial[key].numel()) == 0).view_as(initial[key])}
    assert largest_difference(plain, plain_fedavg(model, perturbed, sites)) > 1e-3, "one weight makes a difference"
