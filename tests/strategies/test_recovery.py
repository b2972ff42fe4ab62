import pytest
import torch
from fake_sites import SITES, Hospitals, counts, federation, plan, schedule, start_state
from test_recording import Killed, killed_after

from partitions.errors import RunFailed
from strategies.history import History, HistoryWriter
from strategies.recording import sample_sites
from strategies.recovery import RecoveryHook, run_recovery
from unlearning.state import State


def recover(fed, work=None, held=None, plan_=None, **kwargs):
    held = held or counts()
    return run_recovery(
        fed, plan_ or schedule(), kwargs.pop("request", plan(held)), start_state(), seed=3, work=work, **kwargs
    )


def test_the_departed_site_is_never_asked_and_the_others_train_on_retained_records():
    fed = federation(Hospitals(counts()))
    outcome = recover(fed)
    assert {site for site, _, _ in fed.grid.calls()} == {"site-b", "site-c", "site-d"}
    _, message_type, call = fed.grid.calls()[0]
    assert message_type == "train.recover"
    wanted = {
        "purpose": "recovery",
        "records": "retain",
        "request": "client:site-a",
        "epochs": 2,
        "seed": 3,
        "round": 1,
    }
    assert wanted.items() <= call.config.items()
    assert (outcome.status, outcome.rounds) == ("ok", 3)


def test_a_site_that_departed_in_an_earlier_request_stays_out():
    held = counts("site-b")
    fed = federation(Hospitals(held))
    recover(fed, request=plan(held, departed=("site-a", "site-b")), held=held)
    assert {site for site, _, _ in fed.grid.calls()} == {"site-c", "site-d"}


def test_a_site_without_retained_records_takes_no_part():
    held = {"site-a": (5, 5), "site-b": (10, 0), "site-c": (0, 10)}
    fed = federation(Hospitals(held))
    recover(fed, request=plan(held, departed=(), text="class:5"), held=held)
    assert {site for site, _, _ in fed.grid.calls()} == {"site-a", "site-c"}


def test_when_nobody_is_left_the_reason_is_said():
    held = {"site-a": (5, 0)}
    with pytest.raises(RunFailed, match="client:site-a"):
        recover(federation(Hospitals(held)), held=held)


def test_no_recovery_rounds_are_the_identity_even_with_nobody_left():
    held = {"site-a": (5, 0)}
    outcome = recover(federation(Hospitals(held)), held=held, plan_=schedule(recovery_rounds=0))
    assert outcome.state.sha256() == start_state().sha256()


def test_recovery_is_fedavg_whatever_trained_the_original():
    plain = recover(federation(Hospitals(counts())))
    for strategy in ("fedprox", "fedadam"):
        fed = federation(Hospitals(counts()))
        assert recover(fed, plan_=schedule(strategy=strategy, prox_mu=1.0)).state.sha256() == plain.state.sha256()
        assert {call.config["prox-mu"] for _, _, call in fed.grid.calls()} == {0.0}


def test_the_schedules_clip_reaches_the_sites_and_a_hook_can_replace_it():
    for plan_, hook, expected in (
        (schedule(), None, 0.0),
        (schedule(recovery_max_norm=2.0), None, 2.0),
        (schedule(recovery_max_norm=2.0), RecoveryHook(5.0), 5.0),
    ):
        fed = federation(Hospitals(counts()))
        recover(fed, plan_=plan_, hook=hook)
        assert {call.config["max-norm"] for _, _, call in fed.grid.calls()} == {expected}


class Freeze(RecoveryHook):
    """Puts one tensor back after every round."""

    def message_config(self, round_):
        return {"frozen": "scale"}

    def message_states(self, round_):
        return {"trainable": State({"w": torch.tensor([True])}, {}, {})}

    def after_round(self, round_, before, after):
        return State({**after.params, "scale": before.params["scale"]}, after.float_buffers, after.int_buffers)


def test_a_hook_sees_and_changes_what_a_round_made():
    fed = federation(Hospitals(counts()))
    outcome = recover(fed, hook=Freeze())
    assert torch.equal(outcome.state.params["scale"], start_state().params["scale"])
    assert not torch.equal(outcome.state.params["w"], start_state().params["w"])
    assert {call.config["frozen"] for _, _, call in fed.grid.calls()} == {"scale"}
    assert all(call.states["trainable"].params["w"].tolist() == [True] for _, _, call in fed.grid.calls())


def explode(round_: int):
    def interfere(site, op, call):
        def change(parts):
            huge = {n: t * 1e3 for n, t in parts["state"].params.items()}
            return {**parts, "state": State(huge, parts["state"].float_buffers, parts["state"].int_buffers)}

        return change if call.config["round"] == round_ else None

    return interfere


def test_a_norm_of_ten_times_the_start_ends_it_as_diverged_at_the_round_before(tmp_path):
    outcome = recover(federation(Hospitals(counts(), explode(2))), HistoryWriter(tmp_path))
    assert (outcome.status, outcome.rounds) == ("diverged", 2) and "norm" in outcome.reason
    assert outcome.state.sha256() == History(tmp_path).after(1).sha256()


def test_the_limit_is_that_of_the_start_after_a_resume_too(tmp_path):
    with pytest.raises(Killed):
        recover(federation(Hospitals(counts(), killed_after(1, 0))), HistoryWriter(tmp_path))
    outcome = recover(federation(Hospitals(counts(), explode(3))), HistoryWriter(tmp_path))
    assert outcome.status == "diverged"


@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_killed_recovery_resumes_to_the_same_bits(tmp_path, done):
    whole = recover(federation(Hospitals(counts())), hook=Freeze())
    with pytest.raises(Killed):
        recover(federation(Hospitals(counts(), killed_after(done, 1))), HistoryWriter(tmp_path), hook=Freeze())
    fed = federation(Hospitals(counts()))
    resumed = recover(fed, HistoryWriter(tmp_path), hook=Freeze())
    assert resumed.state.sha256() == whole.state.sha256()
    assert len(fed.grid.calls()) == 3 * (3 - done)


def test_recovery_has_other_random_streams_than_training():
    samples = [[sample_sites(SITES, 0.5, 0, purpose, r) for r in range(1, 30)] for purpose in ("train", "recovery")]
    assert samples[0] != samples[1]
