import json
import math
import os

import numpy as np
import pytest
import torch
from fake_sites import SITES, Hospitals, counts, federation, plan, pulled, schedule, start_state
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import FedAdam

from partitions.errors import BadInput, RunFailed
from strategies.events import EventSink
from strategies.history import History, HistoryWriter
from strategies.recording import RecordingFedAvg, sample_sites
from strategies.wire import array_bytes, call_content, reply_content, to_record
from unlearning.state import State, distance

HELD = {site: (0, n) for site, n in zip(SITES, (10, 20, 30, 40), strict=True)}


def training(fed, folder=None, participants=SITES, plan_=None, seed=0, **kwargs) -> RecordingFedAvg:
    return RecordingFedAvg(
        fed,
        plan_ or schedule(),
        seed=seed,
        participants=list(participants),
        message_config={"records": "all"},
        history=HistoryWriter(folder) if folder else None,
        label="original",
        **kwargs,
    )


def by_hand(rounds: int, held=HELD, lr=0.1) -> State:
    """Return FedAvg in plain numpy, in double precision."""
    state = start_state()
    total = sum(sum(c) for c in held.values())
    for round_ in range(1, rounds + 1):
        config = {"seed": 0, "purpose": "train", "round": round_, "epochs": 2, "lr": lr}
        after = {site: pulled(state, site, config) for site in held}
        mean = {
            group: {
                name: sum(sum(held[s]) / total * getattr(after[s], group)[name].double() for s in held).float()
                for name in getattr(state, group)
            }
            for group in ("params", "float_buffers")
        }
        state = State(mean["params"], mean["float_buffers"], state.int_buffers)
    return state


def test_it_is_fedavg_weighted_by_examples():
    outcome = training(federation(Hospitals(HELD))).run(start_state(), 4)
    assert distance(outcome.state, by_hand(4)) < 1e-5
    assert (outcome.status, outcome.rounds) == ("ok", 4)


def test_integer_buffers_are_the_global_models_and_running_var_is_not_negative():
    def negative(site, op, call):
        def change(parts):
            state = parts["state"]
            state.float_buffers["bn.running_var"].fill_(-1.0)
            return parts

        return change

    outcome = training(federation(Hospitals(HELD, negative))).run(start_state(), 1)
    assert outcome.state.int_buffers["bn.num_batches_tracked"].item() == 3
    assert outcome.state.int_buffers["bn.num_batches_tracked"].dtype == torch.int64
    assert torch.equal(outcome.state.float_buffers["bn.running_var"], torch.zeros(2))


def test_the_bits_depend_neither_on_node_ids_nor_on_the_order_of_answers():
    start = start_state()  # in fp64, where the order of a sum shows
    start = State({n: t.double() for n, t in start.params.items()}, start.float_buffers, start.int_buffers)
    hashes = {
        training(federation(Hospitals(HELD), shuffle_seed=i, node_offset=1000 * i)).run(start, 3).state.sha256()
        for i in range(4)
    }
    assert len(hashes) == 1


def test_another_seed_gives_other_bits():
    fed = federation(Hospitals(HELD))
    assert (
        training(fed, seed=0).run(start_state(), 2).state.sha256()
        != training(fed, seed=1).run(start_state(), 2).state.sha256()
    )


def test_the_messages_carry_what_a_site_needs():
    fed = federation(Hospitals(HELD))
    training(fed).run(start_state(), 2)
    _, message_type, call = fed.grid.calls("site-c")[1]
    assert message_type == "train.train"
    assert call.config == {
        "round": 2,
        "seed": 0,
        "purpose": "train",
        "lr": 0.1,
        "epochs": 2,
        "records": "all",
        "request": "",
        "request-seed": 0,
        "max-norm": 0.0,
        "prox-mu": 0.0,
    }


def test_nobody_is_asked_to_evaluate_while_training():
    fed = federation(Hospitals(HELD))
    training(fed).run(start_state(), 2)
    assert {message_type for _, message_type, _ in fed.grid.calls()} == {"train.train"}
    assert len(fed.grid.calls()) == 8


