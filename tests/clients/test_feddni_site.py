"""FedDNI's input mode at a site."""

from __future__ import annotations

from collections.abc import Callable

import torch

from clients.catalogue import OPERATIONS
from clients.ops import Call, Reply
from clients.site import Site
from unlearning.state import State, distance

MakeSite = Callable[..., Site]
Initial = Callable[..., State]
CONFIG = {"seed": 3, "lr": 0.05, "epochs": 2, "round": 1, "purpose": "feddni", "request": "class:1", "request-seed": 0}


def diffused(site: Site, state: State, **changes: object) -> Reply:
    return OPERATIONS.get("diffuse").run(site, Call("diffuse", state, {**CONFIG, **changes}))


def test_it_trains_on_the_forget_records_only(make_site: MakeSite, initial: Initial) -> None:
    site, spied = make_site(), make_site()
    spied.train.inputs[spied.records("retain", "class:1", 0)] = 255
    replies = [diffused(one, initial()) for one in (site, spied)]
    assert replies[0].state is not None and replies[1].state is not None
    assert replies[0].state.sha256() == replies[1].state.sha256()
    assert distance(replies[0].state, initial()) > 0
    assert replies[0].metrics["examples"] == 2 * replies[0].metrics["num-forget"]


def test_the_noise_follows_the_seed(make_site: MakeSite, initial: Initial) -> None:
    states = [diffused(make_site(), initial(), seed=seed).state for seed in (3, 3, 4)]
    assert states[0] is not None and states[1] is not None and states[2] is not None
    assert states[0].sha256() == states[1].sha256() != states[2].sha256()


def test_without_noise_left_in_the_schedule_it_learns_the_uniform_distribution(
    make_site: MakeSite, initial: Initial
) -> None:
    site, start = make_site(), initial()
    reply = diffused(site, start, **{"last-level": 1.0, "epochs": 30, "lr": 0.2})
    assert reply.state is not None
    x, _ = site.worker.batch(site.train.inputs, site.train.targets, site.records("forget", "class:1", 0))
    entropies = []
    for state in (start, reply.state):
        with torch.no_grad():
            p = torch.softmax(site.worker.scorer(state)(x), dim=1)
        entropies.append(float(torch.special.entr(p).sum(1).mean()))
    assert entropies[1] > max(entropies[0], 1.09)


def test_statistics_of_a_network_with_batchnorm_stay(make_site: MakeSite, initial: Initial) -> None:
    start = initial("resnet18")
    reply = diffused(make_site(model="resnet18"), start, epochs=1)
    assert reply.state is not None
    assert all(torch.equal(reply.state.float_buffers[n], t) for n, t in start.float_buffers.items())
