"""FedRecovery at the server, on recorded rounds: METHODS 1.10's oracles, partial participation, sequences."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fake_sites import SITES, Hospitals, counts, federation, plan, schedule, start_state

from partitions.errors import RunFailed
from strategies.history import History, HistoryWriter
from strategies.recording import RecordingFedAvg
from strategies.registry import METHODS
from unlearning.state import State, apply_updates, distance, norm

HELD = {site: (0, 10 * (i + 1)) for i, site in enumerate(SITES)}


def recorded(folder, rounds=4, **changes) -> History:
    strategy = RecordingFedAvg(
        federation(Hospitals(HELD)),
        schedule(**changes),
        seed=0,
        participants=SITES,
        message_config={"records": "all"},
        history=HistoryWriter(folder),
        label="original",
    )
    strategy.run(start_state(), rounds)
    return History(folder)


def request(departed=("site-a",), leaving=None):
    """Plan a request in which `leaving` go now and the rest of `departed` went before."""
    leaving = departed if leaving is None else leaving
    sizes = {site: sum(held) for site, held in HELD.items()}
    held = {s: (n, 0) if s in leaving else (0, 0) if s in departed else (0, n) for s, n in sizes.items()}
    return plan(held, departed)


def fedrecovery(history, *, departed=("site-a",), leaving=None, preset="lethe", seed=7, changes=None, **overrides):
    cls = METHODS.get("fedrecovery")
    config = cls.resolve_config(preset, {"sigma": 0.0, **overrides})
    return cls(
        federation(Hospitals(counts())),
        schedule(**(changes or {})),
        request(departed, leaving),
        seed=seed,
        config=config,
        history=history,
    )


def near(a: State, b: State, bound: float = 2e-6) -> bool:
    return distance(a, b) < bound


@pytest.mark.parametrize("departed", [("site-a",), ("site-d",), ("site-a", "site-c")])
def test_one_round_is_what_the_others_would_have_done(tmp_path, departed):
    history = recorded(tmp_path, rounds=1)
    outcome = fedrecovery(history, departed=departed).run(history.after(1))
    stayed = [site for site in SITES if site not in departed]
    sizes = [sum(HELD[site]) for site in stayed]
    expected = apply_updates(
        history.before(1), [history.update(1, s) for s in stayed], [size / sum(sizes) for size in sizes]
    )
    assert near(outcome.state, expected)
    assert not near(outcome.state, history.after(1), 1e-3)


def test_who_never_took_part_changes_nothing(tmp_path):
    history = recorded(tmp_path, rounds=2)
    outcome = fedrecovery(history, departed=("site-z",)).run(history.after(2))
    assert outcome.state.sha256() == history.after(2).sha256()


def test_partial_participation_takes_each_rounds_own_shares(tmp_path):
    history = recorded(tmp_path, rounds=6, fraction_train=0.5)
    took_part = [r for r in history.rounds if "site-a" in history.record(r).participants]
    assert 0 < len(took_part) < 6, "the test needs rounds with and without site-a"
    total: dict[str, torch.Tensor] = {}
    weight = 0.0
    for round_ in history.rounds:
        record, before = history.record(round_), history.before(round_)
        step = {n: history.after(round_).params[n] - t for n, t in before.params.items()}
        weight += norm(step) ** 2
        if round_ not in took_part:
            continue
        others = [s for s in record.participants if s != "site-a"]
        sizes = [record.sites[s].num_examples for s in others]
        alone = apply_updates(before, [history.update(round_, s) for s in others], [n / sum(sizes) for n in sizes])
        for name, t in step.items():
            left = alone.params[name] - before.params[name] if others else 0.0
            total[name] = total.get(name, 0.0) + norm(step) ** 2 * (t - left)
    end = history.after(6)
    expected = State({n: t - total[n] / weight for n, t in end.params.items()}, end.float_buffers, end.int_buffers)
    assert near(fedrecovery(history).run(end).state, expected)


def test_buffers_stay_and_norms_are_of_parameters_only(tmp_path):
    history = recorded(tmp_path)
    end = history.after(4)
    state = fedrecovery(history).run(end).state
    assert all(torch.equal(state.float_buffers[n], t) for n, t in end.float_buffers.items())
    assert all(torch.equal(state.int_buffers[n], t) for n, t in end.int_buffers.items())


def test_in_a_sequence_the_corrections_add_up_to_that_of_both_at_once(tmp_path):
    history = recorded(tmp_path)
    end = history.after(4)
    first = fedrecovery(history).run(end).state
    second = fedrecovery(history, departed=("site-a", "site-c"), leaving=("site-c",)).run(first).state
    assert near(second, fedrecovery(history, departed=("site-a", "site-c")).run(end).state)
    assert not near(second, first, 1e-3)


def test_the_strength_scales_the_correction(tmp_path):
    history = recorded(tmp_path)
    end = history.after(4)
    whole, half = (fedrecovery(history, strength=s).run(end).state for s in (1.0, 0.5))
    assert distance(half, end) == pytest.approx(distance(whole, end) / 2, rel=1e-4)
    assert near(fedrecovery(history, strength=0.0).run(end).state, end, 1e-12)


def test_the_whole_replay_corrects_more_than_one_rounds_worth(tmp_path):
    history = recorded(tmp_path)
    end = history.after(4)
    replay, weighted = (fedrecovery(history, weights=w).run(end).state for w in ("sum", "norm"))
    assert distance(replay, end) > 2 * distance(weighted, end)


def test_the_noise_is_relative_and_follows_the_seed(tmp_path):
    history = recorded(tmp_path)
    end = history.after(4)
    clean = fedrecovery(history).run(end).state
    noisy = [fedrecovery(history, sigma=0.05, seed=seed).run(end).state for seed in (7, 7, 8)]
    assert noisy[0].sha256() == noisy[1].sha256() != noisy[2].sha256()
    assert 0 < distance(noisy[0], clean) < 5 * 0.05 * float(clean.params["w"].std())
    assert torch.equal(noisy[0].params["scale"], clean.params["scale"]), "a single element has no deviation"


def test_dp_noise_is_called_what_it_is_and_may_leave_nothing(tmp_path):
    history = recorded(tmp_path)
    end = history.after(4)
    small = fedrecovery(history, preset="dp", sensitivity=0.01).run(end)
    assert small.status == "ok" and "DP-style noise, without a guarantee" in small.notes[1]
    large = fedrecovery(history, preset="dp", sensitivity=1e4).run(end)
    assert large.status == "diverged" and large.state.sha256() == end.sha256()


def test_after_fedadam_the_residuals_are_of_the_mean_updates_and_a_remark_says_so(tmp_path):
    adam = {"strategy": "fedadam", "server_lr": 0.05}
    history = recorded(tmp_path, rounds=1, **adam)
    record = history.record(1)
    mean = apply_updates(
        history.before(1), [history.update(1, s) for s in SITES], [record.sites[s].weight for s in SITES]
    )
    others = [s for s in SITES if s != "site-a"]
    sizes = [record.sites[s].num_examples for s in others]
    without = apply_updates(history.before(1), [history.update(1, s) for s in others], [n / sum(sizes) for n in sizes])
    end = history.after(1)
    outcome = fedrecovery(history, changes=adam).run(end)
    expected = {n: t - (mean.params[n] - without.params[n]) for n, t in end.params.items()}
    assert near(outcome.state, replace(end, params=expected))
    assert any("FedAdam" in note for note in outcome.notes)


def test_without_recorded_rounds_it_ends_with_a_named_error(tmp_path):
    with pytest.raises(RunFailed, match="recorded rounds"):
        fedrecovery(History(tmp_path / "none")).run(start_state())


def test_nobody_is_asked(tmp_path):
    history = recorded(tmp_path)
    strategy = fedrecovery(history)
    strategy.run(history.after(4))
    assert strategy.federation.grid.calls() == []


def test_other_granularities_are_refused_with_a_reason():
    reason = METHODS.get("fedrecovery").unfit("class", has_history=True, has_logits=True)
    assert "not applicable to a class request" in reason and "recorded round" in reason