def test_one_remaining_site_is_enough():
    outcome = training(federation(Hospitals(HELD)), participants=["site-b"]).run(start_state(), 2)
    assert outcome.rounds == 2


def test_no_rounds_return_the_start(tmp_path):
    outcome = training(federation(Hospitals(HELD)), tmp_path / "h").run(start_state(), 0)
    assert outcome.state.sha256() == start_state().sha256()
    assert (outcome.rounds, outcome.cost.seconds) == (0, 0.0)


# ---------------------------------------------------------------------- costs
def test_costs_are_counted_for_each_recipient_and_summed():
    cost = training(federation(Hospitals(HELD))).run(start_state(), 3).cost
    once = array_bytes(call_content(start_state(), {}))
    assert cost.bytes_down == cost.bytes_up == 3 * 4 * once
    assert cost.client_examples == 3 * 2 * 100
    assert cost.gradient_steps == 3 * 4 * 4
    assert cost.client_seconds == pytest.approx(3 * 4 * 0.125)
    assert cost.seconds > 0


# ---------------------------------------------------------------------- history and resume
def test_every_round_is_recorded_with_what_was_averaged(tmp_path):
    outcome = training(federation(Hospitals(HELD)), tmp_path).run(start_state(), 3)
    history = History(tmp_path)
    assert history.last_complete_round == 3
    assert history.before(1).sha256() == start_state().sha256()
    assert history.after(3).sha256() == outcome.state.sha256()
    record = history.record(2)
    assert record.participants == SITES and record.lr == 0.1
    assert [record.sites[s].weight for s in SITES] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    rebuilt = {
        name: tensor.double() + sum(record.sites[s].weight * history.update(2, s).params[name].double() for s in SITES)
        for name, tensor in history.before(2).params.items()
    }
    assert all(torch.equal(rebuilt[n].float(), history.after(2).params[n]) for n in rebuilt)
    assert (tmp_path / "rounds.parquet").exists()


class Killed(BaseException):
    pass


def killed_after(rounds: int, after_answers: int = 1):
    """Return what makes a run die in the round after `rounds`, when some sites have answered."""
    seen = []

    def interfere(site, op, call):
        if call.config.get("round", 0) > rounds:
            seen.append(site)
            if len(seen) > after_answers:
                raise Killed

    return interfere


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "fedadam"])
@pytest.mark.parametrize("done", [0, 1, 3])
def test_a_killed_run_resumes_to_the_same_bits_without_repeating_rounds(tmp_path, strategy, done):
    plan_ = schedule(strategy=strategy, fraction_train=0.7)
    whole = training(federation(Hospitals(HELD)), plan_=plan_).run(start_state(), 4)
    with pytest.raises(Killed):
        training(federation(Hospitals(HELD, killed_after(done, 0))), tmp_path, plan_=plan_).run(start_state(), 4)
    fed = federation(Hospitals(HELD), node_offset=5000)
    resumed = training(fed, tmp_path, plan_=plan_).run(start_state(), 4)
    assert resumed.state.sha256() == whole.state.sha256()
    assert {call.config["round"] for _, _, call in fed.grid.calls()} == set(range(done + 1, 5))
    assert resumed.rounds == 4
    assert resumed.cost.client_examples == whole.cost.client_examples
    assert resumed.cost.bytes_up == whole.cost.bytes_up
    assert resumed.cost.seconds == pytest.approx(sum(History(tmp_path).record(r).seconds for r in range(1, 5)))


def test_a_truncated_newest_round_is_computed_again_and_said(tmp_path):
    whole = training(federation(Hospitals(HELD)), tmp_path).run(start_state(), 3)
    os.truncate(History(tmp_path).path(3), 100)
    fed = federation(Hospitals(HELD))
    resumed = training(fed, tmp_path).run(start_state(), 3)
    assert resumed.state.sha256() == whole.state.sha256()
    assert {call.config["round"] for _, _, call in fed.grid.calls()} == {3}
    assert any("round-0003" in note for note in resumed.notes)


