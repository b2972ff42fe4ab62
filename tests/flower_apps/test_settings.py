import tomllib
from pathlib import Path

import pytest

from flower_apps.runs import group_id
from flower_apps.settings import GroupSettings, flower_config
from partitions.errors import BadInput

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_flower_app_has_exactly_the_keys_and_defaults_of_the_settings():
    declared = tomllib.loads(PYPROJECT.read_text())["tool"]["flwr"]["app"]["config"]
    assert declared == GroupSettings.keys()
    assert list(declared) == list(GroupSettings.keys())


def test_printing_the_settings_gives_the_table_of_pyproject():
    assert tomllib.loads(flower_config())["tool"]["flwr"]["app"]["config"] == GroupSettings.keys()
    assert flower_config() in PYPROJECT.read_text()


def test_defaults_survive_the_way_through_a_flower_run():
    assert GroupSettings.parse(GroupSettings().to_run_config()) == GroupSettings()


@pytest.mark.parametrize(
    ("key", "given", "read"),
    [
        ("train-seed", "3", 3),
        ("lr", "1e-4", 1e-4),
        ("lr", 1, 1.0),
        ("fresh", "yes", True),
        ("channels-last", "false", False),
        ("unlearn-seeds", 0, "0"),
        ("name", "no", "no"),
        ("precision", "bf16", "bf16-mixed"),
        ("precision", 32, "32-true"),
        ("model", " cnn ", "cnn"),
    ],
)
def test_a_value_is_read_as_its_keys_type(key, given, read):
    found = GroupSettings.parse({key: given}).to_run_config()[key]
    assert found == read
    assert type(found) is type(read)


@pytest.mark.parametrize(
    ("key", "given", "allowed"),
    [
        ("cap", "yes", "a whole number from 0 up"),
        ("cap", True, "a whole number from 0 up"),
        ("rounds", 3.5, "a whole number from 1 to 100000"),
        ("threads", 100_000, "a whole number from 1 to 256"),
        ("cap", 2**63, "a whole number up to 9223372036854775807"),
        ("evaluate-seeds", str(2**63), "at least one whole number from 0 to 9223372036854775807"),
        ("lr", False, "a number above 0"),
        ("lr", float("inf"), "a number above 0"),
        ("lr", float("nan"), "a number above 0"),
        ("fraction-train", 2, "a number above 0 to 1"),
        ("momentum", 1, "a number from 0 to below 1"),
        ("sites", -1, "a whole number from 0 to 10000"),
        ("methods", None, "text"),
        ("methods", ["ga"], "text"),
        ("fresh", "maybe", "true or false"),
        ("unlearn-seeds", "0,x", "whole numbers separated by commas"),
        ("overrides", "{", "a JSON object"),
        ("home", "results", "an absolute path, or empty"),
        *(
            ("evaluator", given, "an address such as http://127.0.0.1:8799, without user and password, or empty")
            for given in ("127.0.0.1:8799", "ftp://h", "http://", "http://u:p@h", "http://h:port", "http://h/?token=t")
        ),
    ],
)
def test_a_refused_value_is_named_with_what_is_allowed(key, given, allowed):
    with pytest.raises(BadInput) as caught:
        GroupSettings.parse({key: given})
    assert (caught.value.key, caught.value.allowed) == (key, allowed)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("given", "near"), [("fedprx", "fedprox"), ("fedadan", "fedadam")])
def test_a_mistyped_choice_gets_the_nearest_one(given, near):
    with pytest.raises(BadInput, match=f"did you mean '{near}'"):
        GroupSettings.parse({"strategy": given})


@pytest.mark.parametrize(("given", "near"), [("local-epoch", "local-epochs"), ("train_seed", "train-seed")])
def test_an_unknown_key_gets_the_nearest_one(given, near):
    with pytest.raises(BadInput, match=f"did you mean '{near}'"):
        GroupSettings.parse({given: 1})


def test_every_key_says_what_it_means_and_takes():
    for key in list(GroupSettings.keys()):
        assert GroupSettings.describe(key), key
        assert GroupSettings.allowed(key), key


def test_the_evaluators_address_ends_without_a_slash_and_identifies_nothing():
    here, there = GroupSettings.parse({}), GroupSettings.parse({"evaluator": "https://h:1/lethe/"})
    assert there.evaluator == "https://h:1/lethe"
    assert group_id(here) == group_id(there)
