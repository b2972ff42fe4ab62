"""What a site answers about the activations of channels (METHODS 1.5)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clients.catalogue import OPERATIONS
from clients.ops import Call
from partitions.errors import BadInput
from tests.strategies.clinics import built, layers, site, start
from unlearning.prune import class_activations

REQUEST = {"request": "class:1", "request-seed": 0}


def ask(one, state, **config):
    return OPERATIONS.get("activations").run(one, Call("activations", state, {**REQUEST, **config}))


@pytest.mark.parametrize("model", ["tiny", "tiny-bn"])
def test_it_answers_sums_and_counts_by_class_and_no_model(model):
    one, names = site("site-c", model=model), [layer.name for layer in layers(model)[:-1]]
    reply = ask(one, start(model), layers=names)
    x, y = one.worker.batch(one.train.inputs, one.train.targets, one.train.indices)
    wanted = class_activations(built(model), names, [(x, y)], 4)
    assert reply.state is None and set(reply.arrays["sums"]) == set(names)
    assert reply.arrays["counts"]["counts"].tolist() == np.bincount(one.train.targets, minlength=4).tolist()
    for name in names:
        assert np.allclose(reply.arrays["sums"][name], wanted.sums[name].numpy(), rtol=1e-4, atol=1e-4)


def test_reading_is_counted_and_is_no_gradient_step():
    reply = ask(site("site-c"), start(), layers=["0"])
    assert (reply.metrics["examples"], reply.metrics["num-batches"]) == (31, 0)


def test_what_an_earlier_request_forgot_is_not_counted():
    one = site("site-c")
    reply = ask(one, start(), layers=["0"], request="class:2>class:1")
    counts = np.bincount(one.train.targets, minlength=4)
    counts[2] = 0
    assert reply.arrays["counts"]["counts"].tolist() == counts.tolist()
    assert float(np.abs(reply.arrays["sums"]["0"][:, 2]).max()) == 0.0


def test_a_record_without_a_class_is_left_out():
    one = site("site-c")
    one.train.table.loc[:4, "stratum"] = ""
    reply = ask(one, start(), layers=["0"], request="sample:0.1")
    assert int(reply.arrays["counts"]["counts"].sum()) == 31 - 5


def test_the_layers_must_be_named():
    with pytest.raises(BadInput, match="layers"):
        ask(site(), start())


def test_random_streams_do_not_matter():
    a, b = (ask(site(), start(), layers=["0", "2"], seed=seed) for seed in (0, 1))
    assert torch.equal(*(torch.tensor(reply.arrays["sums"]["2"]) for reply in (a, b)))