def test_a_finished_training_sends_nothing_and_more_rounds_only_the_new_ones(tmp_path):
    training(federation(Hospitals(HELD)), tmp_path).run(start_state(), 2)
    fed = federation(Hospitals(HELD))
    again = training(fed, tmp_path).run(start_state(), 2)
    assert fed.grid.calls() == [] and again.rounds == 2
    longer = training(fed, tmp_path).run(start_state(), 4)
    assert len(fed.grid.calls()) == 8
    assert longer.state.sha256() == training(federation(Hospitals(HELD))).run(start_state(), 4).state.sha256()


def test_one_strategy_object_can_run_twice_in_a_row():
    strategy = training(federation(Hospitals(HELD)), plan_=schedule(strategy="fedadam"))
    assert strategy.run(start_state(), 3).state.sha256() == strategy.run(start_state(), 3).state.sha256()


def test_rounds_of_another_start_are_refused(tmp_path):
    training(federation(Hospitals(HELD)), tmp_path).run(start_state(), 1)
    other = State({n: t + 1 for n, t in start_state().params.items()}, {}, {})
    with pytest.raises(RunFailed, match="another model"):
        training(federation(Hospitals(HELD)), tmp_path).run(other, 2)


def test_a_history_that_does_not_fit_is_refused_before_anything_is_sent(tmp_path, monkeypatch):
    monkeypatch.setattr("strategies.history.shutil.disk_usage", lambda _: type("Usage", (), {"free": 10})())
    fed = federation(Hospitals(HELD))
    with pytest.raises(BadInput, match="rounds"):
        training(fed, tmp_path).run(start_state(), 2)
    assert fed.grid.calls() == []


# ---------------------------------------------------------------------- sites that fail
def in_round(round_: int, site: str, act):
    def interfere(asked, op, call):
        return act() if (asked, call.config.get("round")) == (site, round_) else None

    return interfere


def raises():
    raise ValueError("no such\nfile")


def test_a_site_that_raises_ends_the_run_and_leaves_the_rounds_before_it(tmp_path):
    with pytest.raises(RunFailed, match="site-c"):
        training(federation(Hospitals(HELD, in_round(2, "site-c", raises))), tmp_path).run(start_state(), 4)
    assert History(tmp_path).last_complete_round == 1


def test_under_the_other_policy_it_is_left_out_of_that_round_and_recorded(tmp_path):
    fed = federation(Hospitals(HELD, in_round(2, "site-c", raises)), failure_policy="continue")
    outcome = training(fed, tmp_path).run(start_state(), 3)
    record = History(tmp_path).record(2)
    assert record.participants == ("site-a", "site-b", "site-d")
    assert [record.sites[s].weight for s in record.participants] == pytest.approx([1 / 7, 2 / 7, 4 / 7])
    failed = record.sites["site-c"]
    assert (failed.status, failed.reason) == ("failed", "ValueError: no such file")
    assert failed.traceback.startswith("Traceback") and "in raises" in failed.traceback
    assert any(note.startswith("round 2: site-c failed: ValueError: no such file") for note in outcome.notes)
    assert History(tmp_path).record(3).participants == SITES


def test_when_every_site_fails_the_run_ends():
    fed = federation(Hospitals(HELD, lambda *_: raises()), failure_policy="continue")
    with pytest.raises(RunFailed, match="no site is left"):
        training(fed).run(start_state(), 1)


def poisoned(value: float):
    def change(parts):
        parts["state"].params["w"][1] = value
        return parts

    return change


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_update_that_is_not_finite_is_rejected_and_recorded(tmp_path, value):
    fed = federation(Hospitals(HELD, in_round(2, "site-b", lambda: poisoned(value))))
    outcome = training(fed, tmp_path).run(start_state(), 3)
    assert outcome.status == "ok" and outcome.state.is_finite()
    found = History(tmp_path).record(2).sites["site-b"]
    assert (found.status, found.weight) == ("rejected", 0.0) and "not finite" in found.reason


def test_a_site_that_says_it_is_not_finite_is_rejected_with_its_reason():
    def says(parts):
        return {**parts, "config": {**parts["config"], "status": "not-finite", "reason": "the loss of step 3 is nan"}}

    outcome = training(federation(Hospitals(HELD, in_round(1, "site-b", lambda: says)))).run(start_state(), 1)
    assert outcome.notes == ("round 1: site-b rejected: not-finite: the loss of step 3 is nan",)


