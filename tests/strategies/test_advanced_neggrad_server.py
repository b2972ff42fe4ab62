"""Advanced NegGrad at the server (METHODS 2.9)."""

from dataclasses import replace

from fake_sites import Hospitals, federation, plan, spread, start_state
from test_methods import method

from strategies.advanced_neggrad import METHOD


def test_a_client_request_is_not_applicable_and_says_why():
    why = METHOD.unfit("client", has_history=True, has_logits=True)
    assert "not applicable to a client request" in why and "keeps no record" in why
    assert METHOD.unfit("class", has_history=False, has_logits=False) == ""


def test_a_class_that_is_all_that_a_site_has_is_not_applicable_and_names_the_site():
    held = {**spread(), "site-b": (10, 0)}
    assert METHOD.unfit_for(replace(plan(spread(), ()), granularity="class")) == ""
    assert "site-b has forget records only" in METHOD.unfit_for(replace(plan(held, ()), granularity="class"))


def test_the_holders_run_on_both_kinds_of_record():
    fed = federation(Hospitals(spread()))
    method("advanced-neggrad", fed).run(start_state())
    assert [(s, kind, c.config["records"]) for s, kind, c in fed.grid.calls()] == [
        (site, "train.negate_and_train", "both") for site in ("site-a", "site-b", "site-c")
    ]


def test_the_presets_reach_the_site():
    wanted = {
        "lethe": {"lr": 0.1, "epochs": 5, "bn-mode": "train", "forget-weight": 1.0, "cap": 0.0, "max-norm": 0.0},
        "original": {"lr": 1e-3, "epochs": 2, "momentum": 0.0, "weight-decay": 0.0, "batch-size": 64},
        "safe": {"lr": 0.1, "cap": 2.0, "max-norm": 5.0},
    }
    for preset, config in wanted.items():
        fed = federation(Hospitals(spread()))
        method("advanced-neggrad", fed, preset=preset).run(start_state())
        assert config.items() <= fed.grid.calls()[0][2].config.items(), preset
    assert METHOD.resolve_config("common") == METHOD.resolve_config("lethe")


def test_one_joint_pass_can_be_asked_for():
    fed = federation(Hospitals(spread()))
    method("advanced-neggrad", fed, overrides={"bn-mode": "joint"}).run(start_state())
    assert {call.config["bn-mode"] for _, _, call in fed.grid.calls()} == {"joint"}
