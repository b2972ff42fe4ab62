"""A manifest end to end, in process: which rows three kinds of seeds make, and what an exclusion leaves undone."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from in_process import read_group, run_group

from flower_apps.cells import cells_of
from flower_apps.listing import experiment_row
from flower_apps.manifest import Manifest, load_manifest
from flower_apps.settings import GroupSettings
from partitions.errors import BadInput

MANIFEST = """
_tiny:
  dataset: digits
  cap: 8
  split: iid
  sites: 2
  rounds: 1
  local-epochs: 1
  batch-size: 16
  lr: 0.05
  preset: safe
  unlearn-epochs: 1
  recovery-rounds: 1
  recovery-epochs: 1
  device: cpu
seeds:
  extends: _tiny
  requests: [client:site-1, class:3]
  methods: [ga]
  train-seed: [0, 1]
  unlearn-seeds: [0, 4]
  evaluate-seeds: [0, 5]
  exclude: [{train-seed: 0, method: ga, request: client:site-1}, {train-seed: 1, request: class:3}]
overrides:
  extends: _tiny
  requests: [client:site-1]
  methods: [ga]
  overrides: [{ga: {max-norm: 1}}, {ga: {max-norm: 0.1}}]
"""


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    path = tmp_path_factory.mktemp("manifest") / "experiments.yaml"
    path.write_text(MANIFEST)
    return load_manifest(path)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def results(out: Path) -> pd.DataFrame:
    return pd.read_csv(out / "results.csv", keep_default_na=False)


def written(out: Path) -> list[dict[str, object]]:
    cells: list[dict[str, object]] = json.loads((out / "run.json").read_text())["cells"]
    return cells


@pytest.fixture(scope="module")
def seeds(manifest: Manifest, home: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Counter[str]]:
    out, sent = tmp_path_factory.mktemp("seeds"), Counter[str]()
    for group in manifest.groups(["seeds"]):
        sent += run_group(group, home, out).sent
    return out, sent


def test_the_cells_are_those_of_the_manifest(manifest: Manifest, seeds: tuple[Path, Counter[str]]) -> None:
    expected = {(group.train_seed, *cell) for group in manifest.groups(["seeds"]) for cell in cells_of(group)}
    found = [(c["train_seed"], c["request"], c["method"], c["unlearn_seed"]) for c in written(seeds[0])]
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert len(found) == experiment_row(manifest, "seeds")["cells"] == 2 * (3 + 4) + 2 * 4


def test_each_train_seed_has_its_unlearning_seeds_and_each_of_those_its_evaluation_seeds(
    seeds: tuple[Path, Counter[str]],
) -> None:
    table = results(seeds[0])
    for (train, request), rows in table.groupby(["train_seed", "request"]):
        assert not (train == 1 and request == "class:3")
        kinds = rows.groupby(["method", "checkpoint", "metric"])
        pairs = kinds[["unlearn_seed", "evaluate_seed"]].apply(lambda one: sorted(one.itertuples(index=False)))
        assert all(found == [(j, k) for j in (0, 4) for k in (0, 5)] for found in pairs)


def test_the_unlearning_seed_is_of_what_comes_after_training(seeds: tuple[Path, Counter[str]]) -> None:
    table = results(seeds[0])
    table = table[(table["metric"] == "param_norm") & (table["evaluate_seed"] == 0) & (table["train_seed"] == 0)]
    norms = table[table["request"] == "class:3"].groupby(["method", "checkpoint"])["value"].nunique()
    assert (norms["original", "trained"], norms["retrain", "unlearned"]) == (1, 1)
    assert (norms["ga", "unlearned"], norms["retrain", "recovered"], norms["ga", "recovered"]) == (2, 2, 2)


def test_what_is_excluded_has_no_rows_and_is_not_computed(seeds: tuple[Path, Counter[str]]) -> None:
    table, sent = results(seeds[0]), seeds[1]
    left = table[(table["train_seed"] == 0) & (table["request"] == "client:site-1")]
    assert set(left["method"]) == {"original", "retrain", "fine-tuning"}
    assert set(table[table["train_seed"] == 1]["request"]) == {"client:site-1"}
    assert sent["train.ascend"] == 2 * 2 + 2, (
        "both sites have class:3 for train seed 0, site-1 leaves for 1; two seeds each"
    )


def test_groups_that_differ_in_a_methods_setting_share_the_rest(manifest: Manifest, home: Path, tmp_path: Path) -> None:
    first, second = manifest.groups(["overrides"])
    run_group(first, home, tmp_path)
    sent = run_group(second, home, tmp_path).sent
    assert sent["train"] + sent["train.train"] <= 2, "only the recovery of gradient ascent is left to train"
    cells = written(tmp_path)
    assert Counter(c["method"] for c in cells) == {"original": 1, "retrain": 1, "fine-tuning": 1, "ga": 2}
    assert len(cells) == experiment_row(manifest, "overrides")["cells"]
    kinds = results(tmp_path).groupby(["cell", "checkpoint", "metric", "evaluate_seed"]).size()
    assert (kinds == 1).all()


def test_a_group_that_flower_is_given_alone_is_checked_too(home: Path, tmp_path: Path) -> None:
    flat = {"dataset": "digits", "cap": 8, "split": "iid", "sites": 2, "requests": "class:3", "methods": "ga"}
    group = GroupSettings.parse({**flat, "exclude": '[{"method": "gaa"}]'})
    with pytest.raises(BadInput, match="did you mean 'ga'"):
        read_group(group, home, tmp_path)
