"""Bad Teacher at the server (METHODS 2.3)."""

from fake_sites import Hospitals, counts, federation, plan, spread, start_state
from test_methods import method

from strategies.bad_teacher import METHOD


def calls(held, departed, **given):
    fed = federation(Hospitals(held))
    method("bad-teacher", fed, request=plan(held, departed), **given).run(start_state())
    return [call for _, _, call in fed.grid.calls()]


def test_all_sites_and_rounds_get_one_seed_of_the_bad_teacher_and_another_run_another():
    seeds = [{call.config["teacher-seed"] for call in calls(counts(), ("site-a",), seed=seed)} for seed in (7, 8)]
    assert [len(found) for found in seeds] == [1, 1] and seeds[0] != seeds[1]
    assert {call.config["teacher-seed"] for call in calls(spread(), ())} == seeds[0]


def test_the_good_teacher_goes_to_retain_turns_alone():
    found = calls(counts(), ("site-a",))
    assert all((set(call.states) == {"teacher"}) == (call.config["records"] == "retain") for call in found)
    assert {call.states["teacher"].sha256() for call in found if call.states} == {start_state().sha256()}
    assert not any(call.states for call in calls(spread(), ()))


def test_the_presets_reach_the_site():
    wanted = {
        "lethe": {"lr": 0.1, "epochs": 5, "temperature": 1.0, "retain-share": 0.3, "reduction": "batchmean"},
        "original": {
            "lr": 1e-4,
            "epochs": 1,
            "optimizer": "adam",
            "weight-decay": 0.0,
            "batch-size": 256,
            "reduction": "mean",
            "retain-share": 0.3,
        },
        "safe": {"max-norm": 5.0},
    }
    for preset, config in wanted.items():
        assert config.items() <= calls(spread(), (), preset=preset)[0].config.items(), preset
    assert METHOD.resolve_config("common") == METHOD.resolve_config("lethe")
    assert METHOD.needs.logits
