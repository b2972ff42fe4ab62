"""BFU at a site: settings reach the objective, and it shares with its own retained records."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from clients.catalogue import OPERATIONS
from clients.ops import Call, Reply
from clients.site import Site
from unlearning.state import State

MakeSite = Callable[..., Site]
Initial = Callable[..., State]
CONFIG = {
    **{"seed": 3, "lr": 0.05, "epochs": 2, "round": 1, "purpose": "bfu", "max-norm": 5.0, "request": "class:1"},
    **{"request-seed": 0, "beta": 0.05, "eta-forget": 0.1, "eta-share": 0.1, "scale": 0.1, "loss-cap": 0.0},
}


def ask(site: Site, state: State, **config: object) -> Reply:
    given = {**CONFIG, **{key.replace("_", "-"): value for key, value in config.items()}}
    return OPERATIONS.get("unlearn_bayesian").run(site, Call("unlearn_bayesian", state, given))


def after(site: Site, state: State, **config: object) -> str:
    reply = ask(site, state, **config)
    assert reply.state is not None and reply.config["status"] == "ok"
    return reply.state.sha256()


def test_settings_reach_the_objective(make_site: MakeSite, initial: Initial) -> None:
    state = initial()
    changes = [{}, {"beta": 5.0}, {"eta_forget": 0.2}, {"eta_share": 0.3}, {"scale": 0.01}, {"loss_cap": 0.5}]
    changes += [{"optimizer": "adam", "lr": 1e-3}, {"seed": 4}, {"max_norm": 1e-3}]
    found = [after(make_site(), state, **change) for change in changes]
    assert len(set(found)) == len(found)
    assert after(make_site(), state) == found[0]


def test_no_weight_on_any_loss_leaves_the_model(make_site: MakeSite, initial: Initial) -> None:
    state = initial()
    assert after(make_site(), state, eta_forget=0.0, eta_share=0.0) == state.sha256()


def test_with_forget_records_alone_it_does_not_share(make_site: MakeSite, initial: Initial) -> None:
    reply = ask(make_site(), initial(), request="client:site-0", epochs=1)
    assert reply.metrics["examples"] == reply.metrics["num-forget"] == 30
    paired = ask(make_site(), initial(), epochs=1).metrics
    assert paired["num-forget"] < paired["examples"]


def test_two_epochs_below_the_stop_end_it(make_site: MakeSite, initial: Initial) -> None:
    site, state = make_site(), initial()
    an_epoch = ask(site, state, epochs=1).metrics["num-batches"]
    assert ask(site, state, epochs=6, stop=1.0, eta_forget=5.0).metrics["num-batches"] < 6 * an_epoch


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_it_runs_in_other_precisions(make_site: MakeSite, initial: Initial, precision: str) -> None:
    dtype = torch.float64 if precision == "64-true" else torch.float32
    assert ask(make_site(precision=precision), initial(dtype=dtype)).config["status"] == "ok"
