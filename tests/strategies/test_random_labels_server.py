"""Random labels at the server (METHODS 2.4)."""

from fake_sites import Hospitals, counts, federation, plan, spread, start_state
from test_methods import method

from strategies.random_labels import METHOD


def calls(held, departed, **given):
    fed = federation(Hospitals(held))
    method("random-labels", fed, request=plan(held, departed), **given).run(start_state())
    return [(site, kind, call.config) for site, kind, call in fed.grid.calls()]


def test_the_seed_of_the_labels_is_the_same_in_all_rounds_and_at_all_sites():
    seeds = [{config["label-seed"] for *_, config in calls(counts(), ("site-a",), seed=seed)} for seed in (7, 8)]
    assert [len(found) for found in seeds] == [1, 1] and seeds[0] != seeds[1]
    assert {config["label-seed"] for *_, config in calls(spread(), ())} == seeds[0]


def test_a_client_leaves_by_relabelled_and_plain_training_in_turns():
    found = calls(counts(), ("site-a",), overrides={"rounds": 1})
    assert [(site, kind, c["records"]) for site, kind, c in found] == [
        ("site-a", "train.relabel", "forget"),
        *((site, "train.relabel", "retain") for site in ("site-b", "site-c", "site-d")),
    ]


def test_the_presets_reach_the_site():
    wanted = {
        "lethe": {"lr": 0.1, "epochs": 5, "optimizer": "sgd"},
        "original": {"lr": 1e-4, "epochs": 3, "optimizer": "adam", "weight-decay": 0.0, "batch-size": 128},
        "safe": {"max-norm": 5.0},
    }
    for preset, config in wanted.items():
        assert config.items() <= calls(spread(), (), preset=preset)[0][2].items(), preset
    assert METHOD.resolve_config("common") == METHOD.resolve_config("lethe")
