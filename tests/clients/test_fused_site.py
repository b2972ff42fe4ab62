"""What a site that stays does with a low-rank adapter (METHODS 1.13)."""

from __future__ import annotations

import numpy as np
import pytest

from clients.catalogue import OPERATIONS
from clients.ops import Call
from partitions.errors import BadInput
from tests.strategies.clinics import layers, site, start
from unlearning.fused import low_rank_start, merged_weight
from unlearning.state import State

CONFIG = {
    **{"seed": 3, "lr": 0.05, "epochs": 2, "round": 2, "request": "class:1", "request-seed": 0},
    **{"scale": 2.0, "dropout": 0.1, "layers": ["6", "8"]},
}


def given(state, model="tiny", moved=0.0):
    """Return the further models of a message, and the merged model that goes with them."""
    chosen = [layer for layer in layers(model) if layer.name in CONFIG["layers"]]
    factors, merged = {}, dict(state.params)
    for i, layer in enumerate(chosen):
        down, up = low_rank_start(state.params[layer.weight], 4, i)
        up += moved
        factors |= {f"{layer.name}.A": down, f"{layer.name}.B": up}
        merged[layer.weight] = merged_weight(state.params[layer.weight], down, up, 2.0)
    weights = {layer.weight: state.params[layer.weight] for layer in chosen}
    sent = {"adapter": State(factors, {}, {}), "base": State(weights, {}, {})}
    return sent, State(merged, state.float_buffers, state.int_buffers)


def names(model):
    return [layer.name for layer in layers(model)[-2:]]


def ask(one, state, states, **config):
    return OPERATIONS.get("adapt").run(one, Call("adapt", state, {**CONFIG, **config}, states))


@pytest.mark.parametrize("model", ["tiny", "tiny-bn"])
def test_it_answers_factors_and_no_model(model):
    chosen = names(model)
    state = start(model)
    factors = {}
    for i, name in enumerate(chosen):
        down, up = low_rank_start(state.params[f"{name}.weight"], 4, i)
        factors |= {f"{name}.A": down, f"{name}.B": up}
    base = {f"{name}.weight": state.params[f"{name}.weight"] for name in chosen}
    states = {"adapter": State(factors, {}, {}), "base": State(base, {}, {})}
    reply = ask(site("site-c", model=model), state, states, layers=chosen)
    assert reply.state is None and reply.config["status"] == "ok"
    assert set(reply.arrays["adapter"]) == set(factors)
    assert all(reply.arrays["adapter"][n].shape == tuple(t.shape) for n, t in factors.items())
    assert all(np.abs(reply.arrays["adapter"][f"{name}.B"]).sum() > 0 for name in chosen)


def test_only_retained_records_are_read_and_counted():
    one, spied = site("site-c"), site("site-c")
    spied.train.inputs[spied.records("forget", "class:1", 0)] = 255
    states, merged = given(start())
    a, b = (ask(s, merged, states) for s in (one, spied))
    assert all(np.array_equal(a.arrays["adapter"][n], b.arrays["adapter"][n]) for n in a.arrays["adapter"])
    assert a.metrics["num-examples"] == a.metrics["num-retain"] and a.metrics["examples"] == 2 * a.metrics["num-retain"]


def test_the_base_is_what_the_message_says_not_the_merged_weights():
    one = site("site-c")
    states, merged = given(start(), moved=0.05)
    from_merged, from_base = ask(one, merged, states, dropout=0.0), ask(one, start(), states, dropout=0.0)
    adapters = [reply.arrays["adapter"] for reply in (from_merged, from_base)]
    assert all(np.array_equal(adapters[0][n], adapters[1][n]) for n in adapters[0])


def test_the_next_training_is_whole_again():
    def train(one):
        config = {**CONFIG, "records": "all"}
        return OPERATIONS.get("train").run(one, Call("train", start(), config)).state.sha256()

    fresh, used = site("site-c"), site("site-c")
    states, merged = given(start())
    ask(used, merged, states)
    assert train(fresh) == train(used)


def test_a_site_without_retained_records_has_nothing_to_train():
    states, merged = given(start())
    reply = ask(site(), merged, states, request="client:site-a")
    assert reply.arrays == {} and reply.metrics["num-examples"] == 0


def test_seeds_rounds_and_sites_have_their_own_streams():
    states, merged = given(start())

    def factor(**changes):
        return tuple(ask(site("site-c"), merged, states, **changes).arrays["adapter"]["8.B"].flatten().tolist())

    assert factor() == factor()
    assert len({factor(), factor(seed=4), factor(round=3)}) == 3


def test_a_run_that_goes_too_far_is_reported_with_usable_factors():
    states, merged = given(start())
    reply = ask(site("site-c"), merged, states, lr=1e7, epochs=4)
    assert reply.config["status"] == "diverged" and reply.config["reason"]
    assert all(np.isfinite(a).all() for a in reply.arrays["adapter"].values())


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_other_precisions(precision):
    state = start()
    if precision == "64-true":
        state = State({n: t.double() for n, t in state.params.items()}, {}, {})
    states, merged = given(state)
    reply = ask(site("site-c", precision=precision), merged, states)
    wanted = np.float64 if precision == "64-true" else np.float32
    assert reply.config["status"] == "ok" and reply.arrays["adapter"]["8.B"].dtype == wanted


def test_a_message_without_its_models_is_refused():
    with pytest.raises(BadInput, match="'base' and 'adapter'"):
        ask(site(), start(), {})
