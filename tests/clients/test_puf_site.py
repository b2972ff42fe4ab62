"""PUF's operation at a site: two ordinary trainings, put together with their signs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from clients.catalogue import OPERATIONS
from clients.ops import Call, Reply
from clients.site import Site
from unlearning.state import State, distance

MakeSite = Callable[..., Site]
Initial = Callable[..., State]
CONFIG = {"seed": 3, "lr": 0.05, "epochs": 2, "round": 1, "purpose": "puf", "request": "class:1", "request-seed": 0}


def ask(site: Site, op: str, state: State, **changes: object) -> Reply:
    return OPERATIONS.get(op).run(site, Call(op, state, {**CONFIG, **changes}))


def signed(site: Site, state: State, records: str, eta: float, **changes: object) -> State:
    reply = ask(site, "pseudo_gradient", state, records=records, eta=eta, **changes)
    assert reply.state is not None and reply.config["status"] == "ok"
    return reply.state


def test_without_strength_the_retained_part_is_ordinary_training_scaled_by_its_share(
    make_site: MakeSite, initial: Initial
) -> None:
    site, start = make_site(), initial()
    trained = ask(site, "train", start, records="retain")
    assert trained.state is not None
    share = trained.metrics["num-retain"] / 30
    expected = {n: t + share * (trained.state.params[n] - t) for n, t in start.params.items()}
    found = signed(site, start, "both", 0.0)
    assert 0 < share < 1 and distance(found, State(expected, {}, {})) < 1e-5


def test_a_site_without_forget_records_answers_what_training_would(make_site: MakeSite, initial: Initial) -> None:
    site, start = make_site(), initial()
    trained = ask(site, "train", start, records="retain", request="client:other")
    found = signed(site, start, "both", 3.0, request="client:other")
    assert trained.state is not None and distance(found, trained.state) < 1e-6


def test_the_forget_part_is_negated_and_scaled(make_site: MakeSite, initial: Initial) -> None:
    site, start = make_site(), initial()
    once, twice = signed(site, start, "forget", 1.0), signed(site, start, "forget", 2.0)
    expected = {n: 2 * once.params[n] - t for n, t in start.params.items()}
    assert distance(twice, State(expected, {}, {})) < 1e-5
    x, y = site.worker.batch(site.train.inputs, site.train.targets, site.records("forget", "class:1", 0))
    with torch.no_grad():
        losses = [float(site.worker.task.loss(site.worker.scorer(s), x, y)) for s in (start, once)]
    assert losses[1] > losses[0], "the negated update climbs"


def test_special_mode_never_reads_a_retained_record(make_site: MakeSite, initial: Initial) -> None:
    site, spied = make_site(), make_site()
    spied.train.inputs[spied.records("retain", "class:1", 0)] = 255
    states = [signed(one, initial(), "forget", 1.0) for one in (site, spied)]
    assert states[0].sha256() == states[1].sha256()


def test_the_two_parts_are_a_sum(make_site: MakeSite, initial: Initial) -> None:
    site, start = make_site(), initial()
    n_forget = len(site.records("forget", "class:1", 0))
    share = n_forget / 30
    retained, negated = signed(site, start, "both", 0.0), signed(site, start, "forget", 1.5)
    expected = {n: retained.params[n] + share * (negated.params[n] - t) for n, t in start.params.items()}
    assert distance(signed(site, start, "both", 1.5), State(expected, {}, {})) < 1e-5


def test_the_reply_counts_both_trainings(make_site: MakeSite, initial: Initial) -> None:
    reply = ask(make_site(), "pseudo_gradient", initial(), records="both", eta=1.0)
    assert reply.metrics["num-examples"] == 30
    assert reply.metrics["num-forget"] + reply.metrics["num-retain"] == 30
    assert reply.metrics["examples"] == 60
    assert 0 < reply.metrics["loss"] < 5


def test_statistics_are_those_received(make_site: MakeSite, initial: Initial) -> None:
    start = initial("resnet18")
    found = signed(make_site(model="resnet18"), start, "both", 1.0, epochs=1)
    assert all(torch.equal(found.float_buffers[n], t) for n, t in start.float_buffers.items())
    assert all(torch.equal(found.int_buffers[n], t) for n, t in start.int_buffers.items())
    assert distance(found, start) > 0


def test_a_training_that_is_not_finite_is_reported(make_site: MakeSite, initial: Initial) -> None:
    reply = ask(make_site(), "pseudo_gradient", initial(), records="both", eta=1.0, lr=1e30)
    assert reply.config["status"] == "not-finite" and "records: the loss of step" in str(reply.config["reason"])


def test_no_records_no_state(make_site: MakeSite, initial: Initial) -> None:
    reply = ask(make_site(), "pseudo_gradient", initial(), records="forget", eta=1.0, request="client:other")
    assert reply.state is None and reply.metrics["num-examples"] == 0
