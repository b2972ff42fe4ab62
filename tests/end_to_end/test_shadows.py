"""Shadow federations of a whole group: who trains on what, what the cache keeps, and what the attacks find."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Message
from in_process import Killed, read_group, run_group
from test_group import results, small, trained

from clients.site import open_site
from evaluation.curves import read_curves
from flower_apps.settings import GroupSettings
from flower_apps.sites import site_settings
from partitions.errors import BadInput
from partitions.seeds import derive_seed
from strategies.plans import Outcome
from strategies.rounds import RecordedRounds
from unlearning.state import State

SHADOWS = 4
CHANGES: dict[str, Any] = {"shadows": SHADOWS, "methods": "federaser,fedquit", "alpha": 10.0, "holdout": 0.4}


def shadowed(**changes: Any) -> GroupSettings:
    return small(**(CHANGES | changes))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Counter[str]]:
    home, out = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("run")
    return home, out, run_group(shadowed(), home, out).sent


def values(out: Path, method: str, checkpoint: str) -> dict[str, float]:
    table = results(out)
    rows = table[(table["method"] == method) & (table["checkpoint"] == checkpoint)]
    return {name: float(value) if value else np.nan for name, value in zip(rows["metric"], rows["value"], strict=True)}


def test_a_site_resolves_a_shadows_request_on_its_own_records(done: tuple[Path, Path, Any]) -> None:
    settings = site_settings(shadowed(), done[0])
    site, other = (open_site(settings, None, name) for name in ("site-1", "site-0"))
    design = site.challenge("client:site-1", 0, SHADOWS)
    assert design.unlearned
    assert len(design.unlearned) == len(design.holdout)
    retained = set(site.records("retain", "client:site-1", 0))
    counts: Counter[str] = Counter()
    for number in range(SHADOWS):
        request = f"shadow:{number}/{SHADOWS}@client:site-1"
        names = set(site.known("record", site.records("forget", request, 0)))
        assert names == set(design.forget_set(number))
        assert len(names) == len(site.train), "as many as the request has"
        assert set(site.records("retain", request, 0)) == retained
        assert other.records("forget", request, 0).size == 0
        assert len(other.records("both", request, 0)) == len(other.train)
        counts.update(names & set(design.challenged))
    assert set(counts.values()) == {SHADOWS // 2}
    assert set(counts) == set(design.challenged)


def test_sample_requests_challenge_held_out_records_of_the_same_class(done: tuple[Path, Path, Any]) -> None:
    site = open_site(site_settings(shadowed(), done[0]), None, "site-1")
    design = site.challenge("sample:0.3@site-1", 0, SHADOWS)
    strata = {split: site.table(split).set_index("record")["stratum"] for split in ("train", "holdout")}  # type: ignore[arg-type]
    assert Counter(strata["train"][list(design.unlearned)]) == Counter(strata["holdout"][list(design.holdout)])
    assert len(design.unlearned) == len(design.holdout) > 0
    elsewhere = open_site(site_settings(shadowed(), done[0]), None, "site-0")
    assert not elsewhere.challenge("sample:0.3@site-1", 0, SHADOWS).challenged


def test_every_attack_has_a_number_and_gold_a_band(done: tuple[Path, Path, Any]) -> None:
    for method in ("fine-tuning", "federaser", "fedquit"):
        for checkpoint in ("unlearned", "recovered"):
            found = values(done[1], method, checkpoint)
            for attack, area in (("lira", "lira_auc"), ("ulira", "ulira_auc"), ("calibrated", "calibrated_mia_auc")):
                assert 0 <= found[area] <= 1, (method, checkpoint, attack)
                assert found[f"{attack}_auc_band_low"] < found[f"{attack}_auc_band_high"]
    gold = values(done[1], "retrain", "recovered")
    assert 0 <= gold["lira_auc"] <= 1
    assert np.isnan(gold["ulira_auc"])
    assert gold["retrain_gap_l2_over_seed_gap"] == 0


def test_doing_nothing_is_attacked_like_the_original(done: tuple[Path, Path, Any]) -> None:
    original, control = values(done[1], "original", "trained"), values(done[1], "fine-tuning", "unlearned")
    for name in ("lira_auc", "ulira_auc", "calibrated_mia_auc", "calibrated_mean_z", "ulira_leakage"):
        assert original[name] == control[name]


def test_without_shadows_there_is_no_row_of_them(tmp_path: Path, done: tuple[Path, Path, Any]) -> None:
    run_group(shadowed(shadows=0), done[0], tmp_path)
    assert (
        not set(results(tmp_path)["metric"]) & set(values(done[1], "original", "trained")) & {"lira_auc", "ulira_auc"}
    )


def test_curves_have_every_attack_and_reference(done: tuple[Path, Path, Any]) -> None:
    curves = read_curves(done[1])
    mine = curves[(curves["method"] == "fedquit") & (curves["checkpoint"] == "recovered")]
    assert set(mine[mine["kind"] == "roc"]["series"]) == {"population", "lira", "ulira", "calibrated"}
    references = mine[mine["kind"] == "roc-reference"]
    assert set(references["label"]) == {str(number) for number in range(SHADOWS)}
    for _, curve in mine[mine["kind"] == "roc"].groupby("series"):
        assert curve["x"].is_monotonic_increasing
        assert curve["y"].is_monotonic_increasing
        assert (curve["x"].iloc[0], curve["y"].iloc[-1]) == (0, 1)


def test_everything_is_found_again_and_needs_no_federation(done: tuple[Path, Path, Any], tmp_path: Path) -> None:
    home, out, _ = done
    assert trained(run_group(shadowed(), home, tmp_path / "again")) == 0
    read_group(shadowed(), home, tmp_path / "read")
    for name in ("results.csv", "curves.csv"):
        assert (tmp_path / "read" / name).read_bytes() == (out / name).read_bytes()
        assert (tmp_path / "again" / name).read_bytes() == (out / name).read_bytes()


def test_the_rounds_of_shadows_are_let_go(done: tuple[Path, Path, Any]) -> None:
    stages = done[0] / "stages"
    assert len(list((stages / "shadow").glob("*/stage.json"))) == SHADOWS
    assert not list((stages / "shadow").glob("*/history"))


def test_another_method_trains_no_shadow_again_unless_it_replays_rounds(
    done: tuple[Path, Path, Counter[str]], tmp_path: Path
) -> None:
    more = run_group(shadowed(methods="federaser,fedquit,not"), done[0], tmp_path)
    assert not more.sent["train.train"], "only recoveries"
    assert more.sent["train.recover"]


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bits(done: tuple[Path, Path, Counter[str]], tmp_path: Path) -> None:
    total = sum(done[2].values())
    home = tmp_path / "home"
    for part in (0.3, 0.3, 0.1):
        seen = 0

        def kill(message: Message, until: int = int(part * total)) -> None:
            nonlocal seen
            seen += 1
            if seen > until:
                raise Killed

        with pytest.raises(Killed):
            run_group(shadowed(), home, tmp_path / "run", kill)
    run_group(shadowed(), home, tmp_path / "run")
    left, right = (pd.read_csv(out / "results.csv") for out in (tmp_path / "run", done[1]))
    timed = left["metric"].str.contains("seconds|speedup")
    pd.testing.assert_frame_equal(left[~timed], right[~timed])


@pytest.mark.parametrize("shadows", [3, -2, 1000])
def test_shadows_come_in_pairs(shadows: int) -> None:
    with pytest.raises(BadInput, match="shadows"):
        shadowed(shadows=shadows)


def test_a_shadows_request_is_not_a_persons_to_make(tmp_path: Path, done: tuple[Path, Path, Any]) -> None:
    with pytest.raises(BadInput, match="requests"):
        run_group(shadowed(requests="shadow:0/4@client:site-1"), done[0], tmp_path)


def test_a_sequence_says_why_it_has_no_shadows(tmp_path: Path, done: tuple[Path, Path, Any]) -> None:
    settings = shadowed(requests="client:site-1 > client:site-2", methods="not", split_seed=0)
    run_group(settings, done[0], tmp_path)
    table = results(tmp_path)
    last = table[table["request"].str.contains(">") & (table["metric"] == "lira_auc")]
    assert len(last)
    assert set(last["status"]) == {"not_applicable"}
    assert last["reason"].str.contains("sequence").all()


def diverging(monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    """Let the trainings whose label begins so end as diverged, at their first state."""
    real = RecordedRounds.run_rounds

    def run_rounds(self: RecordedRounds, state: State, rounds: int) -> Outcome:
        if self.label.startswith(which):
            return Outcome(state, "diverged", "the loss of step 1 is nan")
        return real(self, state, rounds)

    monkeypatch.setattr(RecordedRounds, "run_rounds", run_rounds)


def fresh(done: tuple[Path, Path, Any], tmp_path: Path) -> Path:
    """Return a home with the data and no stages."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "data").symlink_to(done[0] / "data")
    return tmp_path / "home"


