"""FedCARE at a site: each reference is what it says, and only the records it needs are opened."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import cross_entropy

from clients.catalogue import OPERATIONS, TASKS
from clients.ops import Call, Reply
from clients.site import Site
from partitions.errors import BadInput
from unlearning.state import State

MakeSite = Callable[..., Site]
Initial = Callable[..., State]
CONFIG = {
    **{"seed": 3, "lr": 0.05, "epochs": 1, "round": 1, "purpose": "fedcare", "max-norm": 5.0},
    **{
        "request": "sample:0.4",
        "request-seed": 0,
        "floor": -1.0,
        "classes": ["0", "2"],
        "images-per-class": 2,
        "image-steps": 3,
    },
}


def ask(site: Site, op: str, state: State, states: dict[str, State] | None = None, **config: object) -> Reply:
    given = {**CONFIG, **{key.replace("_", "-"): value for key, value in config.items()}}
    return OPERATIONS.get(op).run(site, Call(op, state, given, states or {}))


def ascended(site: Site, state: State, states: dict[str, State] | None = None, **config: object) -> str:
    reply = ask(site, "ascend_beside", state, states, **config)
    assert reply.state is not None and reply.config["status"] == "ok"
    return reply.state.sha256()


@pytest.mark.parametrize("reference", ["pseudo", "retain"])
def test_only_the_records_of_the_reference_are_opened(make_site: MakeSite, initial: Initial, reference: str) -> None:
    site, spied = make_site(), make_site()
    spied.train.inputs[spied.records("retain", "sample:0.4", 0)] = 255
    same = ascended(site, initial(), reference=reference) == ascended(spied, initial(), reference=reference)
    assert same == (reference == "pseudo")


def test_references_and_settings_give_other_models(make_site: MakeSite, initial: Initial) -> None:
    state = initial()
    gradient = {"reference": State({n: t.sign() for n, t in state.params.items()}, {}, {})}
    found = [
        ascended(make_site(), state),
        ascended(make_site(), state, seed=4),
        ascended(make_site(), state, reference="retain"),
        ascended(make_site(), state, gradient, reference="server-grad"),
        ascended(make_site(), state, max_norm=1e-3),
        ascended(make_site(), state, reference="pseudo", classes=["2"]),
    ]
    assert len(set(found)) == len(found)
    assert ascended(make_site(), state) == found[0]


def test_the_fit_of_the_pseudo_images_is_told(make_site: MakeSite, initial: Initial) -> None:
    rough = ask(make_site(), "ascend_beside", initial(), image_steps=0).metrics["reference-loss"]
    fitted = ask(make_site(), "ascend_beside", initial(), image_steps=20).metrics["reference-loss"]
    assert 0 < fitted < rough


def test_the_floor_ends_it_within_an_epoch(make_site: MakeSite, initial: Initial) -> None:
    def steps(floor: float) -> float:
        return ask(make_site(), "ascend_beside", initial(), floor=floor, epochs=3).metrics["num-batches"]

    assert steps(1.0) == 1 < steps(-1.0)


def test_the_retained_gradient_is_that_of_the_mean_loss_in_eval_mode(make_site: MakeSite, initial: Initial) -> None:
    site, state = make_site(train=21, model="resnet18", batch_size=8), initial("resnet18")
    reply = ask(site, "retained_gradient", state)
    module = TASKS.get("classification").build("resnet18", (10, 10), 3).eval()
    state.load_into(module)
    x, y = site.worker.batch(site.train.inputs, site.train.targets, site.records("retain", "sample:0.4", 0))
    cross_entropy(module(x), y).backward()
    assert reply.state is None
    assert reply.metrics["examples"] == reply.metrics["num-retain"] == len(x)
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(
            torch.from_numpy(reply.arrays["gradient"][name]), parameter.grad, atol=1e-4, rtol=1e-3
        )


def test_a_gradient_leaves_no_trace_in_the_next_operation(make_site: MakeSite, initial: Initial) -> None:
    site = make_site()
    before = ask(site, "scorecard", initial()).tables["scorecard"]
    ask(site, "retained_gradient", initial(seed=1))
    assert before.equals(ask(site, "scorecard", initial()).tables["scorecard"])
    assert not any(p.requires_grad for p in site.worker.scorer(initial()).parameters())


def test_a_site_without_retained_records_sends_no_gradient(make_site: MakeSite, initial: Initial) -> None:
    reply = ask(make_site(), "retained_gradient", initial(), request="client:site-0")
    assert not reply.arrays and reply.metrics["num-examples"] == 0


def test_a_missing_gradient_is_named(make_site: MakeSite, initial: Initial) -> None:
    with pytest.raises(BadInput, match="'reference'"):
        ask(make_site(), "ascend_beside", initial(), reference="server-grad")


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
@pytest.mark.parametrize("op", ["ascend_beside", "retained_gradient"])
def test_it_runs_in_other_precisions(make_site: MakeSite, initial: Initial, op: str, precision: str) -> None:
    dtype = torch.float64 if precision == "64-true" else torch.float32
    assert ask(make_site(precision=precision), op, initial(dtype=dtype)).config["status"] == "ok"
