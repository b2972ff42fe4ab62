"""CF-k and EU-k on a federation (METHODS 2.2 and 4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from clinics import SCHEDULE, asked, clinics, layers, method, request, sites, start

from partitions.errors import RunFailed
from partitions.seeds import derive_seed
from strategies.history import HistoryWriter
from strategies.recording import RecordingFedAvg
from tests.unlearning.toy_nets import changed
from unlearning.cf_k import last_layers
from unlearning.eu_k import reinitialised
from unlearning.state import State

BOTH = ["cf-k", "eu-k"]


@pytest.fixture(params=["tiny", "tiny-bn"])
def model(request):
    return request.param


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    "text", ["client:site-b", "class:1", "sample:0.3", "patient:patient-1", "client:site-a,site-b"]
)
def test_retained_records_train_the_last_layers_and_the_rest_stays_to_the_bit(name, text, model):
    found = sites(model)
    fed, plan = clinics(found), request(found, text)
    outcome = method(name, fed, plan, model=model, overrides={"k": 2}).run(start(model))
    assert outcome.status == "ok" and outcome.rounds == SCHEDULE.unlearn_epochs
    assert changed(start(model), outcome.state) == {name for x in layers(model)[-2:] for name in x.own}
    assert set(asked(fed)) == {(site, "train.recover") for site in plan.retain_holders}
    assert {call.config["records"] for _, _, call in fed.grid.calls()} == {"retain"}


def test_norms_behind_the_chosen_layers_learn_with_their_statistics(model):
    found = sites("tiny-bn")
    plan = request(found, "class:2")
    outcome = method("cf-k", clinics(found), plan, model="tiny-bn", overrides={"k": 3}).run(start("tiny-bn"))
    moved = changed(start("tiny-bn"), outcome.state)
    assert {"3.weight", "4.weight", "4.bias", "4.running_mean", "4.running_var"} < moved
    assert not {name for name in moved if name.startswith(("0.", "1."))}
    assert (outcome.state.float_buffers["4.running_var"] >= 0).all()


def test_with_all_layers_cf_k_is_fine_tuning(model):
    found = sites(model)
    plan = request(found, "client:site-b")
    ours = method("cf-k", clinics(found), plan, model=model, overrides={"k": 99}).run(start(model))
    plain = RecordingFedAvg(
        clinics(found),
        replace(SCHEDULE, local_epochs=1),
        op="recover",
        purpose="cf-k",
        seed=7,
        participants=plan.retain_holders,
        message_config={"records": "retain", "request": plan.text, "request-seed": 0},
        history=None,
        label="fine-tuning",
    ).run(start(model), SCHEDULE.unlearn_epochs)
    assert ours.state.sha256() == plain.state.sha256()


def test_eu_k_starts_from_fresh_layers_that_every_site_shares(model):
    found = sites(model)
    fed = clinics(found)
    strategy = method("eu-k", fed, request(found, "class:1"), model=model, overrides={"k": 2})
    strategy.run(start(model))
    first = [call.state for _, _, call in fed.grid.calls() if call.config["round"] == 1]
    assert len({state.sha256() for state in first}) == 1
    assert changed(start(model), first[0]) == {name for layer in layers(model)[-2:] for name in layer.own}


def test_no_epochs_leave_cf_k_where_it_was_and_eu_k_with_fresh_layers():
    found = sites()
    plan, none = request(found, "class:1"), replace(SCHEDULE, unlearn_epochs=0)
    cf = method("cf-k", clinics(found), plan, schedule=none).run(start())
    eu = method("eu-k", clinics(found), plan, schedule=none).run(start())
    assert cf.state.sha256() == start().sha256()
    assert changed(start(), eu.state) == {name for layer in layers()[-3:] for name in layer.own}


def test_eu_k_depends_on_the_unlearning_seed():
    found = sites()
    plan = request(found, "class:1")
    states = [method("eu-k", clinics(found), plan, seed=s).run(start()).state.sha256() for s in (1, 1, 2)]
    assert states[0] == states[1] != states[2]


def test_the_presets_are_the_common_schedule_and_the_authors():
    found = sites()
    plan = request(found, "class:1")
    long = replace(SCHEDULE, rounds=11, local_epochs=3)
    facts = {}
    for name in BOTH:
        for preset in ("lethe", "original"):
            made = method(name, clinics(found), plan, schedule=long, preset=preset)
            facts[name, preset] = (made.rounds, made.ask_for(1).config["epochs"], made.config.k)
    assert facts == {
        ("cf-k", "lethe"): (2, 1, 3),
        ("cf-k", "original"): (30, 1, 3),
        ("eu-k", "lethe"): (2, 1, 3),
        ("eu-k", "original"): (11, 3, 3),
    }


@pytest.mark.parametrize("name", BOTH)
def test_a_killed_run_resumes_to_the_same_bits(name, tmp_path):
    found = sites("tiny-bn")
    plan = request(found, "client:site-b")

    def dies(site, call):
        if call.config["round"] == 2:
            raise KeyboardInterrupt

    whole = method(name, clinics(found), plan, model="tiny-bn").run(start("tiny-bn"))
    work = HistoryWriter(tmp_path, keep_updates=False)
    with pytest.raises(KeyboardInterrupt):
        method(name, clinics(found, dies), plan, model="tiny-bn", work=work).run(start("tiny-bn"))
    fed = clinics(found)
    resumed = method(name, fed, plan, model="tiny-bn", work=work).run(start("tiny-bn"))
    assert resumed.state.sha256() == whole.state.sha256()
    assert {call.config["round"] for _, _, call in fed.grid.calls()} == {2}


def test_a_request_after_another_leaves_the_departed_out_and_starts_where_it_is_told():
    found = sites()
    plan = request(found, "client:site-a>class:1")
    fed = clinics(found)
    outcome = method("eu-k", fed, plan).run(start(seed=5))
    assert {site for site, _ in asked(fed)} == {"site-b", "site-c"}
    assert torch.equal(outcome.state.params["0.weight"], start(seed=5).params["0.weight"])


def test_a_share_of_the_sites_is_drawn_as_in_recovery():
    found = sites()
    fed = clinics(found)
    few = replace(SCHEDULE, fraction_train=0.4, unlearn_epochs=6)
    method("cf-k", fed, request(found, "class:1"), schedule=few).run(start())
    per_round = [sum(c.config["round"] == r for _, _, c in fed.grid.calls()) for r in range(1, 7)]
    assert min(per_round) >= 1 and sum(per_round) < 18


def test_a_model_of_unknown_layers_is_refused():
    found = sites()
    strategy = method("cf-k", clinics(found), request(found, "class:1"))
    strategy.layers = ()
    with pytest.raises(RunFailed, match="cf-k chooses among the layers"):
        strategy.run(start())


def test_a_fresh_start_is_the_pure_functions():
    found = sites()
    none = replace(SCHEDULE, unlearn_epochs=0)
    outcome = method("eu-k", clinics(found), request(found, "class:1"), schedule=none).run(start())
    expected: State = reinitialised(start(), last_layers(layers(), 3), derive_seed(7, "eu-k"))
    assert outcome.state.sha256() == expected.sha256()
