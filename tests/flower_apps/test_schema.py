"""The JSON Schema of manifests accepts and refuses what Lethe does, and is the one that lies in the repository."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from flower_apps import cli
from flower_apps.experiment import OWN_KEYS, SETTINGS
from flower_apps.manifest import load_manifest
from flower_apps.preflight import check_groups
from flower_apps.schema import manifest_schema
from flower_apps.strict_yaml import read_yaml, read_yaml_file
from partitions.errors import BadInput
from strategies.registry import METHODS

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = ROOT / "docs" / "experiments.schema.json"


@pytest.fixture(scope="module")
def schema():
    return manifest_schema()


@pytest.fixture(scope="module")
def validator(schema):
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def lethe_takes(text, folder):
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        asked = load_manifest(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check_groups(asked.groups(list(asked.experiments)))
    except BadInput:
        return False
    return True


def test_the_committed_schema_is_what_the_command_prints():
    # in a process of its own: here other tests may have registered models
    command = [sys.executable, "-m", "flower_apps.cli", "schema"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert COMMITTED.read_text(encoding="utf-8") == printed, f"lethe schema --out {COMMITTED.relative_to(ROOT)}"


def test_the_experiments_that_ship_are_valid_and_point_at_it(validator):
    shipped = ROOT / "experiments.yaml"
    assert not list(validator.iter_errors(read_yaml_file(shipped)))
    first = shipped.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# yaml-language-server: $schema={COMMITTED.relative_to(ROOT)}"


def test_every_key_is_there_with_its_meaning(schema):
    properties = schema["$defs"]["experiment"]["properties"]
    assert set(properties) == {*SETTINGS, *OWN_KEYS}
    assert all(one["description"] for one in properties.values())
    assert all("default" in properties[key] for key in SETTINGS)


def test_every_method_is_there_with_every_setting_and_what_it_means(schema):
    methods = {name.removeprefix("method-"): one for name, one in schema["$defs"].items() if name.startswith("method-")}
    assert set(methods) - {"settings"} == set(METHODS.names())
    for name in METHODS.names():
        settings = methods[name]["properties"]
        assert set(settings) == set(METHODS.get(name).Config.keys())
        assert all(one["description"] for one in settings.values())


@pytest.mark.parametrize(
    "setting",
    [
        "rounds: 3",
        "rounds: [3, 4]",
        "lr: 1e-4",
        "momentum: 0",
        "cap: 0",
        "shadows: 4",
        "dataset: [lung-ct, bloodmnist]",
        "split: dirichlet",
        "sole-holder: site-0:3",
        "precision: 32",
        "precision: bf16",
        "precision: auto",
        "device: cpu",
        "channels-last: true",
        "channels-last: yes",
        "history-half: [on, off]",
        "last-batch: drop",
        "preset: safe",
        "preset: original",
        "train-seed: [0, 1, 9223372036854775807]",
        "unlearn-seeds: 3",
        "unlearn-seeds: [0, 1]",
        "evaluate-seeds: '0, 1'",
        "requests: client:patient-1",
        "requests: 'client:patient-1,patient-2 ; class:5 > sample:0.1@patient-2'",
        "requests: ['client:st. mary@north, b', 'class:5']",
        "requests: [class:5, [client:patient-1, 'sample:1e-1']]",
        "methods: [ga]\n  requests: [' sample : .25 ', 'patient:p 1', sample:1, sample:1.0]",
        "methods: [ga, not]",
        "methods: ga, not",
        "methods: []",
        "methods: {ga: {max-norm: 5}, fedquit: }",
        "methods: {pga: {rho: auto}, scrub: {decay-after: [5, 8]}, neggrad: {weight-decay: null}}",
        "methods: {fedquit: {scale-t2: yes}}",
        'overrides: \'{"ga": {"max-norm": 5}}\'',
        "overrides: [{ga: {max-norm: 1}}, {ga: {max-norm: 5}}]",
        "evaluator: ''",
        "evaluator: http://127.0.0.1:8799",
        "timeout: 0.5",
        "description: what for",
        "tags: [a, b]",
        "tags: []",
        "report: true",
        "budget: {hours: 1, disk-gb: 0.5, memory-gb: 16}",
        "exclude: []",
        "alpha: [0.1, 1]\n  exclude: [{alpha: 1}]",
        "alpha: [0.1, 1]\n  exclude: [{alpha: [1], method: [ga], request: client:patient-1}]",
        "extends: []",
        # and what neither takes
        "roundz: 3",
        "rounds: 0",
        "rounds: x",
        "rounds: yes",
        "rounds: true",
        "rounds: 2.5",
        "rounds: ",
        "rounds: []",
        "rounds: {x: 1}",
        "lr: 0",
        "lr: [1, -1]",
        "momentum: 1",
        "holdout: 0.95",
        "shadows: 3",
        "shadows: 258",
        "threads: 257",
        "dataset: lung-cd",
        "dataset: 3",
        "split: naturel",
        "task: klassification",
        "model: cnnn",
        "precision: 31",
        "device: gpu",
        "channels-last: maybe",
        "preset: saef",
        "train-seed: -1",
        "train-seed: 9223372036854775808",
        "unlearn-seeds: -1",
        "unlearn-seeds: [0.5]",
        "unlearn-seeds: []",
        "unlearn-seeds: '0,'",
        "requests: cliant:patient-1",
        "requests: []",
        "requests: ''",
        "requests: ['client:a; client:b']",
        "requests: sample:1.5",
        "requests: sample:0",
        "requests: 'sample:0.1@'",
        "requests: 'sample:0.1@a,b'",
        "requests: 'client:a,,b'",
        "requests: 'client:'",
        "requests: 'class:5 >'",
        "requests: [[class:5, klass:3]]",
        "methods: [gaa]",
        "methods: ga fedquit",
        "methods: ['ga,not']",
        "methods: {gaa: }",
        "methods: {ga: 3}",
        "methods: {ga: {max-nrom: 5}}",
        "methods: {ga: {max-norm: -1}}",
        "methods: {ga: {max-norm: true}}",
        "methods: {ga: {max-norm: [1, 5]}}",
        "methods: {ga: {bn-mode: trian}}",
        "methods: {pga: {rho: automatic}}",
        "methods: {scrub: {decay-after: [0]}}",
        "methods: {puf: {epochs: 1.5}}",
        "overrides: ga",
        "evaluator: here",
        "timeout: 0",
        "workers: 2",
        "jobs: 2",
        "home: /tmp",
        "out: /tmp",
        "name: b",
        "fresh: true",
        "description: 3",
        "tags: a",
        "tags: [3]",
        "tags: [' ']",
        "report: html",
        "report: yes",
        "budget: 3",
        "budget: {hours: 0}",
        "budget: {hours: true}",
        "budget: {disk: 3}",
        "exclude: {method: ga}",
        "exclude: [{}]",
        "exclude: [{method: gaa}]",
        "exclude: [{method: retrain}]",
        "exclude: [{method: }]",
        "exclude: [{methods: ga}]",
        "exclude: [{alhpa: 1}]",
        "exclude: [{alpha: []}]",
        "exclude: [{request: klass:5}]",
        "extends: 3",
        "extends: ''",
        "extends: [b, b]",
    ],
)
def test_the_schema_takes_and_refuses_what_lethe_does(validator, tmp_path, setting):
    text = f"a:\n  {setting}\nb: {{}}\n"
    assert validator.is_valid(read_yaml(text, "f.yaml")) == lethe_takes(text, tmp_path)


@pytest.mark.parametrize("text", ["a: 3", "a: ", "[a]", "3", "{}", "_a: {}", "_a: {}\na: {}", "a: {}"])
def test_so_it_does_of_whole_manifests(validator, tmp_path, text):
    assert validator.is_valid(read_yaml(text, "f.yaml")) == lethe_takes(text, tmp_path)


def test_a_quoted_number_is_the_one_thing_that_only_lethe_takes(validator, tmp_path):
    text = "a: {rounds: '3', lr: '1e-4'}"
    assert lethe_takes(text, tmp_path)
    assert not validator.is_valid(read_yaml(text, "f.yaml"))


def test_the_command_prints_it_or_writes_it(tmp_path, capsys):
    assert cli.main(["schema"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert cli.main(["schema", "--out", str(tmp_path / "s.json")]) == 0
    assert (tmp_path / "s.json").read_text(encoding="utf-8") == printed
    assert cli.main(["schema", "--out", str(tmp_path / "none" / "s.json")]) == 2
