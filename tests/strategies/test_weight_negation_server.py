"""NoT at the server: it asks nobody, and refuses loudly where there is nothing to negate."""

import pytest
import torch
from fake_sites import Hospitals, counts, federation, plan, schedule, start_state

from partitions.errors import BadInput, RunFailed
from strategies.registry import METHODS
from unlearning.layers import Layer

TWO = (Layer("first", "linear", "w", "scale", "bn", 3), Layer("head", "linear", "scale", "", "", 1))


def negation(layers=TWO, fed=None, **overrides):
    cls = METHODS.get("not")
    config = cls.resolve_config("lethe", {key.replace("_", "-"): value for key, value in overrides.items()})
    fed = fed or federation(Hospitals(counts()))
    return cls(fed, schedule(), plan(counts()), seed=0, config=config, layers=layers)


def test_the_server_negates_the_first_layer_and_asks_nobody():
    fed = federation(Hospitals(counts()))
    outcome = negation(fed=fed).run(start_state())
    assert fed.grid.calls() == [] and outcome.status == "ok"
    assert torch.equal(outcome.state.params["w"], -start_state().params["w"])
    assert torch.equal(outcome.state.params["scale"], start_state().params["scale"])
    assert outcome.notes == ("negated w",)
    assert outcome.cost.client_examples == 0


def test_another_layer_can_be_named():
    state = negation(layer="head").run(start_state()).state
    assert state.params["scale"] == -start_state().params["scale"]
    assert torch.equal(state.params["w"], start_state().params["w"])


def test_a_layer_that_is_not_there_is_refused_with_the_nearest():
    with pytest.raises(BadInput, match="did you mean 'head'"):
        negation(layer="heads").run(start_state())


def test_a_model_without_a_layer_is_refused():
    with pytest.raises(RunFailed, match="runs none"):
        negation(layers=()).run(start_state())


def test_a_mean_to_correct_needs_a_batchnorm_behind_the_layer():
    with pytest.raises(BadInput, match="no BatchNorm follows head"):
        negation(layer="head", negate_bn_mean=True).run(start_state())