def test_when_every_update_is_rejected_training_has_diverged_at_the_state_before(tmp_path):
    def interfere(site, op, call):
        return poisoned(math.nan) if call.config["round"] == 3 else None

    outcome = training(federation(Hospitals(HELD, interfere)), tmp_path).run(start_state(), 5)
    assert (outcome.status, outcome.rounds) == ("diverged", 3)
    assert outcome.state.sha256() == History(tmp_path).after(2).sha256()
    fed = federation(Hospitals(HELD))
    again = training(fed, tmp_path).run(start_state(), 5)
    assert (again.status, again.reason) == ("diverged", outcome.reason) and fed.grid.calls() == []


def test_a_site_without_records_has_no_weight(tmp_path):
    outcome = training(federation(Hospitals({**HELD, "site-d": (0, 0)})), tmp_path).run(start_state(), 1)
    record = History(tmp_path).record(1)
    assert record.participants == ("site-a", "site-b", "site-c")
    assert record.sites["site-d"].status == "empty"
    assert outcome.state.is_finite()


def test_when_no_site_has_records_the_run_ends_with_a_named_error():
    with pytest.raises(RunFailed, match="no site that was asked has a record"):
        training(federation(Hospitals(dict.fromkeys(SITES, (0, 0))))).run(start_state(), 1)


def test_states_computed_on_no_records_have_no_weight_either():
    def zero(parts):
        return {**parts, "metrics": {**parts["metrics"], "num-examples": 0}}

    with pytest.raises(RunFailed, match="no site that was asked has a record"):
        training(federation(Hospitals(HELD, lambda *_: zero))).run(start_state(), 1)
    one_has = federation(Hospitals(HELD, lambda site, *_: zero if site != "site-b" else None))
    alone = training(federation(Hospitals(HELD)), participants=["site-b"])
    assert training(one_has).run(start_state(), 1).state.sha256() == alone.run(start_state(), 1).state.sha256()


def test_another_model_sent_back_ends_the_run():
    def other(parts):
        return {**parts, "state": start_state(7)}

    fed = federation(Hospitals(HELD, in_round(1, "site-b", lambda: other)))
    with pytest.raises(RunFailed, match="site-b sent back another model"):
        training(fed).run(start_state(), 1)


# ---------------------------------------------------------------------- server options
def test_fedprox_tells_the_sites_its_weight_and_fedavg_tells_zero():
    for strategy, expected in (("fedprox", 0.3), ("fedavg", 0.0)):
        fed = federation(Hospitals(HELD))
        training(fed, plan_=schedule(strategy=strategy, prox_mu=0.3)).run(start_state(), 1)
        assert {call.config["prox-mu"] for _, _, call in fed.grid.calls()} == {expected}


def test_fedadam_steps_as_flowers_does_on_parameters_and_averages_buffers():
    plan_ = schedule(strategy="fedadam", server_lr=0.05)
    outcome = training(federation(Hospitals(HELD)), plan_=plan_).run(start_state(), 3)
    flowers, params = FedAdam(eta=0.05, beta_1=0.9, beta_2=0.99, tau=1e-3), start_state().params
    state = start_state()
    for round_ in range(1, 4):
        config = {"seed": 0, "purpose": "train", "round": round_, "epochs": 2, "lr": 0.1}
        after = {s: pulled(state, s, config) for s in SITES}
        only_params = State(params, {}, {})
        message = Message(call_content(None, {}), 1, "train.train")
        message.metadata.__dict__["_message_id"] = "1"
        replies = [
            Message(
                reply_content(state=State(after[s].params, {}, {}), metrics={"num-examples": sum(HELD[s])}),
                reply_to=message,
            )
            for s in SITES
        ]
        flowers.current_arrays = {k: v.numpy() for k, v in to_record(only_params).items()}
        arrays, _ = flowers.aggregate_train(round_, replies)
        params = {k.removeprefix("params/"): torch.from_numpy(np.array(v.numpy())) for k, v in arrays.items()}
        buffers = {n: sum(sum(HELD[s]) / 100 * after[s].float_buffers[n] for s in SITES) for n in state.float_buffers}
        state = State({n: p.float() for n, p in params.items()}, buffers, state.int_buffers)
    assert distance(outcome.state, state) < 1e-5
    for name, buffer in state.float_buffers.items():
        assert torch.allclose(outcome.state.float_buffers[name], buffer, atol=1e-6)