def test_a_shadow_that_diverges_costs_the_attacks_and_nothing_else(
    done: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverging(monkeypatch, "shadow:1/4@")
    run_group(shadowed(methods="not", shadows=4, rounds=1, recovery_rounds=1), fresh(done, tmp_path), tmp_path / "run")
    table = results(tmp_path / "run")
    attacks = table[table["metric"] == "lira_auc"]
    assert set(attacks["status"]) == {"not_applicable"}
    assert attacks["reason"].str.contains("shadow 1 diverged in training: the loss of step 1 is nan").all()
    assert (table[table["metric"] == "forget_accuracy"]["status"] == "ok").all()


def test_a_reference_that_diverges_is_left_out(
    done: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = derive_seed(0, "reference", round_=2)
    diverging(monkeypatch, f"retrain client:site-1, seed {seed}")
    run_group(shadowed(methods="not", rounds=1, recovery_rounds=1), fresh(done, tmp_path), tmp_path / "run")
    table = results(tmp_path / "run")
    assert (table[table["metric"] == "calibrated_auc_band_low"]["n"].astype(float) == SHADOWS - 1).all()


@pytest.mark.slow
def test_another_request_seed_challenges_other_records_whatever_is_cached(
    done: tuple[Path, Path, Any], tmp_path: Path
) -> None:
    settings = shadowed(methods="not", request_seed=7, rounds=1, recovery_rounds=1)
    home = fresh(done, tmp_path)
    run_group(shadowed(methods="not", rounds=1, recovery_rounds=1), home, tmp_path / "before")
    run_group(settings, home, tmp_path / "shared")
    (tmp_path / "alone").mkdir()
    run_group(settings, fresh(done, tmp_path / "alone"), tmp_path / "alone" / "run")
    shared, alone = (pd.read_csv(out / "results.csv") for out in (tmp_path / "shared", tmp_path / "alone" / "run"))
    timed = shared["metric"].str.contains("seconds|speedup")
    pd.testing.assert_frame_equal(shared[~timed], alone[~timed])


@pytest.mark.slow
def test_a_thinned_history_is_another_result_for_the_shadows_too(done: tuple[Path, Path, Any], tmp_path: Path) -> None:
    home = fresh(done, tmp_path)
    settings: dict[str, Any] = {"methods": "federaser", "shadows": 2, "recovery_rounds": 1}
    run_group(shadowed(**settings), home, tmp_path / "whole")
    known = len(list((home / "stages" / "unlearn").iterdir()))
    run_group(shadowed(**settings, history_every=3), home, tmp_path / "thinned")
    added = len(list((home / "stages" / "unlearn").iterdir())) - known
    assert added == 1 + 1 + 2, "the target's own, the control's from another original's key, and each shadow's"


def test_an_imported_original_says_why_it_has_no_shadows(done: tuple[Path, Path, Any], tmp_path: Path) -> None:
    model = next((done[0] / "stages" / "train").glob("*/model.safetensors"))
    run_group(shadowed(methods="not", original=str(model)), done[0], tmp_path)
    table = results(tmp_path)
    assert table[table["metric"] == "ulira_auc"]["reason"].str.contains("imported").all()


def test_what_a_method_draws_at_random_in_a_shadow_is_not_the_targets(done: tuple[Path, Path, Any]) -> None:
    parts = [json.loads(p.read_text())["parts"] for p in (done[0] / "stages" / "unlearn").glob("*/stage.json")]
    seeds = Counter(one["unlearn-seed"] for one in parts if one["method"] == "fedquit")
    assert seeds.pop(0) == 1
    assert len(seeds) == SHADOWS
