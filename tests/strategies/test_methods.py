"""Facts about every registered method, then about each: METHODS 1.1, 1.2, 1.4, 1.8, 2.1 and 4 at the server."""

import inspect
import json
import math
from dataclasses import replace

import pytest
import torch
from fake_sites import LAYERS, SITES, Hospitals, counts, federation, plan, schedule, spread, start_state
from flwr.serverapp.strategy import Strategy

from partitions.errors import BadInput, RunFailed
from strategies.base import UnlearningStrategy
from strategies.events import EventSink
from strategies.history import History, HistoryWriter
from strategies.recording import RecordingFedAvg
from strategies.recovery import run_recovery
from strategies.registry import METHODS
from strategies.wire import from_record
from unlearning.federaser import calibrate
from unlearning.state import State, apply_updates, distance, norm, update_of

NAMES = METHODS.names()
SIMULATED = [name for name in NAMES if name not in ("eu-k", "prune")]
"""Those two look into a network, and these sites have none; tests/conformance walks every method at real sites."""


def holdings(name):
    """Return what the sites hold under a request that the method can do: a client's, or else a class's."""
    return counts() if "client" in METHODS.get(name).granularities else spread()


def usual(name):
    """Return that request."""
    held = holdings(name)
    return plan(held) if held == counts() else replace(plan(held, (), text="class:5"), granularity="class")


def hospitals(name):
    """Return the sites under that request."""
    return Hospitals(holdings(name))


def method(name, fed, held=None, *, preset="lethe", overrides=None, plan_=None, request=None, **kwargs):
    cls = METHODS.get(name)
    return cls(
        fed,
        plan_ or schedule(),
        request or (plan(held) if held else usual(name)),
        seed=kwargs.pop("seed", 7),
        config=cls.resolve_config(preset, overrides or {}),
        layers=kwargs.pop("layers", LAYERS),
        **kwargs,
    )


def trained(folder, held=None, rounds=4, plan_=None, **interfere) -> History:
    """Train an original model over all sites and return its history."""
    held = held or counts()
    strategy = RecordingFedAvg(
        federation(Hospitals(held, **interfere), failure_policy="continue"),
        plan_ or schedule(),
        seed=0,
        participants=list(held),
        message_config={"records": "all"},
        history=HistoryWriter(folder),
        label="original",
    )
    strategy.run(start_state(), rounds)
    return History(folder)


