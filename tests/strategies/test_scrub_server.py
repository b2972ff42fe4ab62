"""SCRUB at the server (METHODS 2.10)."""

import pytest
from fake_sites import SITES, Hospitals, counts, federation, plan, schedule, spread, start_state
from test_methods import method

from strategies.scrub import METHOD


def calls(held, departed, **given):
    fed = federation(Hospitals(held))
    outcome = method("scrub", fed, request=plan(held, departed), **given).run(start_state())
    return [(site, kind, call) for site, kind, call in fed.grid.calls()], outcome


def turns(**given) -> list[str]:
    """Return the turns of a client request, one an exchange."""
    found, _ = calls(counts(), ("site-a",), **given)
    by_round = {call.config["round"]: call.config["records"] for _, _, call in found}
    return [by_round[round_] for round_ in sorted(by_round)]


def test_holders_of_both_kinds_do_it_all_in_one_round_and_need_no_other_teacher():
    found, outcome = calls(spread(), ())
    assert [site for site, *_ in found] == ["site-a", "site-b", "site-c"] and outcome.rounds == 1
    wanted = {"records": "both", "msteps": 3, "order": "max-first", "decay-after": "", "max-norm": 5.0, "epochs": 5}
    assert all(wanted.items() <= call.config.items() and not call.states for _, _, call in found)


def test_a_client_leaves_by_max_and_min_rounds_in_turns_and_by_min_rounds_at_the_end():
    assert turns() == ["forget", "retain"] * 3 + ["retain"] * 2
    assert turns(overrides={"order": "min-first", "epochs": 2}) == ["retain", "forget"] * 2
    assert turns(overrides={"msteps": 0, "epochs": 2}) == ["retain"] * 2
    assert turns(plan_=schedule(unlearn_epochs=1)) == ["forget", "retain"]


def test_the_departing_site_takes_max_steps_and_the_others_min_steps():
    found, _ = calls(counts(), ("site-a",))
    by_turn = {turn: {site for site, _, c in found if c.config["records"] == turn} for turn in ("forget", "retain")}
    assert by_turn == {"forget": {"site-a"}, "retain": set(SITES[1:])}
    assert {(kind, call.config["epochs"], call.config["msteps"]) for _, kind, call in found} == {("train.scrub", 1, 1)}


def test_the_teacher_of_later_rounds_is_the_model_that_is_to_forget():
    found, _ = calls(counts(), ("site-a",))
    assert not found[0][2].states
    assert {call.states["teacher"].sha256() for _, _, call in found[1:]} == {start_state().sha256()}


def test_the_rate_of_a_pair_is_that_of_its_epoch():
    found, _ = calls(counts(), ("site-a",), overrides={"decay-after": [1, 2], "msteps": 1, "epochs": 3})
    rates = {call.config["round"]: call.config["lr"] for _, _, call in found}
    assert [rates[r] for r in (1, 2, 3, 4)] == pytest.approx([0.1, 0.1, 0.01, 0.001])


def test_the_presets_reach_the_site():
    wanted = {
        "lethe": {"lr": 0.1, "epochs": 5, "temperature": 2.0, "gamma": 1.0, "alpha": 0.5, "smoothing": 0.0},
        "original": {
            "lr": 5e-4,
            "epochs": 10,
            "optimizer": "adam",
            "weight-decay": 0.1,
            "decay-after": "5,8,9",
            "max-norm": 0.0,
        },
        "mufac": {"lr": 1e-3, "epochs": 2, "temperature": 4.0, "alpha": 1.0, "order": "min-first", "msteps": 2},
        "safe": {"lr": 0.1, "max-norm": 5.0},
    }
    for preset, config in wanted.items():
        found, _ = calls(spread(), (), preset=preset)
        assert config.items() <= found[0][2].config.items(), preset
    assert METHOD.resolve_config("common") == METHOD.resolve_config("lethe")
    assert METHOD.resolve_config("safe").recovery_max_norm == 5.0
