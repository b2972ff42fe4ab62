"""The experiments that ship: each can run, and each study of PROTOCOL has a small twin that differs where it says."""

import warnings
from pathlib import Path

import pytest

from flower_apps.experiment import OWN_KEYS
from flower_apps.listing import experiment_row
from flower_apps.manifest import load_manifest
from flower_apps.preflight import check_groups
from flower_apps.strict_yaml import read_yaml_file
from partitions.catalogue import DATASETS
from strategies.registry import METHODS

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "experiments.yaml"
SHIPPED = load_manifest(FILE)
WRITTEN = read_yaml_file(FILE)
STUDIES = [
    "lethe-client",
    "lethe-class",
    "lethe-sample",
    "lethe-heterogeneity",
    "lethe-sole-class",
    "lethe-scale",
    "lethe-several",
    "lethe-sequential",
    "lethe-durability",
    "lethe-backdoor",
    "lethe-membership",
    "lethe-resnet18",
    "supreme",
    "mufac-patients",
]


@pytest.mark.parametrize("name", SHIPPED.experiments)
def test_every_experiment_can_start(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_groups(SHIPPED.groups([name]))


@pytest.mark.parametrize("name", SHIPPED.experiments)
def test_every_experiment_says_what_it_is_for_on_two_lines_of_the_page(name):
    description = SHIPPED.get(name).description
    assert 20 <= len(description) <= 110
    assert f"`{name}`" in (ROOT / "docs" / "manifest.md").read_text(encoding="utf-8")


def test_the_studies_are_those_with_a_twin():
    assert [name.removesuffix("-small") for name in SHIPPED.choose([], ["small"])] == STUDIES
    assert SHIPPED.choose([], ["lethe", "supreme", "mufac"]) == STUDIES


@pytest.mark.parametrize("name", STUDIES)
def test_a_twin_is_its_study_with_the_common_small_settings_and_what_it_states(name):
    twin = WRITTEN[f"{name}-small"]
    assert twin["extends"] == [name, "_small"]
    stated = {key: value for key, value in twin.items() if key not in OWN_KEYS}
    small = {key: value for key, value in WRITTEN["_small"].items() if key not in OWN_KEYS}
    assert SHIPPED.get(f"{name}-small").values == {**SHIPPED.get(name).values, **small, **stated}
    assert not {"lr", "momentum", "local-epochs", "dataset", "precision", "split-seed"} & set(stated)


@pytest.mark.parametrize("name", STUDIES)
def test_a_twin_runs_on_packaged_data(name):
    assert {group.dataset for group in SHIPPED.groups([f"{name}-small"])} == {"lung-ct"}
    assert DATASETS.get("lung-ct").packaged


def test_the_small_client_and_class_studies_share_each_seeds_original_and_have_every_method():
    client, klass = (SHIPPED.groups([f"lethe-{what}-small"]) for what in ("client", "class"))
    assert [group.train_seed for group in client] == [group.train_seed for group in klass] == [0, 1, 2]
    apart = ("name", "methods", "requests")
    for one, other in zip(client, klass, strict=True):
        assert one.model_copy(update=dict.fromkeys(apart, "")) == other.model_copy(update=dict.fromkeys(apart, ""))
    every = set(METHODS.names()) - {"retrain", "fine-tuning"}
    for (group, *_), granularity in ((client, "client"), (klass, "class")):
        assert set(group.method_names()) == {m for m in every if granularity in METHODS.get(m).granularities}
    assert set(client[0].method_names()) | set(klass[0].method_names()) == every


def test_supreme_has_three_seeds_of_each_kind():
    assert experiment_row(SHIPPED, "supreme")["seeds"] == {"train": 3, "unlearn": 3, "evaluate": 3}


def test_what_the_tables_of_the_study_lack_is_left_out():
    row = experiment_row(SHIPPED, "lethe-membership")
    assert row["groups"] == 12
    assert row["cells"] == 12 * 13 - 9 * 2
