"""What a site answers about the importance of parameters (METHODS 2.6 and 2.7)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clients.catalogue import OPERATIONS
from clients.forgetting import Records
from clients.ops import Call
from clients.statistics import in_fixed_order
from partitions.errors import RunFailed
from tests.strategies.clinics import built, site, start
from unlearning.lfssd import sensitivity
from unlearning.ssd import importance
from unlearning.state import State

REQUEST = {"request": "class:1", "request-seed": 0}
OPS = ["importance", "sensitivity"]


def ask(one, op, state, **config):
    return OPERATIONS.get(op).run(one, Call(op, state, {**REQUEST, **config}))


def plainly(op, one, state, indices, size=8, model="tiny"):
    """Return the sums of a plain loop over the records in the order of their ids."""
    network = built(model)
    state.load_into(network)
    ids = dict(zip(one.train.indices, one.table("train")["record"], strict=True))
    order = sorted(indices, key=lambda index: ids[index])
    batches = [
        one.worker.batch(one.train.inputs, one.train.targets, np.array(order[i : i + size]))
        for i in range(0, len(order), size)
    ]
    loss = one.worker.task.loss
    return importance(network, loss, batches) if op == "importance" else sensitivity(network, batches)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("model", ["tiny", "tiny-bn"])
def test_it_answers_sums_for_all_records_and_for_those_to_forget(op, model):
    one, state = site("site-b", model=model), start(model)
    reply = ask(one, op, state)
    assert reply.state is None and reply.config["status"] == "ok"
    for name, which in (("all", "both"), ("forget", "forget")):
        wanted = plainly(op, one, state, one.records(which, "class:1", 0), model=model)
        assert reply.metrics[f"{name}-batches"] == wanted.batches
        assert set(reply.arrays[name]) == set(state.params)
        for parameter, found in reply.arrays[name].items():
            assert found.dtype == np.float32
            assert np.allclose(found, wanted.sums[parameter].numpy(), rtol=1e-3, atol=1e-9), parameter


@pytest.mark.parametrize("op", OPS)
def test_the_work_is_counted_and_no_step_is_taken(op):
    one, state = site("site-b", model="tiny-bn"), start("tiny-bn")
    before = state.sha256()
    reply = ask(one, op, state)
    forget = len(one.records("forget", "class:1", 0))
    assert reply.metrics["examples"] == 22 + forget and reply.metrics["num-examples"] == 22
    assert reply.metrics["num-batches"] == reply.metrics["all-batches"] + reply.metrics["forget-batches"]
    assert state.sha256() == before


@pytest.mark.parametrize("op", OPS)
def test_a_site_without_forget_records_answers_for_all_of_them_only(op):
    reply = ask(site(), op, start(), request="client:site-c")
    assert set(reply.arrays) == {"all"} and "forget-batches" not in reply.metrics


@pytest.mark.parametrize("op", OPS)
def test_a_departing_site_answers_for_both_and_they_are_the_same(op):
    reply = ask(site(), op, start(), request="client:site-a")
    assert all(np.array_equal(reply.arrays["all"][n], reply.arrays["forget"][n]) for n in reply.arrays["all"])
    assert reply.metrics["all-batches"] == reply.metrics["forget-batches"] == 2


@pytest.mark.parametrize("op", OPS)
def test_a_site_that_left_before_has_nothing_to_answer(op):
    reply = ask(site(), op, start(), request="client:site-a>class:1")
    assert reply.arrays == {} and reply.metrics["num-examples"] == 0


@pytest.mark.parametrize("op", OPS)
def test_what_an_earlier_request_forgot_is_never_read(op):
    one, spied = site("site-c"), site("site-c")
    spied.train.inputs[spied.records("forget", "class:2", 0)] = 255
    a, b = (ask(s, op, start(), request="class:2>class:1") for s in (one, spied))
    assert all(np.array_equal(a.arrays["all"][n], b.arrays["all"][n]) for n in a.arrays["all"])
    c = ask(spied, op, start(), request="class:1")
    assert any(not np.array_equal(a.arrays["all"][n], c.arrays["all"][n]) for n in a.arrays["all"])


def test_only_the_loss_free_one_ignores_labels():
    one, spied = site(), site()
    spied.train.targets[:] = (spied.train.targets + 1) % 4
    for op, same in (("importance", False), ("sensitivity", True)):
        a, b = (ask(s, op, start(), request="client:site-a").arrays["all"] for s in (one, spied))
        assert all(np.array_equal(a[n], b[n]) for n in a) == same


def test_batches_of_one_give_the_fisher_information():
    reply = ask(site(), "importance", start(), fisher="sample")
    assert reply.metrics["all-batches"] == 14


def test_the_order_is_that_of_ids_whatever_the_place_of_a_record():
    one = site("site-b")
    read = list(in_fixed_order(Records(one, one.train.indices, "both"), 8))
    assert [len(x) for x, _ in read] == [8, 8, 6]
    ids = one.table("train")["record"].tolist()
    assert torch.cat([y for _, y in read]).tolist() == [int(one.train.targets[i]) for i in np.argsort(ids)]
    assert list(in_fixed_order(Records(one, np.zeros(0, np.int64), "both"), 8)) == []


def test_the_scoring_model_is_left_without_gradients():
    one = site()
    ask(one, "importance", start())
    assert not any(p.requires_grad for p in one.worker.scorer(start()).parameters())


def test_a_full_gpu_is_named(monkeypatch):
    def full(*_):
        raise torch.cuda.OutOfMemoryError("tried to allocate 2 GiB")

    monkeypatch.setattr("clients.ssd.importance", full)
    with pytest.raises(RunFailed, match="site-a ran out of memory"):
        ask(site(), "importance", start())


def test_other_precisions_measure_as_well():
    for precision in ("bf16-mixed", "64-true"):
        state = start()
        if precision == "64-true":
            state = State({n: t.double() for n, t in state.params.items()}, {}, {})
        reply = ask(site(precision=precision), "importance", state)
        reference = ask(site(), "importance", start())
        for name, found in reply.arrays["all"].items():
            assert np.allclose(found, reference.arrays["all"][name], rtol=1e-4, atol=1e-12)