# ---------------------------------------------------------------------- every method
def test_the_methods_of_this_slice_are_registered():
    assert {"ga", "federaser", "fedquit", "fine-tuning", "retrain"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_a_flower_strategy_that_declares_itself(name):
    cls = METHODS.get(name)
    assert issubclass(cls, UnlearningStrategy) and issubclass(cls, Strategy)
    assert cls.name == name and cls.title and cls.citation and cls.provenance and cls.family
    assert set(cls.granularities) <= {"client", "class", "patient", "sample"} and cls.granularities
    assert isinstance(cls.version, int) and "lethe" in cls.presets


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_resolves_and_every_setting_is_described(name):
    cls = METHODS.get(name)
    for preset in {*cls.presets, "lethe", "original", "safe"}:
        cls.resolve_config(preset)
    assert all(field.description for field in cls.Config.model_fields.values())


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_setting_is_refused(name):
    with pytest.raises(BadInput, match=name):
        METHODS.get(name).resolve_config("lethe", {"nonsense": 1})


@pytest.mark.parametrize("name", NAMES)
def test_the_constructor_is_the_bases(name):
    assert inspect.signature(METHODS.get(name)) == inspect.signature(UnlearningStrategy)


@pytest.mark.parametrize("name", NAMES)
def test_a_method_gets_the_history_only_where_it_declared_the_need(name, tmp_path):
    strategy = method(name, federation(hospitals(name)), history=trained(tmp_path))
    needs = METHODS.get(name).needs
    assert (strategy.history is not None) == (needs.history or needs.history_helps)


@pytest.mark.parametrize("name", SIMULATED)
def test_buffers_keep_their_kind_and_the_outcome_is_finite(name, tmp_path):
    state = method(name, federation(hospitals(name)), history=trained(tmp_path)).run(start_state()).state
    assert state.is_finite() and list(state.params) == list(start_state().params)
    assert state.int_buffers["bn.num_batches_tracked"].dtype == torch.int64
    assert state.int_buffers["bn.num_batches_tracked"].shape == ()
    assert (state.float_buffers["bn.running_var"] >= 0).all()


@pytest.mark.parametrize("name", SIMULATED)
def test_the_same_seed_gives_the_same_bits_in_any_order_of_answers(name, tmp_path):
    history = trained(tmp_path)
    runs = [method(name, federation(hospitals(name), shuffle_seed=i), history=history) for i in range(2)]
    assert len({run.run(start_state()).state.sha256() for run in runs}) == 1


@pytest.mark.parametrize("name", SIMULATED)
def test_only_a_method_that_needs_the_departed_site_asks_it(name, tmp_path):
    fed = federation(hospitals(name))
    cls = METHODS.get(name)
    method(name, fed, history=trained(tmp_path)).run(start_state())
    departed = set(usual(name).departed)
    asked = {site for site, _, _ in fed.grid.calls()}
    assert not asked & departed or cls.needs.departed_online
    named = {call.config["records"] for _, _, call in fed.grid.calls()}
    opened = named | ({"forget", "retain"} if "both" in named else set())
    assert not opened & {"forget", "both"} or cls.needs.forget_data
    assert not opened & {"retain", "both"} or cls.needs.retain_data
    assert "all" not in opened


@pytest.mark.parametrize("name", SIMULATED)
def test_costs_are_counted(name, tmp_path):
    fed = federation(hospitals(name))
    cost = method(name, fed, history=trained(tmp_path)).run(start_state()).cost
    assert (cost.bytes_up > 0) == (cost.gradient_steps > 0) == bool(fed.grid.calls())
    needs = METHODS.get(name).needs
    assert (cost.disk_read > 0) == (needs.history or needs.history_helps)


class Dying(EventSink):
    """Ends the process, as far as a strategy can tell, when the round after `rounds` starts."""

    def __init__(self, rounds: int) -> None:
        super().__init__(None)
        self._rounds = rounds

    def emit(self, kind, **fields):
        if kind == "round-started" and fields["round"] > self._rounds:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", SIMULATED)
def test_a_killed_method_resumes_to_the_same_bits_with_the_whole_cost(name, tmp_path):
    history = trained(tmp_path / "original", rounds=6)

    def make(work=None, events=None):
        fed = federation(hospitals(name), events=events)
        return method(name, fed, history=History(history.folder), work=work)

    whole = make().run(start_state())
    for done in range(whole.rounds):
        work = HistoryWriter(tmp_path / f"work-{done}")
        with pytest.raises(KeyboardInterrupt):
            make(work, Dying(done)).run(start_state())
        assert work.read().last_complete_round == done
        outcome = make(work).run(start_state())
        assert outcome.state.sha256() == whole.state.sha256()
        assert outcome.rounds == whole.rounds
        for key in ("client_examples", "gradient_steps", "bytes_up", "bytes_down", "disk_read", "client_seconds"):
            assert getattr(outcome.cost, key) == getattr(whole.cost, key), key


@pytest.mark.parametrize("name", SIMULATED)
def test_the_events_name_stage_method_and_request(name, tmp_path):
    sink = EventSink(tmp_path / "e")
    method(name, federation(hospitals(name), events=sink), history=trained(tmp_path / "h")).run(start_state())
    events = [json.loads(line) for line in (tmp_path / "e").read_text().splitlines()]
    assert {e["label"] for e in events} == {f"{name} {usual(name).text}"}
    assert {e["stage"] for e in events} == {"retrain" if name == "retrain" else "unlearn"}
    assert events[0]["kind"] == "stage-started" and events[-1] == {
        **events[-1],
        "kind": "stage-finished",
        "status": "ok",
    }


# ---------------------------------------------------------------------- declarations
def test_a_preset_that_a_method_lacks_is_its_default_and_an_unknown_one_is_refused():
    ga = METHODS.get("ga")
    assert ga.resolve_config("original") == ga.resolve_config("lethe")
    with pytest.raises(BadInput, match="did you mean 'lethe'"):
        ga.resolve_config("lethee")


def test_an_unknown_setting_names_the_nearest_and_a_bad_value_its_meaning():
    ga = METHODS.get("ga")
    with pytest.raises(BadInput, match="did you mean 'max-norm'"):
        ga.resolve_config("lethe", {"max_nrm": 5})
    with pytest.raises(BadInput, match="clip of the gradient"):
        ga.resolve_config("lethe", {"max-norm": -1})


def test_overrides_win_over_the_preset():
    config = METHODS.get("ga").resolve_config("safe", {"max-norm": 3})
    assert (config.max_norm, config.recovery_max_norm) == (3.0, 5.0)


def test_true_is_no_number_and_infinity_only_where_a_setting_says_so():
    for overrides in ({"max-norm": True}, {"max-norm": float("inf")}, {"max-norm": float("nan")}):
        with pytest.raises(BadInput, match=r"ga\.max-norm=.*a number from 0 up"):
            METHODS.get("ga").resolve_config("lethe", overrides)
    assert METHODS.get("ssd").resolve_config("lethe", {"alpha": float("inf")}).alpha == math.inf


def test_a_thinned_history_is_refused_by_the_method_that_needs_every_round():
    given = {"has_history": True, "has_logits": True}
    assert "history-every=1" in METHODS.get("fedrecovery").unfit("client", **given, every_round=False)
    assert METHODS.get("fedrecovery").unfit("client", **given) == ""
    assert METHODS.get("federaser").unfit("client", **given, every_round=False) == ""


def test_a_method_says_what_it_cannot_do():
    assert METHODS.get("ga").unfit("class", has_history=False, has_logits=False) == ""
    assert "federaser forgets client only" in METHODS.get("federaser").unfit("class", has_history=True, has_logits=True)
    assert "history" in METHODS.get("federaser").unfit("client", has_history=False, has_logits=True)
    assert "logits" in METHODS.get("fedquit").unfit("client", has_history=True, has_logits=False)


def test_the_safe_preset_clips_recovery_and_the_others_leave_it_to_the_schedule():
    fed = federation(Hospitals(counts()))
    models = start_state(), start_state()
    assert method("ga", fed).recovery_hook(*models).message_config(1) == {}
    assert method("ga", fed, preset="safe").recovery_hook(*models).message_config(1) == {"max-norm": 5.0}


# ---------------------------------------------------------------------- retrain (1.1)
def test_retraining_with_nothing_to_forget_is_the_original_bit_for_bit(tmp_path):
    held = {site: (0, 10 * (i + 1)) for i, site in enumerate(SITES)}
    plan_ = schedule(fraction_train=0.6)
    original = trained(tmp_path, held, plan_=plan_)
    gold = method("retrain", federation(Hospitals(held)), held, request=plan(held, ()), seed=0, plan_=plan_)
    assert gold.run(start_state()).state.sha256() == original.after(4).sha256()


def test_retraining_starts_from_the_same_initial_model_and_leaves_the_departed_out(tmp_path):
    fed = federation(Hospitals(counts()))
    outcome = method("retrain", fed, seed=0, work=HistoryWriter(tmp_path)).run(start_state())
    assert outcome.rounds == 4
    assert History(tmp_path).before(1).sha256() == start_state().sha256()
    assert {(s, c.config["records"], c.config["request"], c.config["purpose"]) for s, _, c in fed.grid.calls()} == {
        (site, "retain", "client:site-a", "train") for site in SITES[1:]
    }
    assert [History(tmp_path).record(1).sites[s].weight for s in SITES[1:]] == pytest.approx([2 / 9, 3 / 9, 4 / 9])


def test_retraining_follows_the_training_strategy():
    plans = [schedule(strategy=s, server_lr=0.05) for s in ("fedavg", "fedadam")]
    states = [method("retrain", federation(Hospitals(counts())), plan_=p).run(start_state()).state for p in plans]
    assert distance(*states) > 0


# ---------------------------------------------------------------------- ga (1.2) and fedquit (1.8)
@pytest.mark.parametrize(("name", "op"), [("ga", "ascend"), ("fedquit", "distil")])
def test_the_forget_holders_work_once_and_a_lone_one_replaces_the_model(name, op):
    fed = federation(Hospitals(counts()))
    outcome = method(name, fed).run(start_state())
    ((site, message_type, call),) = fed.grid.calls()
    assert (site, message_type) == ("site-a", f"train.{op}")
    wanted = {"records": "forget", "request": "client:site-a", "request-seed": 0, "epochs": 5, "lr": 0.1, "seed": 7}
    assert wanted.items() <= call.config.items()
    reply = Hospitals(counts())("site-a", message_type, call)
    alone = from_record(reply["arrays"])
    assert distance(outcome.state, alone) < 1e-6
    assert outcome.cost.client_examples == 5 * 10


@pytest.mark.parametrize("name", ["ga", "fedquit"])
def test_several_holders_are_averaged_by_their_forget_records(name, tmp_path):
    held = {"site-a": (10, 5), "site-b": (30, 50), "site-c": (0, 20)}
    request = plan(held, (), text="class:5")
    fed = federation(Hospitals(held))
    method(name, fed, request=request, work=HistoryWriter(tmp_path)).run(start_state())
    record = History(tmp_path).record(1)
    assert record.participants == ("site-a", "site-b")
    assert [record.sites[s].weight for s in record.participants] == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize("name", ["ga", "fedquit"])
def test_a_learning_rate_of_zero_is_the_identity(name):
    outcome = method(name, federation(Hospitals(counts())), plan_=schedule(lr=0.0)).run(start_state())
    assert outcome.state.sha256() == start_state().sha256()


def stopped(site_that: str, status: str):
    def interfere(site, op, call):
        def change(parts):
            return {**parts, "config": {**parts["config"], "status": status, "reason": "the loss is not finite"}}

        return change if site == site_that else None

    return interfere


def test_a_site_that_diverged_gives_its_last_usable_state_and_the_outcome_is_diverged():
    outcome = method("ga", federation(Hospitals(counts(), stopped("site-a", "diverged")))).run(start_state())
    assert (outcome.status, outcome.reason) == ("diverged", "site-a: the loss is not finite")
    plain = method("ga", federation(Hospitals(counts()))).run(start_state())
    assert outcome.state.sha256() == plain.state.sha256()


def test_a_state_that_is_not_finite_is_never_used():
    outcome = method("ga", federation(Hospitals(counts(), stopped("site-a", "not-finite")))).run(start_state())
    assert outcome.status == "diverged"
    assert outcome.state.sha256() == start_state().sha256()


def test_a_request_nobody_holds_ends_with_a_named_error():
    held = dict.fromkeys(SITES, (0, 5))
    with pytest.raises(RunFailed, match="no site that was asked has a record"):
        method("ga", federation(Hospitals(held)), request=plan(held, ())).run(start_state())


def test_the_presets_of_ga_reach_the_site():
    for preset, max_norm in (("lethe", 0.0), ("safe", 5.0)):
        fed = federation(Hospitals(counts()))
        method("ga", fed, preset=preset).run(start_state())
        config = fed.grid.calls()[0][2].config
        assert (config["max-norm"], config["bn-mode"]) == (max_norm, "eval")


def test_the_presets_of_fedquit_reach_the_site():
    wanted = {
        "lethe": {
            "temperature": 4.0,
            "scale-t2": False,
            "optimizer": "sgd",
            "lr": 0.1,
            "epochs": 5,
            "bn-mode": "train",
        },
        "original": {"temperature": 1.0, "scale-t2": False, "optimizer": "adam", "lr": 1e-4, "epochs": 1},
    }
    for preset, config in wanted.items():
        fed = federation(Hospitals(counts()))
        method("fedquit", fed, preset=preset).run(start_state())
        assert config.items() <= fed.grid.calls()[0][2].config.items()


# ---------------------------------------------------------------------- fine-tuning (2.1)
def test_fine_tuning_leaves_the_model_as_it_is_and_asks_nobody():
    fed = federation(Hospitals(counts()))
    outcome = method("fine-tuning", fed).run(start_state())
    assert outcome.state.sha256() == start_state().sha256() and fed.grid.calls() == []
    assert (outcome.rounds, outcome.cost.seconds) == (0, 0.0)


def test_fine_tuning_then_recovery_is_recovery():
    strategy = method("fine-tuning", federation(Hospitals(counts())))
    after = run_recovery(
        strategy.federation,
        strategy.schedule,
        strategy.request,
        strategy.run(start_state()).state,
        seed=1,
        work=None,
        hook=strategy.recovery_hook(start_state(), start_state()),
    )
    plain = run_recovery(federation(Hospitals(counts())), schedule(), plan(counts()), start_state(), seed=1, work=None)
    assert after.state.sha256() == plain.state.sha256()


# ---------------------------------------------------------------------- federaser (1.4)
STAYED = SITES[1:]
SHARES = [2 / 9, 3 / 9, 4 / 9]


def accumulated(history: History, rounds) -> State:
    """Return the plain accumulation of the recorded updates of the sites that stay."""
    state = history.before(1)
    for round_ in rounds:
        state = apply_updates(state, [history.update(round_, s) for s in STAYED], SHARES)
    return state


def returning_recorded(history: History, scale: float):
    """Make the sites return ``scale`` times their recorded update."""

    def interfere(site, op, call):
        def change(parts):
            recorded = history.update(call.config["round"], site)
            params = {n: t + scale * recorded.params[n] for n, t in call.state.params.items()}
            return {**parts, "state": State(params, call.state.float_buffers, call.state.int_buffers)}

        return change

    return interfere


@pytest.mark.parametrize("overrides", [{}, {"norm-scope": "model"}, {"calibrate-on": "mean"}])
@pytest.mark.parametrize("scale", [0.25, 1.0, 40.0])
def test_a_calibration_in_the_recorded_direction_gives_the_plain_accumulation(tmp_path, overrides, scale):
    history = trained(tmp_path, rounds=5)
    fed = federation(Hospitals(counts(), returning_recorded(history, scale)))
    outcome = method("federaser", fed, history=history, overrides={"interval": 1, **overrides}).run(start_state())
    expected = accumulated(history, range(1, 6))
    assert norm({n: outcome.state.params[n] - expected.params[n] for n in expected.params}) < 2e-4


def test_one_retained_round_is_the_initial_model_plus_the_recorded_updates_without_a_call(tmp_path):
    history = trained(tmp_path, rounds=4)
    fed = federation(Hospitals(counts()))
    outcome = method("federaser", fed, history=history, overrides={"interval": 4}).run(start_state())
    assert fed.grid.calls() == [] and outcome.rounds == 1
    assert outcome.state.sha256() == accumulated(history, [1]).sha256()


def test_the_recorded_lengths_are_kept_and_the_directions_are_fresh(tmp_path):
    history = trained(tmp_path / "original", rounds=4)
    work = HistoryWriter(tmp_path / "work")
    method("federaser", federation(Hospitals(counts())), history=history, work=work).run(start_state())
    replay = work.read()
    for site in STAYED:
        used, recorded = replay.update(2, site), history.update(3, site)
        for name in used.params:
            assert norm({name: used.params[name]}) == pytest.approx(norm({name: recorded.params[name]}), rel=1e-6)
        assert not torch.equal(used.params["w"], recorded.params["w"])
    assert (
        replay.after(2).sha256()
        == apply_updates(replay.before(2), [replay.update(2, s) for s in STAYED], SHARES).sha256()
    )


def test_the_sites_are_asked_for_the_retained_rounds_with_half_the_epochs_and_the_recorded_rate(tmp_path):
    history = trained(tmp_path, rounds=5, plan_=schedule(lr=0.03, local_epochs=3))
    fed = federation(Hospitals(counts()))
    method("federaser", fed, history=history, plan_=schedule(lr=0.5, local_epochs=3)).run(start_state())
    assert [(s, c.config["round"]) for s, _, c in fed.grid.calls()] == [(s, r) for r in (3, 5) for s in STAYED]
    assert {message_type for _, message_type, _ in fed.grid.calls()} == {"train.recover"}
    config = fed.grid.calls()[0][2].config
    assert {"epochs": 2, "lr": 0.03, "records": "retain", "purpose": "federaser", "seed": 7}.items() <= config.items()


def test_the_departed_site_need_not_be_online(tmp_path):
    history = trained(tmp_path)
    rest = {site: c for site, c in counts().items() if site != "site-a"}
    outcome = method("federaser", federation(Hospitals(rest)), history=history).run(start_state())
    assert outcome.rounds == 2


def test_it_starts_from_the_initial_model_whatever_model_is_handed_to_it(tmp_path):
    history = trained(tmp_path)
    other = State({n: t + 9 for n, t in start_state().params.items()}, {}, {})
    states = [
        method("federaser", federation(Hospitals(counts())), history=history).run(s) for s in (start_state(), other)
    ]
    assert states[0].state.sha256() == states[1].state.sha256()


def test_a_round_where_only_the_departed_took_part_is_dropped(tmp_path):
    def only_a_in_round_2(site, op, call):
        if call.config["round"] == 2 and site != "site-a":
            raise ValueError("away")

    history = trained(tmp_path, interfere=only_a_in_round_2)
    assert history.record(2).participants == ("site-a",)
    fed = federation(Hospitals(counts()))
    method("federaser", fed, history=history, overrides={"interval": 1}).run(start_state())
    assert sorted({c.config["round"] for _, _, c in fed.grid.calls()}) == [3, 4]


def test_sites_that_took_no_part_in_a_round_are_not_asked_for_it(tmp_path):
    def c_away_in_round_3(site, op, call):
        if call.config["round"] == 3 and site == "site-c":
            raise ValueError("away")

    history = trained(tmp_path, interfere=c_away_in_round_3)
    fed = federation(Hospitals(counts()))
    method("federaser", fed, history=history).run(start_state())
    assert [site for site, _, c in fed.grid.calls()] == ["site-b", "site-d"]


def test_float_buffers_are_averaged_plainly_and_never_rescaled(tmp_path):
    history = trained(tmp_path / "h", rounds=3)
    work = HistoryWriter(tmp_path / "w")
    method("federaser", federation(Hospitals(counts())), history=history, work=work).run(start_state())
    replay = work.read()
    for site in STAYED:
        fresh = replay.update(2, site).float_buffers["bn.running_mean"]
        assert torch.allclose(fresh, torch.full((2,), 0.1 * 0.1))


def test_a_history_without_rounds_or_sites_that_stay_is_refused(tmp_path):
    with pytest.raises(RunFailed, match="recorded rounds"):
        method("federaser", federation(Hospitals(counts())), history=History(tmp_path / "none")).run(start_state())
    history = trained(tmp_path / "h")
    with pytest.raises(RunFailed, match="no recorded round has a site that stays"):
        method(
            "federaser", federation(Hospitals(counts())), history=history, request=plan(counts(), departed=SITES)
        ).run(start_state())


def test_the_mean_is_calibrated_where_asked(tmp_path):
    history = trained(tmp_path / "h", rounds=2)
    fed = federation(Hospitals(counts()))
    overrides = {"interval": 1, "calibrate-on": "mean"}
    work = HistoryWriter(tmp_path / "w")
    outcome = method("federaser", fed, history=history, overrides=overrides, work=work).run(start_state())
    replay = work.read()
    stored = update_of(apply_updates(start_state(), [history.update(2, s) for s in STAYED], SHARES), start_state())
    step = update_of(outcome.state, replay.before(2))
    for name in stored.params:
        assert norm({name: step.params[name]}) == pytest.approx(norm({name: stored.params[name]}), rel=1e-4)
    one_by_one = [calibrate(history.update(2, s), replay.update(2, s), "tensor") for s in STAYED]
    assert distance(apply_updates(replay.before(2), one_by_one, SHARES), outcome.state) > 1e-6
    assert math.isfinite(replay.record(2).loss)