# ---------------------------------------------------------------------- sampling
def test_leaving_a_site_out_moves_no_other():
    for round_ in range(1, 50):
        sampled = set(sample_sites(SITES, 0.5, 0, "train", round_))
        without = set(sample_sites([s for s in SITES if s != "site-b"], 0.5, 0, "train", round_))
        assert without == sampled - {"site-b"} or sampled == {"site-b"}


def test_the_share_of_sites_is_right_on_average_and_never_zero():
    sites = [f"site-{i}" for i in range(20)]
    sizes = [len(sample_sites(sites, 0.25, 0, "train", r)) for r in range(1, 201)]
    assert 4.5 < sum(sizes) / len(sizes) < 5.5
    assert min(len(sample_sites(sites, 0.001, 0, "train", r)) for r in range(1, 50)) == 1


def test_all_sites_take_part_at_a_fraction_of_one():
    assert sample_sites(reversed(SITES), 1.0, 0, "train", 1) == SITES


def test_the_same_sites_are_sampled_in_every_run_and_others_in_other_rounds():
    chosen = [sample_sites(SITES, 0.5, 3, "train", r) for r in range(1, 20)]
    assert chosen == [sample_sites(SITES, 0.5, 3, "train", r) for r in range(1, 20)]
    assert len(set(chosen)) > 3


# ---------------------------------------------------------------------- events
def test_the_events_tell_the_whole_story(tmp_path):
    sink = EventSink(tmp_path / "e")
    training(federation(Hospitals(HELD), events=sink), stage="train").run(start_state(), 2)
    events = [json.loads(line) for line in (tmp_path / "e").read_text().splitlines()]
    kinds = [event["kind"] for event in events]
    assert kinds == ["stage-started", *(["round-started", *["reply"] * 4, "round-finished"] * 2), "stage-finished"]
    assert all(event["stage"] == "train" and event["label"] == "original" for event in events)
    assert (events[0]["rounds"], events[0]["round"]) == (2, 0)
    finished = events[6]
    assert (finished["round"], finished["rounds"], finished["loss"], finished["metric"]) == (1, 2, 0.5, 0.25)


def test_a_resumed_stage_says_where_it_starts(tmp_path):
    training(federation(Hospitals(HELD)), tmp_path / "h").run(start_state(), 1)
    sink = EventSink(tmp_path / "e")
    training(federation(Hospitals(HELD), events=sink), tmp_path / "h").run(start_state(), 2)
    first = json.loads((tmp_path / "e").read_text().splitlines()[0])
    assert (first["kind"], first["rounds"], first["round"]) == ("stage-started", 2, 1)


def test_it_is_a_flower_strategy_with_flowers_own_interface():
    strategy = training(federation(Hospitals(HELD)))
    assert strategy.configure_evaluate(1, ArrayRecord(), ConfigRecord(), strategy.federation.grid) == []
    assert strategy.aggregate_evaluate(1, []) is None


def test_the_request_of_a_retraining_travels_with_every_message():
    fed = federation(Hospitals(counts()))
    RecordingFedAvg(
        fed,
        schedule(),
        seed=0,
        participants=plan(counts()).retain_holders,
        message_config={"records": "retain", "request": "client:site-a", "request-seed": 4},
        history=None,
        label="x",
    ).run(start_state(), 1)
    assert [site for site, _, _ in fed.grid.calls()] == ["site-b", "site-c", "site-d"]
    assert {(c.config["records"], c.config["request"], c.config["request-seed"]) for _, _, c in fed.grid.calls()} == {
        ("retain", "client:site-a", 4)
    }
