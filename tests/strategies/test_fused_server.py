"""FUSED on a federation (METHODS 1.13 and 4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from clinics import SCHEDULE, asked, clinics, layers, method, request, sites, start

from strategies.history import History, HistoryWriter
from strategies.recording import RecordingFedAvg
from strategies.recovery import run_recovery
from tests.unlearning.toy_nets import changed
from unlearning.fused import critical_layers, drop, layer_scores, split
from unlearning.state import distance

KINDS = ["sparse", "lora"]
MODELS = ["tiny", "tiny-bn"]


def fused(fed, plan, kind="sparse", model="tiny", **kwargs):
    overrides = {"adapter": kind, "rank": 4, **kwargs.pop("overrides", {})}
    return method("fused", fed, plan, model=model, overrides=overrides, **kwargs)


def original(found, folder, model="tiny", fraction=1.0):
    training = RecordingFedAvg(
        clinics(found),
        replace(SCHEDULE, fraction_train=fraction),
        seed=0,
        participants=list(found),
        message_config={"records": "all"},
        history=HistoryWriter(folder),
        label="original",
    )
    training.run(start(model), 4)
    return History(folder)


def chosen(strategy):
    return [layer.name for layer in strategy._chosen]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("text", ["client:site-b", "class:1", "sample:0.3", "client:site-a>class:2"])
def test_only_the_chosen_layers_change_and_without_the_adapter_it_is_the_original_bit_for_bit(kind, model, text):
    found = sites(model)
    strategy = fused(clinics(found), request(found, text), kind, model)
    outcome = strategy.run(start(model))
    weights = {layer.weight for layer in layers(model) if layer.name in chosen(strategy)}
    assert outcome.status == "ok" and len(weights) == 2
    assert changed(start(model), outcome.state) == weights
    adapter = split(outcome.state, start(model))
    assert drop(outcome.state, adapter).sha256() == start(model).sha256()


def test_a_sparse_adapter_touches_a_tenth_of_a_weight_and_always_the_same():
    found = sites()
    strategy = fused(clinics(found), request(found, "class:1"))
    fed = strategy.federation
    state = strategy.run(start()).state
    adapter = split(state, start())
    masks = [call.states["trainable"] for _, _, call in fed.grid.calls() if "trainable" in call.states]
    assert len({mask.sha256() for mask in masks}) == 1
    for name, entries in adapter.entries.items():
        allowed = masks[0].params[name]
        assert int(allowed.sum()) == max(1, round(0.1 * allowed.numel()))
        assert not bool((entries & ~allowed).any())


@pytest.mark.parametrize("kind", KINDS)
def test_departing_sites_are_not_asked_where_a_history_tells_their_last_update(kind, tmp_path):
    found = sites()
    history = original(found, tmp_path)
    plan = request(found, "client:site-b")
    fed = clinics(found)
    strategy = fused(fed, plan, kind, history=history)
    outcome = strategy.run(history.after(4))
    assert {site for site, _ in asked(fed)} == {"site-a", "site-c"}
    assert len(asked(fed)) == 2 * SCHEDULE.recovery_rounds and outcome.rounds == 1 + SCHEDULE.recovery_rounds
    scores = layer_scores(layers(), [history.update(4, "site-b").params])
    assert chosen(strategy) == [layer.name for layer in critical_layers(layers(), scores, 0.2)]
    assert outcome.cost.disk_read > 0


def test_the_last_recorded_round_of_each_departing_site_counts(tmp_path):
    found = sites()
    history = original(found, tmp_path, fraction=0.5)
    plan = request(found, "client:site-a,site-b")
    strategy = fused(clinics(found), plan, history=history)
    last = {
        site: max(r for r in history.rounds if site in history.record(r).participants)
        for site in ("site-a", "site-b")
        if any(site in history.record(r).participants for r in history.rounds)
    }
    assert strategy._recorded == last and last


@pytest.mark.parametrize("text", ["class:1", "sample:0.3"])
def test_for_other_requests_the_forget_holders_train_once_on_what_goes_and_it_is_not_applied(text, tmp_path):
    found = sites()
    plan, history = request(found, text), original(found, tmp_path)
    fed = clinics(found)
    outcome = fused(fed, plan, history=history).run(start())
    first = [(site, kind, call) for site, kind, call in fed.grid.calls() if call.config["round"] == 1]
    assert {(site, kind) for site, kind, _ in first} == {(site, "train.train") for site in plan.forget_holders}
    assert {call.config["records"] for _, _, call in first} == {"forget"}
    second = [call for _, _, call in fed.grid.calls() if call.config["round"] == 2]
    assert {call.state.sha256() for call in second} == {start().sha256()}
    assert "train.recover" in {kind for _, kind in asked(fed)} and outcome.cost.disk_read == 0


def test_without_a_history_the_departing_site_probes():
    found = sites()
    fed = clinics(found)
    fused(fed, request(found, "client:site-b")).run(start())
    assert [entry for entry in asked(fed) if entry[0] == "site-b"] == [("site-b", "train.train")]


def test_the_layers_are_said():
    found = sites()
    strategy = fused(clinics(found), request(found, "class:1"))
    outcome = strategy.run(start())
    assert outcome.notes == (f"fused puts adapters into {', '.join(chosen(strategy))}",)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("killed_in", [1, 2, 3])
def test_a_killed_run_resumes_to_the_same_bits(kind, killed_in, tmp_path):
    found = sites("tiny-bn")
    plan = request(found, "class:1")

    def dies(site, call):
        if call.config["round"] == killed_in:
            raise KeyboardInterrupt

    whole = fused(clinics(found), plan, kind, "tiny-bn").run(start("tiny-bn"))
    work = HistoryWriter(tmp_path, keep_updates=False)
    with pytest.raises(KeyboardInterrupt):
        fused(clinics(found, dies), plan, kind, "tiny-bn", work=work).run(start("tiny-bn"))
    fed = clinics(found)
    resumed = fused(fed, plan, kind, "tiny-bn", work=work).run(start("tiny-bn"))
    assert resumed.state.sha256() == whole.state.sha256() and resumed.notes == whole.notes
    assert {call.config["round"] for _, _, call in fed.grid.calls()} == set(range(killed_in, 4))


def recover(found, plan, strategy, unlearned, model):
    hook = strategy.recovery_hook(start(model), unlearned)
    return run_recovery(clinics(found), SCHEDULE, plan, unlearned, seed=1, work=None, hook=hook).state


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_recovery_trains_the_adapter_alone_and_it_can_still_be_taken_off(kind, model):
    found = sites(model, momentum=0.9, weight_decay=0.01)
    plan = request(found, "client:site-b")
    strategy = fused(clinics(found), plan, kind, model)
    unlearned = strategy.run(start(model)).state
    recovered = recover(found, plan, fused(clinics(found), plan, kind, model), unlearned, model)
    before, after = split(unlearned, start(model)), split(recovered, start(model))
    assert recovered.sha256() != unlearned.sha256()
    assert set(before.entries) == set(after.entries)
    assert drop(recovered, after).sha256() == start(model).sha256()
    if kind == "sparse":
        allowed = strategy._masks(start(model), strategy._chosen)
        assert all(not bool((mask & ~allowed[name]).any()) for name, mask in after.entries.items())


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_that_never_moved_leaves_recovery_nothing(kind):
    found = sites()
    plan, still = request(found, "class:1"), replace(SCHEDULE, lr=0.0)
    strategy = fused(clinics(found), plan, kind, schedule=still)
    unlearned = strategy.run(start()).state
    assert unlearned.sha256() == start().sha256()
    assert recover(found, plan, strategy, unlearned, "tiny").sha256() == start().sha256()


def test_no_recovery_rounds_are_the_identity_without_a_message():
    found = sites()
    fed = clinics(found)
    outcome = fused(fed, request(found, "class:1"), schedule=replace(SCHEDULE, recovery_rounds=0)).run(start())
    assert outcome.state.sha256() == start().sha256() and asked(fed) == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides(kind):
    found = sites()
    plan = request(found, "class:1")
    states = [fused(clinics(found), plan, kind, seed=seed).run(start()).state.sha256() for seed in (1, 1, 2)]
    assert states[0] == states[1] != states[2]


def test_factors_start_where_the_last_round_ended_and_are_averaged_by_retained_records(tmp_path):
    found = sites()
    plan, work = request(found, "client:site-b"), HistoryWriter(tmp_path)
    fed = clinics(found)
    strategy = fused(fed, plan, "lora", work=work)
    strategy.run(start())
    history = work.read()
    sent = next(call for _, _, call in fed.grid.calls() if call.config["round"] == 3).states["adapter"].params
    remembered = history.server(2, "adapter")
    assert all(torch.equal(sent[name], remembered[name]) for name in sent)
    shares = {site: history.record(2).sites[site].weight for site in ("site-a", "site-c")}
    assert shares == {"site-a": pytest.approx(14 / 45), "site-c": pytest.approx(31 / 45)}
    assert history.after(3).params.keys() == start().params.keys()


def test_settings_reach_the_sites():
    found = sites()
    fed = clinics(found)
    own = {"adapter": "lora", "rank": 2, "lora-alpha": 6.0, "dropout": 0.25, "layer-share": 1.0}
    method("fused", fed, request(found, "class:1"), overrides=own).run(start())
    call = fed.grid.calls()[-1][2]
    assert (call.config["scale"], call.config["dropout"]) == (3.0, 0.25)
    assert call.config["layers"] == [layer.name for layer in layers()]
    assert call.states["adapter"].params["8.A"].shape == (2, 12)
    preset = method("fused", fed, request(found, "class:1"), preset="original").config
    assert (preset.adapter, preset.rank, preset.lora_alpha, preset.dropout) == ("lora", 16, 32.0, 0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_it_helps_on_what_is_retained(kind):
    found = sites()
    plan = request(found, "class:1")
    longer = replace(SCHEDULE, recovery_rounds=6, lr=0.2)
    fed = clinics(found)
    outcome = fused(fed, plan, kind, schedule=longer).run(start())

    def losses(state):
        total = 0.0
        for one in found.values():
            network = one.worker.scorer(state)
            x, y = one.worker.batch(one.train.inputs, one.train.targets, one.records("retain", "class:1", 0))
            total += float(torch.nn.functional.cross_entropy(network(x), y, reduction="sum"))
        return total

    assert distance(outcome.state, start()) > 0
    assert losses(outcome.state) < losses(start())
