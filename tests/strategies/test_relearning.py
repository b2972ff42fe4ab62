"""Relearning the forgotten records (METRICS 6): who is asked for what, and what comes of it."""

from dataclasses import replace

import pytest
import torch
from clinics import SCHEDULE, asked, clinics, request, site, sites, start

from clients.training import LocalPlan, train_locally
from partitions.seeds import derive_seed
from strategies.history import HistoryWriter
from strategies.relearning import run_relearning
from unlearning.state import State, distance


class Killed(BaseException):
    pass


@pytest.fixture(params=["tiny", "tiny-bn"])
def model(request):
    return request.param


def relearn(found, text, state, epochs=3, fed=None, folder=None, schedule=SCHEDULE, **kwargs):
    work = HistoryWriter(folder, keep_updates=False) if folder else None
    plan, fed = request(found, text), fed or clinics(found)
    return run_relearning(fed, schedule, plan, state, epochs, seed=7, work=work, **kwargs)


@pytest.mark.parametrize(
    "text", ["client:site-b", "class:1", "sample:0.3", "patient:patient-1", "client:site-a,site-b"]
)
def test_every_holder_of_forgotten_records_trains_on_them_one_epoch_a_round_and_nobody_else(text):
    found = sites()
    fed, plan = clinics(found), request(found, text)
    outcome = relearn(found, text, start(), epochs=2, fed=fed)
    assert sorted(set(asked(fed))) == [(name, "train.relearn") for name in plan.forget_holders]
    assert len(fed.grid.calls()) == 2 * len(plan.forget_holders)
    wanted = {"records": "forget", "request": text, "epochs": 1, "seed": 7, "purpose": "relearn", "clean": True}
    wanted |= {"lr": SCHEDULE.lr, "max-norm": 0.0, "prox-mu": 0.0}
    assert all(wanted.items() <= call.config.items() for _, _, call in fed.grid.calls())
    assert outcome.cost.client_examples == 2 * sum(plan.counts[name].num_forget for name in plan.forget_holders)


def test_a_site_without_forgotten_records_is_not_asked():
    found = sites()
    lonely = {**found, "site-c": site("site-c", 6)}
    lonely["site-c"].train.targets[:] = 2
    lonely["site-c"].train.table["stratum"] = "2"
    fed = clinics(lonely)
    relearn(lonely, "class:1", start(), epochs=1, fed=fed)
    assert {name for name, _ in asked(fed)} == {"site-a", "site-b"}


def test_the_departed_site_alone_relearns_and_of_a_sequence_only_what_the_last_step_forgot():
    found = sites()
    fed = clinics(found)
    relearn(found, "client:site-a>class:1", start(), epochs=1, fed=fed)
    holders = {name for name, _ in asked(fed)}
    assert "site-a" not in holders and holders
    for name in holders:
        reply = next(call for who, _, call in fed.grid.calls() if who == name)
        records = found[name].records("forget", str(reply.config["request"]), 0)
        assert set(found[name].train.targets[records]) == {1}


@pytest.mark.parametrize("text", ["class:1", "sample:0.3", "patient:patient-1"])
def test_it_is_a_plain_loop_averaged_by_forgotten_records(model, text):
    found = sites(model, momentum=0.9, weight_decay=1e-3)
    ours = relearn(found, text, start(model)).state
    plan, by_hand = request(found, text), start(model)
    total = sum(plan.counts[name].num_forget for name in plan.forget_holders)
    assert len(plan.forget_holders) == 3
    for round_ in (1, 2, 3):
        mean = {}
        for name in plan.forget_holders:
            seed = derive_seed(7, "relearn", name, round_)
            local = LocalPlan(SCHEDULE.lr, 1, seed, 8, momentum=0.9, weight_decay=1e-3)  # a fresh optimiser a round
            records = found[name].records("forget", plan.text, 0)
            after = train_locally(found[name].worker, by_hand, found[name].train, records, local).state
            share = plan.counts[name].num_forget / total
            for key, tensor in (after.params | after.float_buffers).items():
                mean[key] = mean.get(key, 0) + share * tensor.double()
        mean = {key: tensor.float() for key, tensor in mean.items()}
        by_hand = State(
            {n: mean[n] for n in by_hand.params}, {n: mean[n] for n in by_hand.float_buffers}, by_hand.int_buffers
        )
    assert distance(ours, by_hand) < 1e-5 < distance(ours, start(model))
    assert all(torch.allclose(ours.float_buffers[n], t, atol=1e-5) for n, t in by_hand.float_buffers.items())


def test_batchnorm_learns_its_statistics():
    found = sites("tiny-bn")
    after = relearn(found, "class:1", start("tiny-bn"), epochs=1).state
    assert not torch.equal(after.float_buffers["1.running_mean"], start("tiny-bn").float_buffers["1.running_mean"])


@pytest.mark.parametrize("changes", [{"strategy": "fedadam"}, {"strategy": "fedprox", "prox_mu": 1.0}])
def test_it_is_plain_averaging_of_all_holders_whatever_trained_the_original(changes):
    plain = relearn(sites(), "class:1", start()).state
    other = replace(SCHEDULE, local_epochs=3, fraction_train=0.3, recovery_max_norm=0.1, **changes)
    assert relearn(sites(), "class:1", start(), schedule=other).state.sha256() == plain.sha256()


def test_equal_models_relearn_alike_whatever_they_are_called_and_the_model_stays_as_it_is(model):
    state = start(model)
    before = state.sha256()
    mine, gold = (
        relearn(sites(model), "class:1", state, fed=clinics(sites(model), shuffle_seed=seed), label=label)
        for seed, label in ((1, "ga"), (2, "retrain"))
    )
    assert mine.state.sha256() == gold.state.sha256() != before
    assert state.sha256() == before


def test_no_epochs_and_a_learning_rate_of_zero_leave_the_weights():
    assert relearn(sites(), "class:1", start(), epochs=0).state.sha256() == start().sha256()
    flat = relearn(sites(), "class:1", start(), schedule=replace(SCHEDULE, lr=0.0))
    assert flat.state.sha256() == start().sha256() and flat.rounds == 3


@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_killed_relearning_resumes_to_the_same_bits(tmp_path, model, done):
    whole = relearn(sites(model), "class:1", start(model), folder=tmp_path / "whole").state
    found = sites(model)

    def kill(name, call):
        if call.config["round"] > done and name == "site-b":
            raise Killed

    with pytest.raises(Killed):
        relearn(found, "class:1", start(model), fed=clinics(found, kill), folder=tmp_path / "killed")
    fed = clinics(sites(model))
    resumed = relearn(found, "class:1", start(model), fed=fed, folder=tmp_path / "killed")
    assert resumed.state.sha256() == whole.sha256()
    assert {call.config["round"] for _, _, call in fed.grid.calls()} == set(range(done + 1, 4))
    histories = [HistoryWriter(tmp_path / name).read() for name in ("whole", "killed")]
    for epoch in (1, 2, 3):
        assert len({history.after(epoch).sha256() for history in histories}) == 1
        assert len({history.before(epoch).sha256() for history in histories}) == 1


def test_weights_that_run_away_end_it_at_the_last_usable_model():
    outcome = relearn(sites(), "class:1", start(), schedule=replace(SCHEDULE, lr=1e30))
    assert outcome.status == "diverged" and "not" in outcome.reason and "finite" in outcome.reason
    assert outcome.state.is_finite()
