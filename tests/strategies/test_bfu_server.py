"""BFU at the server: both merges, and which records it opens with and without self-sharing."""

from __future__ import annotations

import pytest
import torch
from fake_sites import Hospitals, counts, federation, plan, pulled, schedule, start_state

from strategies.bfu import METHOD
from strategies.plans import RequestPlan, SiteCounts
from unlearning.state import State

SHARED = {"site-a": (10, 0), "site-b": (5, 15), "site-c": (0, 30), "site-d": (20, 20)}


def after(held=None, request=None, **overrides) -> tuple[State, list]:
    held = held or counts()
    fed = federation(Hospitals(held))
    config = METHOD.resolve_config("lethe", {k.replace("_", "-"): v for k, v in overrides.items()})
    made = METHOD(fed, schedule(), request or plan(held), seed=7, config=config)
    return made.run(start_state()).state, fed.grid.calls()


def class_request() -> RequestPlan:
    return RequestPlan("class:1", 0, "class", (), {site: SiteCounts(*c) for site, c in SHARED.items()})


def test_a_lone_client_replaces_the_model() -> None:
    state, calls = after()
    assert [(site, kind) for site, kind, _ in calls] == [("site-a", "train.unlearn_bayesian")]
    expected = pulled(start_state(), "site-a", calls[0][2].config)
    for name, tensor in expected.params.items():
        torch.testing.assert_close(state.params[name], tensor)


def test_with_fedavg_the_sites_that_idle_hold_the_model_back() -> None:
    replaced, averaged, start = after()[0], after(merge="fedavg")[0], start_state()
    for name, tensor in start.params.items():
        torch.testing.assert_close(averaged.params[name], tensor + 0.1 * (replaced.params[name] - tensor))


def test_with_fedavg_a_holder_counts_with_all_its_records() -> None:
    state, calls = after(SHARED, class_request(), merge="fedavg")
    start = start_state()
    expected = start.params["w"].double()
    for site, _, call in calls:
        moved = pulled(start, site, call.config).params["w"] - start.params["w"]
        expected = expected + sum(SHARED[site]) / 100 * moved.double()
    assert len(calls) == 3
    torch.testing.assert_close(state.params["w"], expected.float())


@pytest.mark.parametrize(("share", "records"), [(0.1, "both"), (0.0, "forget")])
def test_retained_records_are_opened_for_self_sharing_alone(share: float, records: str) -> None:
    _, calls = after(SHARED, class_request(), eta_share=share)
    assert {call.config["records"] for _, _, call in calls} == {records}


def test_the_authors_settings_are_a_preset() -> None:
    config = METHOD.resolve_config("original")
    assert (config.optimizer, config.lr, config.epochs, config.merge) == ("adam", 1e-3, 41, "fedavg")
    assert config.loss_cap == float("inf")
