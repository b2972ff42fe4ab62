"""NegGrad at the server (METHODS 2.8)."""

from dataclasses import replace

import pytest
from fake_sites import Hospitals, counts, federation, plan, schedule, spread, start_state
from test_methods import method, stopped


@pytest.mark.parametrize(
    ("held", "departed", "holders"),
    [(counts(), ("site-a",), ["site-a"]), (spread(), (), ["site-a", "site-b", "site-c"])],
)
def test_the_holders_of_forget_records_are_asked_once_whatever_else_they_keep(held, departed, holders):
    fed = federation(Hospitals(held))
    outcome = method("neggrad", fed, request=plan(held, departed)).run(start_state())
    assert [(site, kind) for site, kind, _ in fed.grid.calls()] == [(site, "train.negate") for site in holders]
    assert {call.config["records"] for _, _, call in fed.grid.calls()} == {"forget"} and outcome.rounds == 1


def test_the_presets_reach_the_site():
    wanted = {
        "lethe": {"lr": 0.1, "epochs": 5, "bn-mode": "eval", "paced-by": "forget", "max-norm": 0.0},
        "original": {"lr": 0.02, "epochs": 5, "momentum": 0.9, "weight-decay": 5e-4},
        "mufac": {"lr": 1e-3, "epochs": 2, "momentum": 0.0, "batch-size": 64, "bn-mode": "train", "paced-by": "retain"},
        "safe": {"lr": 0.1, "max-norm": 5.0},
    }
    for preset, config in wanted.items():
        fed = federation(Hospitals(counts()))
        method("neggrad", fed, preset=preset).run(start_state())
        assert config.items() <= fed.grid.calls()[0][2].config.items(), preset


def test_common_is_the_default():
    cls = type(method("neggrad", federation(Hospitals(counts()))))
    assert cls.resolve_config("common") == cls.resolve_config("lethe")


def test_a_learning_rate_of_zero_is_the_identity_and_a_site_that_diverged_ends_it():
    fed = federation(Hospitals(counts()))
    assert method("neggrad", fed, plan_=schedule(lr=0.0)).run(start_state()).state.sha256() == start_state().sha256()
    outcome = method("neggrad", federation(Hospitals(counts(), stopped("site-a", "diverged")))).run(start_state())
    assert (outcome.status, outcome.reason) == ("diverged", "site-a: the loss is not finite")


def test_it_is_never_unfit_for_a_request():
    cls = type(method("neggrad", federation(Hospitals(counts()))))
    assert cls.unfit_for(replace(plan(counts()), granularity="client")) == ""
