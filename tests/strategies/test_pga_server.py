"""PGA at the server: where the reference comes from, what the sites are sent, and the ball after averaging."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fake_sites import SITES, Hospitals, counts, federation, plan, schedule, start_state

from partitions.errors import BadInput, RunFailed
from strategies.history import History, HistoryWriter, shrink
from strategies.recording import RecordingFedAvg
from strategies.registry import METHODS
from unlearning.state import State, apply_updates, distance

TRAINED = {site: (0, 10 * (i + 1)) for i, site in enumerate(SITES)}
"""Records in training: 10, 20, 30 and 40."""


def recorded(folder, rounds=3, interfere=None, **changes) -> History:
    hospitals = Hospitals(TRAINED, interfere) if interfere else Hospitals(TRAINED)
    strategy = RecordingFedAvg(
        federation(hospitals, failure_policy="continue"),
        schedule(**changes),
        seed=0,
        participants=SITES,
        message_config={"records": "all"},
        history=HistoryWriter(folder),
        label="original",
    )
    strategy.run(start_state(), rounds)
    return History(folder)


def client_request(departed=("site-a",), text=""):
    held = {site: (n, 0) if site in departed else (0, n) for site, (_, n) in TRAINED.items()}
    return plan(held, departed, text)


def pga(history=None, *, request=None, fed=None, preset="lethe", work=None, changes=None, **overrides):
    cls = METHODS.get("pga")
    config = cls.resolve_config(preset, {key.replace("_", "-"): value for key, value in overrides.items()})
    request = request or client_request()
    held = {site: (c.num_forget, c.num_retain) for site, c in request.counts.items()}
    fed = fed or federation(Hospitals(held))
    return cls(fed, schedule(**(changes or {})), request, seed=7, config=config, history=history, work=work)


def calls(strategy):
    return strategy.federation.grid.calls()


def others_mean(history: History, departed=("site-a",), round_=3) -> State:
    stayed = [site for site in SITES if site not in departed]
    total = sum(TRAINED[s][1] for s in stayed)
    shares = [TRAINED[s][1] / total for s in stayed]
    return apply_updates(history.before(round_), [history.update(round_, s) for s in stayed], shares)


def same_buffers(a: State, b: State) -> bool:
    return all(torch.equal(a.float_buffers[n], t) for n, t in b.float_buffers.items())


@pytest.mark.parametrize("departed", [("site-a",), ("site-d",), ("site-a", "site-c")])
def test_the_ascent_starts_at_the_others_mean_of_the_last_round(tmp_path, departed):
    history = recorded(tmp_path)
    end = history.after(3)
    strategy = pga(history, request=client_request(departed))
    strategy.run(end)
    sent = [call.state for _, _, call in calls(strategy)]
    assert [site for site, _, _ in calls(strategy)] == list(departed)
    assert all(distance(state, others_mean(history, departed)) < 1e-5 for state in sent)
    assert all(same_buffers(state, end) for state in sent), "an extrapolated variance can be negative"


def test_the_message_has_the_settings_and_the_original_for_validation(tmp_path):
    history = recorded(tmp_path)
    end = history.after(3)
    strategy = pga(history)
    outcome = strategy.run(end)
    ((_, kind, call),) = calls(strategy)
    wanted = {"records": "forget", "epochs": 5, "lr": 0.1, "rho": 10.0, "momentum": 0.9, "max-norm": 5.0}
    assert kind == "train.ascend_in_ball" and wanted.items() <= call.config.items()
    assert {"early-stop": "val", "min-val": 0.5, "bn-mode": "eval"}.items() <= call.config.items()
    assert call.states["original"].sha256() == end.sha256()
    assert outcome.cost.disk_read > 0


def test_the_original_preset_measures_from_the_lone_sites_last_model(tmp_path):
    history = recorded(tmp_path)
    last = history.before(3).params["w"] + history.update(3, "site-a").params["w"]
    strategy = pga(history, preset="original")
    strategy.run(history.after(3))
    call = calls(strategy)[0][2]
    assert {"rho": -1.0, "lr": 0.01, "early-stop": "distance", "tau": 1.4832}.items() <= call.config.items()
    assert torch.equal(call.states["last"].params["w"], last)


def test_several_leaving_sites_measure_from_the_model_at_hand(tmp_path):
    history = recorded(tmp_path)
    strategy = pga(history, preset="original", request=client_request(("site-a", "site-b")))
    strategy.run(history.after(3))
    assert {c.states["last"].sha256() for _, _, c in calls(strategy)} == {history.after(3).sha256()}


@pytest.mark.parametrize("request_", ["class:5", "patient:p", "sample:0.1"])
def test_where_nobody_leaves_the_ball_is_around_the_model_at_hand(tmp_path, request_):
    held = {"site-a": (10, 5), "site-b": (30, 50), "site-c": (0, 20)}
    request = replace(plan(held, (), text=request_), granularity=request_.partition(":")[0])
    strategy = pga(recorded(tmp_path / "h"), request=request, work=HistoryWriter(tmp_path / "w"))
    strategy.run(start_state())
    assert [site for site, _, _ in calls(strategy)] == ["site-a", "site-b"]
    assert all(c.state.sha256() == start_state().sha256() and not c.states for _, _, c in calls(strategy))
    record = History(tmp_path / "w").record(1)
    assert [record.sites[s].weight for s in ("site-a", "site-b")] == pytest.approx([0.25, 0.75])


# ---------------------------------------------------------------------- one more round
def assert_one_more_round(strategy, state):
    outcome = strategy.run(state)
    assert outcome.rounds == 2 and "one more round" in outcome.notes[0]
    asked = [(site, kind, call.config["records"]) for site, kind, call in calls(strategy)]
    stayed = [site for site in SITES if site not in strategy.request.departed]
    leaving = list(strategy.request.forget_holders)
    assert asked[: len(stayed)] == [(site, "train.recover", "retain") for site in stayed if site not in leaving]
    assert asked[len(stayed) :] == [(site, "train.ascend_in_ball", "forget") for site in leaving]
    return outcome


def test_without_a_history_the_sites_that_stay_train_once_more_and_their_mean_is_the_reference(tmp_path):
    strategy = pga(work=HistoryWriter(tmp_path))
    assert_one_more_round(strategy, start_state())
    mine = History(tmp_path)
    sent = calls(strategy)[-1][2]
    assert sent.state.sha256() == mine.after(1).sha256()
    assert [mine.record(1).sites[s].weight for s in SITES[1:]] == pytest.approx([2 / 9, 3 / 9, 4 / 9])
    assert calls(strategy)[0][2].config["epochs"] == schedule().local_epochs
    assert sent.states["original"].sha256() == start_state().sha256()


def test_thinned_updates_are_as_good_as_none(tmp_path):
    history = recorded(tmp_path, rounds=2)
    shrink(tmp_path, keep_every=2)
    assert_one_more_round(pga(History(tmp_path)), history.after(2))


def test_a_later_request_of_a_sequence_does_not_use_the_record_of_another_model(tmp_path):
    held = {"site-a": (0, 0), "site-b": (20, 0), "site-c": (0, 30), "site-d": (0, 40)}
    request = plan(held, ("site-a", "site-b"), text="client:site-a>client:site-b")
    strategy = pga(recorded(tmp_path), request=request)
    outcome = strategy.run(start_state())
    assert outcome.rounds == 2
    assert [site for site, _, _ in calls(strategy)] == ["site-c", "site-d", "site-b"]


def test_after_fedadam_the_model_is_no_mean(tmp_path):
    adam = {"strategy": "fedadam"}
    assert_one_more_round(pga(recorded(tmp_path, **adam), changes=adam), start_state())


def test_a_last_round_of_departed_sites_only_gives_no_reference(tmp_path):
    def only_a_in_round_3(site, op, call):
        if call.config["round"] == 3 and site != "site-a":
            raise ValueError("away")

    history = recorded(tmp_path, interfere=only_a_in_round_3)
    assert_one_more_round(pga(history), history.after(3))


def test_who_had_no_part_in_the_last_round_is_not_in_its_mean(tmp_path):
    def without_a_in_round_3(site, op, call):
        if call.config["round"] == 3 and site == "site-a":
            raise ValueError("away")

    history = recorded(tmp_path, interfere=without_a_in_round_3)
    strategy = pga(history)
    strategy.run(history.after(3))
    ((_, _, call),) = calls(strategy)
    assert call.state.sha256() == history.after(3).sha256()


# ---------------------------------------------------------------------- what comes back
def ending_at(radius: float):
    def interfere(site, op, call):
        def change(parts):
            if op != "ascend_in_ball":
                return parts
            direction = {n: torch.full_like(t, 1.0 + ord(site[-1]) % 3) for n, t in call.state.params.items()}
            length = sum(float(t.pow(2).sum()) for t in direction.values()) ** 0.5
            params = {n: t + radius / length * direction[n] for n, t in call.state.params.items()}
            metrics = {**parts["metrics"], "rho": radius, "distance": radius}
            state = State(params, call.state.float_buffers, call.state.int_buffers)
            return {**parts, "state": state, "metrics": metrics}

        return change

    return interfere


def test_the_mean_of_the_ascended_models_lies_in_the_ball(tmp_path):
    history = recorded(tmp_path)
    request = client_request(("site-a", "site-b"))
    held = {site: (c.num_forget, c.num_retain) for site, c in request.counts.items()}
    strategy = pga(history, request=request, fed=federation(Hospitals(held, ending_at(0.5))))
    outcome = strategy.run(history.after(3))
    assert distance(outcome.state, others_mean(history, request.departed)) <= 0.5 * (1 + 1e-5)
    size = others_mean(history, request.departed).norm()
    assert outcome.notes == (
        f"rho 0.5 is {0.5 / size:.2g} of the reference's norm {size:.3g}; the ascent ended at distance 0.5, 0.5",
    )


def test_a_killed_run_with_one_more_round_resumes_to_the_same_bits(tmp_path):
    class Killed(BaseException):
        pass

    def dying(site, op, call):
        if op == "ascend_in_ball":
            raise Killed

    whole = pga().run(start_state())
    with pytest.raises(Killed):
        pga(fed=federation(Hospitals(counts(), dying)), work=HistoryWriter(tmp_path)).run(start_state())
    assert History(tmp_path).last_complete_round == 1
    resumed = pga(work=HistoryWriter(tmp_path))
    outcome = resumed.run(start_state())
    assert outcome.state.sha256() == whole.state.sha256()
    assert {op for _, op, _ in calls(resumed)} == {"train.ascend_in_ball"}
    assert calls(resumed)[0][2].states["original"].sha256() == start_state().sha256()


def test_a_radius_is_a_number_or_auto():
    cls = METHODS.get("pga")
    assert cls.resolve_config("lethe", {"rho": "auto"}).rho == "auto"
    assert cls.resolve_config("lethe", {"rho": 0}).rho == 0.0
    for wrong in (-1, "large"):
        with pytest.raises(BadInput, match="rho"):
            cls.resolve_config("lethe", {"rho": wrong})


def test_a_damaged_history_is_named_and_not_taken_for_a_thinned_one(tmp_path):
    history = recorded(tmp_path)
    path = history.path(3)
    damaged = bytearray(path.read_bytes())
    tensors = 8 + int.from_bytes(damaged[:8], "little")  # the names and shapes before them stay whole
    damaged[tensors:] = bytes(byte ^ 1 for byte in damaged[tensors:])
    path.write_bytes(damaged)
    with pytest.raises(RunFailed, match=r"round-0003\.safetensors is damaged"):
        pga(History(tmp_path)).run(start_state())
