"""Methods that run inside the sites, from request to results: NegGrad, Advanced NegGrad, SCRUB, Bad Teacher, labels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from in_process import Killed, run_group
from test_group import SMALL, kill_at, results, trained, weights

from flower_apps.settings import GroupSettings

METHODS = ("neggrad", "advanced-neggrad", "scrub", "bad-teacher", "random-labels")
REQUESTS = {"client:site-1": "client", "class:3": "class", "sample:0.2": "sample"}
QUICK = {"cap": 10, "rounds": 1, "recovery-rounds": 1, "unlearn-epochs": 2, "preset": "lethe"}


def small(**changes: object) -> GroupSettings:
    values = {**SMALL, **QUICK, "requests": ";".join(REQUESTS), "methods": ",".join(METHODS)}
    return GroupSettings.parse({**values, **changes})


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    home, out = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("run")
    run_group(small(), home, out)
    return home, out


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_ends_with_finite_results_or_says_why_not(
    done: tuple[Path, Path], method: str, request_: str
) -> None:
    table = results(done[1])
    ours = table[(table["method"] == method) & (table["request"] == request_)]
    assert set(ours["granularity"]) == {REQUESTS[request_]}
    if (method, request_) == ("advanced-neggrad", "client:site-1"):
        assert set(ours["status"]) == {"not_applicable"} and set(ours["value"]) == {""}
        assert ours["reason"].str.contains("a departing site keeps no record").all()
        return
    unlearned = ours[ours["checkpoint"] == "unlearned"].set_index("metric")
    for metric in ("test_accuracy", "retrain_gap_l2", "param_norm"):
        assert unlearned["status"][metric] in ("ok", "diverged")
        assert np.isfinite(float(unlearned["value"][metric]))
    original = table[(table["method"] == "original") & (table["request"] == request_)].set_index("metric")
    assert unlearned["value"]["param_norm"] != original["value"]["param_norm"], "it has done nothing"


def test_a_client_leaves_by_turns_and_everything_else_takes_one_round(done: tuple[Path, Path]) -> None:
    stages = [json.loads(path.read_text()) for path in (done[0] / "stages" / "unlearn").glob("*/stage.json")]
    ours = {(s["parts"]["method"], bool(s["parts"]["departed"])): (s["rounds"], s["notes"]) for s in stages}
    for method in ("scrub", "bad-teacher", "random-labels"):
        rounds, notes = ours[method, True]
        assert rounds == 4 and any("take turns over 4 rounds: site-1" in note for note in notes)
        assert ours[method, False] == (1, [])
    assert ours["neggrad", True][0] == ours["neggrad", False][0] == ours["advanced-neggrad", False][0] == 1


def test_a_second_run_sends_no_training_message(done: tuple[Path, Path], tmp_path: Path) -> None:
    grid = run_group(small(requests="client:site-1", methods="scrub,neggrad"), done[0], tmp_path)
    assert trained(grid) == 0 and grid.sent["evaluate.scorecard"] == 0


def test_killed_in_a_retain_turn_it_resumes_to_the_same_bits(done: tuple[Path, Path], tmp_path: Path) -> None:
    settings = small(requests="client:site-1", methods="scrub")
    home, out = tmp_path / "home", tmp_path / "run"
    with pytest.raises(Killed):
        run_group(settings, home, out, kill_at("train.scrub", 6))
    grid = run_group(settings, home, out)
    assert grid.sent["train.scrub"] == 2, "the three rounds before stay done, and the last one asks both sites again"
    for stage in ("train", "unlearn", "recover"):
        found = weights(home, stage)
        assert found and found <= weights(done[0], stage)
