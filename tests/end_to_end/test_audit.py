"""The shipped experiment whose original learns by heart: the attacks find it, and nothing in the retrained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from in_process import run_group

from flower_apps.manifest import load_manifest
from partitions.catalogue import DATASETS

MANIFEST = Path(__file__).resolve().parents[2] / "experiments.yaml"


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> Any:
    home, out = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("run")
    (group,) = load_manifest(MANIFEST).groups(["audit-overfit"])
    DATASETS.get(group.dataset).fetch(home, print)
    run_group(group, home, out)
    table = pd.read_csv(out / "results.csv")
    return table.set_index(["method", "checkpoint", "metric"])["value"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_original_that_learned_by_heart_is_detected(values: Any) -> None:
    original = values["original", "trained"]
    assert original["forget_train_accuracy"] - original["forget_accuracy"] > 0.15, "it did learn by heart"
    assert original["lira_auc"] > 0.7
    for attack in ("lira", "ulira", "calibrated"):
        assert original[f"{attack}_distinguishable"] == 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_retrained_model_is_inside_its_own_band_which_holds_a_half(values: Any) -> None:
    for checkpoint in ("unlearned", "recovered"):
        gold = values["retrain", checkpoint]
        assert gold["lira_distinguishable"] == gold["calibrated_distinguishable"] == 0
        assert gold["calibrated_auc_band_low"] < 0.5 < gold["calibrated_auc_band_high"]
        assert abs(gold["calibrated_mia_auc"] - 0.5) < 0.15


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_to_do_nothing_is_to_be_attacked_like_the_original(values: Any) -> None:
    original, nothing = values["original", "trained"], values["fine-tuning", "unlearned"]
    for name in ("lira_auc", "ulira_auc", "calibrated_mia_auc", "population_mia_auc"):
        assert abs(original[name] - nothing[name]) <= 0.02
