"""Facts about a whole group of cells: cache, resume, requests, divergence. In process, without Flower's transport."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from commands import untimed
from flwr.app import Message
from in_process import InProcessGrid, Killed, kill_at, read_group, run_group

from flower_apps.settings import GroupSettings
from flower_apps.sites import LocalSites
from flower_apps.workshop import MissingStage
from partitions.errors import BadInput, RunFailed
from strategies.history import History

SMALL = {
    "name": "small",
    "dataset": "digits",
    "cap": 30,
    "split": "dirichlet",
    "sites": 3,
    "alpha": 1.0,
    "rounds": 3,
    "local-epochs": 1,
    "batch-size": 16,
    "lr": 0.05,
    "requests": "client:site-1",
    "methods": "ga,federaser,fedquit",
    "preset": "safe",
    "unlearn-epochs": 1,
    "recovery-rounds": 2,
    "recovery-epochs": 1,
    "device": "cpu",
}


def small(**changes: object) -> GroupSettings:
    return GroupSettings.parse({**SMALL, **{key.replace("_", "-"): value for key, value in changes.items()}})


def results(out: Path) -> pd.DataFrame:
    return pd.read_csv(out / "results.csv", keep_default_na=False)


def trained(grid: InProcessGrid) -> int:
    return sum(count for kind, count in grid.sent.items() if kind.startswith("train."))


def weights(home: Path, kind: str) -> set[str]:
    return {json.loads(p.read_text())["sha256"] for p in (home / "stages" / kind).glob("*/stage.json")}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    home, out = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("run")
    run_group(small(), home, out)
    return home, out


def test_every_model_is_scored_at_every_checkpoint(done: tuple[Path, Path]) -> None:
    table = results(done[1])
    found = set(zip(table["method"], table["checkpoint"], strict=True))
    arms = ("retrain", "fine-tuning", "ga", "federaser", "fedquit")
    assert found == {("original", "trained")} | {(arm, c) for arm in arms for c in ("unlearned", "recovered")}
    counts = table.groupby(["method", "checkpoint"])["metric"].nunique()
    assert counts.nunique() == 1


def test_gold_is_at_no_distance_from_itself_and_the_original_is(done: tuple[Path, Path]) -> None:
    table = results(done[1]).set_index(["method", "checkpoint", "metric"])["value"]
    assert float(table["retrain", "unlearned", "retrain_gap_l2"]) == 0.0
    assert float(table["retrain", "recovered", "retrain_gap_l2"]) == 0.0
    assert float(table["original", "trained", "retrain_gap_l2"]) > 0.0


def test_the_control_arm_starts_at_the_original(done: tuple[Path, Path]) -> None:
    table = results(done[1]).set_index(["method", "checkpoint", "metric"])["value"]
    for metric in ("forget_accuracy", "retain_accuracy", "param_norm"):
        assert table["fine-tuning", "unlearned", metric] == table["original", "trained", metric]


def test_a_second_run_sends_no_training_message_and_gives_the_same_results(
    done: tuple[Path, Path], tmp_path: Path
) -> None:
    home, out = done
    grid = run_group(small(), home, tmp_path / "again")
    assert trained(grid) == 0
    assert grid.sent["evaluate.scorecard"] == 0
    assert (tmp_path / "again" / "results.csv").read_bytes() == (out / "results.csv").read_bytes()


def test_a_cached_group_needs_no_federation(done: tuple[Path, Path], tmp_path: Path) -> None:
    home, out = done
    read_group(small(), home, tmp_path / "read")
    assert (tmp_path / "read" / "results.csv").read_bytes() == (out / "results.csv").read_bytes()
    with pytest.raises(MissingStage):
        read_group(small(lr=0.04), home, tmp_path / "missing")


def test_where_and_how_fast_it_runs_is_not_part_of_a_result(done: tuple[Path, Path], tmp_path: Path) -> None:
    assert trained(run_group(small(timeout=99.0, keep_histories=True), done[0], tmp_path)) == 0


@pytest.mark.parametrize(
    ("changes", "ops"),
    [
        ({"overrides": '{"federaser": {"interval": 1}}'}, {"train.recover"}),
        ({"overrides": '{"ga": {"max-norm": 4.0}}'}, {"train.ascend", "train.recover"}),
        ({"recovery_rounds": 1}, {"train.recover"}),
        ({"methods": "ga"}, set()),
    ],
)
def test_a_change_reruns_what_it_touches_and_no_more(
    done: tuple[Path, Path], tmp_path: Path, changes: dict[str, object], ops: set[str]
) -> None:
    before = weights(done[0], "train"), weights(done[0], "retrain")
    grid = run_group(small(**changes), done[0], tmp_path)
    assert {kind for kind in grid.sent if kind.startswith("train.")} == ops
    assert (weights(done[0], "train"), weights(done[0], "retrain")) == before


@pytest.mark.parametrize(
    ("kind", "count", "what"),
    [
        ("train.train", 5, "in the second round of training, after one site's reply"),
        ("train.ascend", 1, "in the unlearning step"),
        ("train.recover", 4, "in recovery"),
        ("evaluate.scorecard", 5, "in scoring"),
    ],
)
def test_a_killed_run_resumes_to_the_same_bits(
    done: tuple[Path, Path], tmp_path: Path, kind: str, count: int, what: str
) -> None:
    home, out = tmp_path / "home", tmp_path / "run"
    with pytest.raises(Killed):
        run_group(small(), home, out, kill_at(kind, count))
    grid = run_group(small(), home, out)
    for stage in ("train", "retrain", "unlearn", "recover"):
        found = weights(home, stage)
        assert found and found <= weights(done[0], stage), what
    if kind == "train.train":
        assert grid.sent["train.train"] < 3 * 3 + 3 * 2 + 3 * 2, "the first round was computed again"
    pd.testing.assert_frame_equal(untimed(out / "results.csv"), untimed(done[1] / "results.csv"))
    assert (out / "curves.csv").read_bytes() == (done[1] / "curves.csv").read_bytes()


def test_a_thinned_history_is_smaller_and_methods_replay_what_is_left(tmp_path: Path) -> None:
    settings = small(history_every=2, history_half=True, methods="federaser")
    run_group(settings, tmp_path / "home", tmp_path / "run")
    (folder,) = (tmp_path / "home" / "stages" / "train").glob("*")
    thinned = History(folder / "history")
    assert [thinned.has_updates(round_) for round_ in thinned.rounds] == [True, False, True]
    sizes = [thinned.path(round_).stat().st_size for round_ in thinned.rounds]
    assert sizes[1] < sizes[0] * 2 / 3
    assert thinned.after(3).sha256() == json.loads((folder / "stage.json").read_text())["sha256"]
    table = results(tmp_path / "run")
    assert "failed" not in set(table.loc[table["method"] == "federaser", "status"])
    assert trained(run_group(settings, tmp_path / "home", tmp_path / "again")) == 0


def test_a_diverged_method_is_a_result_and_gets_no_recovery(done: tuple[Path, Path], tmp_path: Path) -> None:
    settings = small(methods="ga", overrides='{"ga": {"max-norm": 0}}', unlearn_epochs=30)
    run_group(settings, done[0], tmp_path)
    table = results(tmp_path)
    ours = table[table["method"] == "ga"]
    assert set(ours["status"]) == {"diverged"}
    accuracy = ours[ours["metric"] == "test_accuracy"].set_index("checkpoint")["value"]
    assert accuracy["unlearned"] != ""
    assert accuracy["recovered"] == ""


def test_a_training_that_diverges_ends_the_run_with_its_reason(done: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="diverged"):
        run_group(small(lr=1e30, rounds=1), done[0], tmp_path)


def test_requests_one_after_the_other_start_from_the_recovered_model(done: tuple[Path, Path], tmp_path: Path) -> None:
    settings = small(requests="client:site-1 > class:3", methods="ga")
    grid = run_group(settings, done[0], tmp_path)
    table = results(tmp_path)
    assert set(table["request"]) == {"client:site-1", "client:site-1>class:3"}
    assert set(table["granularity"]) == {"client", "class"}
    second = table[(table["request"] == "client:site-1>class:3") & (table["checkpoint"] == "recovered")]
    again = second[second["metric"].str.startswith("step1_")].set_index(["method", "metric"])
    assert again.loc[("ga", "step1_forget_accuracy"), "status"] == "ok"
    assert again.loc[("retrain", "step1_forget_train_accuracy"), "n"] != ""
    assert not [name for _, name in again.index if "retain" in name or "seconds" in name]
    meant = LocalSites(settings, done[0]).select("client:site-1>class:3", 0)
    holders = {site for site, found in meant.items() if found["num-forget"]}
    assert "site-1" not in holders
    assert grid.sent["train.ascend"] == len(holders) > 0, "the first request's unlearning came from the cache"


def test_a_method_that_cannot_do_a_request_says_so_and_the_others_go_on(
    done: tuple[Path, Path], tmp_path: Path
) -> None:
    run_group(small(requests="client:site-1;class:3;class:3>client:site-1", methods="federaser"), done[0], tmp_path)
    table = results(tmp_path)
    ours = table[(table["method"] == "federaser") & (table["metric"] == "test_accuracy")]
    found = dict(list(ours.groupby("request")))
    assert set(found["client:site-1"]["status"]) == {"ok"}
    for request in ("class:3", "class:3>client:site-1"):
        assert set(found[request]["status"]) == {"not_applicable"} and set(found[request]["value"]) == {""}
    assert found["class:3"]["reason"].str.contains("class request").all()
    assert found["class:3>client:site-1"]["reason"].str.contains("earlier request").all()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"requests": "client:site-9"}, "site-"),
        ({"requests": "class:77", "methods": "ga"}, "77"),
        ({"requests": "client:site-0,site-1,site-2"}, "nothing would be left"),
        ({"methods": "gaa"}, "ga"),
        ({"overrides": '{"ga": {"maxnorm": 1}}'}, "max-norm"),
        ({"overrides": '{"ga": {"max-norm": -1}}'}, "max-norm"),
        ({"model": "cnm"}, "cnn"),
        ({"requests": "class:3", "methods": "federaser"}, "federaser"),
    ],
)
def test_a_mistake_is_named_before_anything_is_trained(
    done: tuple[Path, Path], tmp_path: Path, changes: dict[str, object], named: str
) -> None:
    sent: list[Message] = []
    with pytest.raises(BadInput, match=named):
        run_group(small(**changes), done[0], tmp_path, sent.append)
    assert not [message for message in sent if message.metadata.message_type.startswith("train.")]


def test_weights_of_ones_own_can_be_the_original(done: tuple[Path, Path], tmp_path: Path) -> None:
    cells = json.loads((done[1] / "run.json").read_text())["cells"]
    path = next(cell["checkpoints"]["trained"] for cell in cells if cell["method"] == "original")
    grid = run_group(small(original=path, methods="ga"), done[0], tmp_path / "run")
    assert grid.sent["train.train"] == 0, "the retrained model came from the cache"
    theirs = results(tmp_path / "run").set_index(["method", "checkpoint", "metric"])["value"]
    ours = results(done[1]).set_index(["method", "checkpoint", "metric"])["value"]
    assert theirs["original", "trained", "test_accuracy"] == ours["original", "trained", "test_accuracy"]
    with pytest.raises(BadInput, match="history"):
        run_group(small(original=path, methods="federaser"), done[0], tmp_path / "refused")


def test_weights_that_do_not_fit_are_refused(done: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "other.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(BadInput, match="original"):
        run_group(small(original=str(tmp_path / "other.safetensors")), done[0], tmp_path / "run")
