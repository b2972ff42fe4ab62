"""SSD and its loss-free variant on a federation (METHODS 2.6, 2.7 and 4)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from clinics import asked, built, clinics, method, request, site, sites, start
from fake_sites import Hospitals, counts, federation, plan, schedule, start_state

from partitions.errors import BadInput, RunFailed
from strategies.history import HistoryWriter
from strategies.registry import METHODS
from strategies.wire import reply_content
from tests.unlearning.toy_nets import changed
from unlearning.lfssd import sensitivity
from unlearning.ssd import dampen, importance, pooled
from unlearning.state import State

BOTH = {"ssd": "train.importance", "lfssd": "train.sensitivity"}


def centrally(name, found, text, model, alpha):
    """Return dampening by a plain loop over all records, in the batches the sites make of them."""
    network = built(model)
    parts = {"both": [], "forget": []}
    for one in found.values():
        for which, into in parts.items():
            ids = dict(zip(one.train.indices, one.table("train")["record"], strict=True))
            order = sorted(one.records(which, text, 0), key=lambda index: ids[index])
            read = [
                one.worker.batch(one.train.inputs, one.train.targets, np.array(order[i : i + 8]))
                for i in range(0, len(order), 8)
            ]
            loss = one.worker.task.loss
            into.append(importance(network, loss, read) if name == "ssd" else sensitivity(network, read))
    return dampen(start(model).params, pooled(parts["forget"]), pooled(parts["both"]), alpha, 1.0)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("model", ["tiny", "tiny-bn"])
@pytest.mark.parametrize("text", ["client:site-b", "class:1", "sample:0.2", "client:site-a>class:2"])
def test_the_federation_gives_what_one_place_with_all_records_would(name, model, text):
    found = sites(model)
    outcome = method(name, clinics(found), request(found, text), model=model, overrides={"alpha": 1.2}).run(
        start(model)
    )
    wanted = centrally(name, found, text, model, 1.2)
    total = sum(t.numel() for t in wanted.params.values())
    differing = sum(
        int((~torch.isclose(outcome.state.params[n], t, rtol=1e-3, atol=1e-6)).sum()) for n, t in wanted.params.items()
    )
    assert 0 < wanted.selected < total
    assert differing <= 2, "a ratio right at alpha may fall on the other side"


@pytest.mark.parametrize(("name", "op"), BOTH.items())
def test_all_sites_are_asked_once_the_departing_one_too(name, op):
    found = sites()
    fed = clinics(found)
    outcome = method(name, fed, request(found, "client:site-b")).run(start())
    assert sorted(asked(fed)) == [(site, op) for site in sorted(found)]
    assert outcome.rounds == 1 and outcome.cost.client_examples == 14 + 22 + 31 + 22


@pytest.mark.parametrize("name", BOTH)
def test_a_site_that_left_before_is_not_asked(name):
    found = sites()
    fed = clinics(found)
    method(name, fed, request(found, "client:site-a>client:site-b")).run(start())
    assert {site for site, _ in asked(fed)} == {"site-b", "site-c"}


@pytest.mark.parametrize("name", BOTH)
def test_buffers_stay_and_the_selected_share_is_said(name):
    found = sites("tiny-bn")
    outcome = method(name, clinics(found), request(found, "class:1"), model="tiny-bn", overrides={"alpha": 1.1}).run(
        start("tiny-bn")
    )
    assert changed(start("tiny-bn"), outcome.state) <= set(start("tiny-bn").params)
    (note,) = outcome.notes
    assert note.startswith(f"{name} dampened ") and "%" in note


@pytest.mark.parametrize("name", BOTH)
def test_nothing_selected_is_the_identity_with_a_warning(name):
    found = sites()
    outcome = method(name, clinics(found), request(found, "client:site-b"), overrides={"alpha": 1e9}).run(start())
    assert outcome.state.sha256() == start().sha256() and outcome.status == "ok"
    assert "warning" in outcome.notes[0] and "lower alpha" in outcome.notes[0]


@pytest.mark.parametrize("name", BOTH)
def test_it_is_not_stochastic(name):
    found = sites()
    runs = [
        method(name, clinics(found), request(found, "class:1"), seed=seed, overrides={"alpha": 1.2}).run(start())
        for seed in (1, 2)
    ]
    assert runs[0].state.sha256() == runs[1].state.sha256()


@pytest.mark.parametrize("name", BOTH)
def test_the_presets(name):
    alphas = {preset: METHODS.get(name).resolve_config(preset).alpha for preset in ("lethe", "original", "safe")}
    assert alphas == {"lethe": 10.0, "original": 10.0, "safe": 2.0}
    assert METHODS.get(name).resolve_config("lethe", {"lambda": 0.1}).lambda_ == 0.1
    with pytest.raises(BadInput, match="alpha"):
        METHODS.get(name).resolve_config("lethe", {"alpha": 0})


def test_lambda_and_fisher_reach_their_places():
    found = sites()
    plan_ = request(found, "class:1")
    states = {
        key: method("ssd", clinics(found), plan_, overrides={"alpha": 1.2, **own}).run(start()).state.sha256()
        for key, own in {"plain": {}, "lambda": {"lambda": 0.1}, "fisher": {"fisher": "sample"}}.items()
    }
    assert len(set(states.values())) == 3


@pytest.mark.parametrize("name", BOTH)
def test_a_finished_round_is_not_asked_for_again(name, tmp_path):
    found = sites()
    work = HistoryWriter(tmp_path, keep_updates=False)
    plan_ = request(found, "class:1")
    first = method(name, clinics(found), plan_, work=work, overrides={"alpha": 1.2}).run(start())
    fed = clinics(found)
    again = method(name, fed, plan_, work=work, overrides={"alpha": 1.2}).run(start())
    assert fed.grid.calls() == [] and again.state.sha256() == first.state.sha256() and again.notes == first.notes


def answering(change):
    """Return sites whose importances are made up, changed by `change`."""

    def interfere(name, op, call):
        if op not in ("importance", "sensitivity"):
            return None
        ones = {n: np.ones(t.shape, np.float32) for n, t in call.state.params.items()}
        parts = {
            "metrics": {"num-examples": 5, "num-forget": 5 * (name == "site-a"), "all-batches": 1, "forget-batches": 1},
            "config": {"status": "ok", "reason": ""},
            "arrays": {"all": ones, **({"forget": ones} if name == "site-a" else {})},
        }
        return change(name, parts)

    class Made(Hospitals):
        def __call__(self, site, message_type, call):
            made = interfere(site, call.op, call)
            return super().__call__(site, message_type, call) if made is None else reply_content(**made)

    return federation(Made(counts()))


def test_importances_that_are_not_finite_end_it_as_diverged_at_the_start():
    def broken(name, parts):
        if name == "site-a":
            parts["arrays"]["forget"] = {n: np.full_like(a, np.nan) for n, a in parts["arrays"]["forget"].items()}
        return parts

    cls = METHODS.get("ssd")
    strategy = cls(answering(broken), schedule(), plan(counts()), seed=0, config=cls.resolve_config())
    outcome = strategy.run(start_state())
    assert (outcome.status, outcome.state.sha256()) == ("diverged", start_state().sha256())
    assert "site-a" in outcome.reason


def test_when_nobody_has_a_forget_record_it_fails_with_a_reason():
    found = {"site-c": site("site-c")}
    plan_ = request(found, "client:site-a")
    with pytest.raises(RunFailed, match="no site that was asked has a record"):
        method("ssd", clinics(found), plan_).run(start())


def test_it_works_in_double_precision():
    found = sites()
    wide = State({n: t.double() for n, t in start().params.items()}, {}, {})
    outcome = method("ssd", clinics(found), request(found, "class:1"), overrides={"alpha": 1.2}).run(wide)
    assert all(t.dtype == torch.float64 for t in outcome.state.params.values())
