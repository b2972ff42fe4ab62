"""METHODS 4 on real sites, for the methods that need layers or statistics, which made-up sites cannot answer."""

from __future__ import annotations

import json

import pytest
import torch
from clinics import asked, clinics, method, request, sites, start

from strategies.events import EventSink
from strategies.history import HistoryWriter
from strategies.registry import METHODS

RUNS = [
    ("prune", "class:1", {"rho": 0.2}),
    ("ssd", "client:site-b", {"alpha": 1.2}),
    ("lfssd", "class:1", {"alpha": 1.2}),
    ("cf-k", "client:site-b", {}),
    ("eu-k", "class:1", {}),
    ("fused", "client:site-b", {}),
    ("fused", "class:1", {"adapter": "lora", "rank": 4}),
]


@pytest.fixture(params=RUNS, ids=lambda run: f"{run[0]}-{run[1]}")
def case(request):
    return request.param


def run(case, found, fed, **kwargs):
    name, text, overrides = case
    return method(name, fed, request(found, text), model="tiny-bn", overrides=overrides, **kwargs).run(start("tiny-bn"))


def test_the_model_keeps_its_names_kinds_and_shapes_and_is_finite(case):
    found = sites("tiny-bn")
    before, after = start("tiny-bn"), run(case, found, clinics(found)).state
    for group in ("params", "float_buffers", "int_buffers"):
        old, new = getattr(before, group), getattr(after, group)
        assert {n: (t.shape, t.dtype) for n, t in old.items()} == {n: (t.shape, t.dtype) for n, t in new.items()}
    assert after.is_finite()
    assert all((t >= 0).all() for n, t in after.float_buffers.items() if n.endswith("running_var"))
    assert all(torch.equal(t, before.int_buffers[n]) for n, t in after.int_buffers.items())


def test_the_order_of_answers_does_not_matter(case):
    found = sites("tiny-bn")
    states = {run(case, found, clinics(found, shuffle_seed=seed)).state.sha256() for seed in range(3)}
    assert len(states) == 1


def test_sites_and_records_are_those_that_were_declared(case):
    found = sites("tiny-bn")
    fed = clinics(found)
    run(case, found, fed)
    needs = METHODS.get(case[0]).needs
    if case[1] == "client:site-b":
        assert ("site-b" in {site for site, _ in asked(fed)}) == needs.departed_online
    opened = {call.config["records"] for _, _, call in fed.grid.calls()}
    assert bool(opened & {"forget", "both"}) == needs.forget_data
    assert bool(opened & {"retain", "both"}) == needs.retain_data
    assert "all" not in opened


def test_the_whole_cost_is_counted_and_a_finished_stage_costs_nothing_again(case, tmp_path):
    found = sites("tiny-bn")
    work = HistoryWriter(tmp_path, keep_updates=False)
    first = run(case, found, clinics(found), work=work)
    fed = clinics(found)
    again = run(case, found, fed, work=work)
    assert first.cost.client_examples > 0 and first.cost.bytes_up > 0 and first.cost.client_seconds > 0
    assert fed.grid.calls() == [] and again.state.sha256() == first.state.sha256()
    assert again.cost == first.cost and again.notes == first.notes


def test_the_events_name_stage_method_and_request(case, tmp_path):
    found = sites("tiny-bn")
    run(case, found, clinics(found, events=EventSink(tmp_path / "e")))
    events = [json.loads(line) for line in (tmp_path / "e").read_text().splitlines()]
    assert {(e["stage"], e["label"]) for e in events} == {("unlearn", f"{case[0]} {case[1]}")}
    assert events[-1]["kind"] == "stage-finished" and events[-1]["status"] == "ok"
