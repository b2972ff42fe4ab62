"""A group that searches: trials are cached stages, the choice sees training records only, a killed search goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from flwr.app import Message
from in_process import Killed, read_group, run_group

from evaluation.evidence import Evidence
from evaluation.runs import Run
from evaluation.trials import FILE, read_trials, write_trials
from flower_apps import searching
from flower_apps.rehearsal import rehearse
from flower_apps.reproduce import choose, reproduce
from flower_apps.settings import GroupSettings

SEARCH = {"ga": {"max-norm": [0.5, 5, 2]}, "fedquit": {"lr": {"low": 0.001, "high": 0.5, "log": True}}}
SMALL = {
    "name": "small",
    "dataset": "digits",
    "cap": 12,
    "split": "dirichlet",
    "sites": 3,
    "alpha": 1.0,
    "rounds": 1,
    "local-epochs": 1,
    "batch-size": 16,
    "lr": 0.05,
    "requests": "client:site-1",
    "methods": "ga,fedquit",
    "preset": "safe",
    "unlearn-epochs": 1,
    "recovery-rounds": 1,
    "recovery-epochs": 1,
    "device": "cpu",
    "search": json.dumps(SEARCH),
    "search-sampler": "tpe",
    "search-trials": 3,
}


def small(**changes: object) -> GroupSettings:
    return GroupSettings.parse({**SMALL, **{key.replace("_", "-"): value for key, value in changes.items()}})


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    home, out = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("run")
    run_group(small(), home, out)
    return home, out


def test_every_trial_is_in_the_results_and_one_of_each_method_is_chosen(done: tuple[Path, Path]) -> None:
    trials = Run(done[1]).trials
    assert {name: list(rows["trial"]) for name, rows in trials.groupby("method")} == {
        "ga": [0, 1, 2, 3],
        "fedquit": [0, 1, 2, 3],
    }
    for _, rows in trials.groupby("method"):
        tried = rows[rows["trial"] > 0]
        assert list(tried["chosen"]) == [trial == tried["score"].idxmax() for trial in tried.index]
        assert not rows["chosen"].iloc[0]
        assert list(tried["score"]) == pytest.approx(list(tried["retain_train"] - tried["forget_train"]))
    assert trials["status"].eq("ok").all() and trials[["forget", "gold_forget", "kl_forget"]].notna().all(axis=None)


def test_the_chosen_settings_have_a_cell_of_their_own_beside_the_preset_s(done: tuple[Path, Path]) -> None:
    run = Run(done[1])
    cells = {(c["method"], c["preset"]): c for c in run.manifest["cells"]}
    assert len({cell["cell"] for cell in cells.values()}) == len(cells)
    chosen = run.trials[run.trials["chosen"]].set_index("method")
    for method, key in (("ga", "max-norm"), ("fedquit", "lr")):
        values = json.loads(chosen.loc[method, "values"])
        cell = cells[method, "searched"]
        assert cell["config"][key.replace("-", "_")] == values[key]
        assert cell["search"]["values"] == values
        assert cell["search"]["trial"] == chosen.loc[method, "trial"]
        assert "search" not in cells[method, "safe"]
    scored = run.results.set_index(["method", "preset", "checkpoint", "metric"])["value"]
    for method in ("ga", "fedquit"):
        for split in ("forget_train", "retain_train"):
            assert scored[method, "searched", "recovered", f"{split}_accuracy"] == chosen.loc[method, split]
        assert scored[method, "searched", "recovered", "forget_accuracy"] == chosen.loc[method, "forget"]


@pytest.mark.parametrize("preset", ["searched", pytest.param("safe", marks=pytest.mark.slow)])
def test_either_cell_of_a_searched_method_is_reproduced_without_the_search(
    done: tuple[Path, Path], tmp_path: Path, preset: str
) -> None:
    chosen = choose("", str(done[1]), ["method=ga", f"preset={preset}"], tmp_path)

    def run(settings: GroupSettings) -> None:
        run_group(settings, Path(settings.home), Path(settings.out))

    found = reproduce(chosen, tmp_path, run)
    assert found.equal, [one for one in found.compared if one.judgement not in ("identical", "clock")]
    assert len(found.compared) == len(chosen.rows) > 50
    assert not (Path(found.again) / FILE).exists(), "no trial was made"


def test_one_search_serves_every_unlearning_seed_and_makes_cells_of_its_own(
    done: tuple[Path, Path], tmp_path: Path
) -> None:
    home, _ = done
    given = {"methods": "ga", "search": '{"ga": {"max-norm": [5]}}', "search_sampler": "grid"}
    grid = run_group(small(**given, unlearn_seeds="0,1"), home, tmp_path)
    assert grid.sent["train.ascend"] <= 1, "the value is the preset's own: one model a seed serves both cells"
    run = Run(tmp_path)
    assert set(run.trials["unlearn_seed"]) == {0}
    cells = [cell for cell in run.manifest["cells"] if cell["method"] == "ga"]
    assert len({cell["cell"] for cell in cells}) == 4 and len({json.dumps(cell["config"]) for cell in cells}) == 1
    assert [cell["search"]["unlearn_seed"] for cell in cells if "search" in cell] == [0, 0]


def test_a_repeated_search_trains_nothing_and_gives_the_same_files(done: tuple[Path, Path], tmp_path: Path) -> None:
    home, out = done
    read_group(small(), home, tmp_path)
    for name in (FILE, "results.csv"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes()
    write_trials(tmp_path, read_trials(tmp_path).to_dict("records"))
    assert (tmp_path / FILE).read_bytes() == (out / FILE).read_bytes()


def test_a_search_killed_after_two_trials_goes_on_to_the_same_choice(done: tuple[Path, Path], tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "run"
    only = small(methods="fedquit", search=json.dumps({"fedquit": SEARCH["fedquit"]}))

    def before(_: Message) -> None:
        if (read_trials(out)["trial"] == 2).any():
            raise Killed

    with pytest.raises(Killed):
        run_group(only, home, out, before)
    assert list(read_trials(out)["trial"]) == [0, 1, 2]
    grid = run_group(only, home, out)
    assert grid.sent["train.train"] == 0
    assert grid.sent["train.distil"] == 1, "one trial was left"
    wanted = Run(done[1]).trials.query("method == 'fedquit'").reset_index(drop=True)
    apart = ["search", "seconds"]
    pd.testing.assert_frame_equal(Run(out).trials.drop(columns=apart), wanted.drop(columns=apart))


def test_held_out_records_never_change_the_choice(
    done: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = searching.Searching._judge

    def upside_down(self: searching.Searching, seen: Evidence) -> searching.Judgement:
        for model in (seen.model, seen.gold):
            assert model is not None and model.scorecard is not None
            held = model.scorecard["split"] != "train"
            model.scorecard.loc[held, "metric"] = 1 - model.scorecard.loc[held, "metric"]
        return judged(self, seen)

    monkeypatch.setattr(searching.Searching, "_judge", upside_down)
    read_group(small(), done[0], tmp_path)
    found, wanted = Run(tmp_path).trials, Run(done[1]).trials
    same = ["method", "trial", "values", "score", "retain_train", "forget_train", "chosen"]
    pd.testing.assert_frame_equal(found[same], wanted[same])
    assert not found["retain"].equals(wanted["retain"]), "the held-out scores did change"


def test_a_diverged_trial_is_a_failed_one_and_never_chosen(done: tuple[Path, Path], tmp_path: Path) -> None:
    search = '{"fedquit": {"lr": [1e30, 0.05]}}'
    run_group(small(methods="fedquit", search=search, search_sampler="grid"), done[0], tmp_path)
    trials = Run(tmp_path).trials.set_index("trial")
    assert trials.loc[1, "status"] == "diverged" and trials.loc[1, "reason"] and not trials.loc[1, "chosen"]
    assert pd.isna(trials.loc[1, "score"])
    assert trials.loc[2, "chosen"]


def test_a_plan_walks_past_a_trial_that_is_known_to_have_diverged(done: tuple[Path, Path], tmp_path: Path) -> None:
    search = '{"fedquit": {"lr": [1e30, 0.05]}}'
    settings = small(methods="fedquit", search=search, search_sampler="grid", home=str(done[0]))
    run_group(settings, done[0], tmp_path)
    assert "diverged" in set(read_trials(tmp_path)["status"])
    found = rehearse(settings, done[0])
    assert all(stage.cached for stage in found.stages) and not found.fails


def test_when_every_trial_fails_the_results_say_so(done: tuple[Path, Path], tmp_path: Path) -> None:
    search = '{"fedquit": {"lr": [1e30]}}'
    run_group(small(methods="fedquit", search=search, search_sampler="grid"), done[0], tmp_path)
    rows = Run(tmp_path).results.query("preset == 'searched'")
    assert set(rows["status"]) == {"diverged"}
    assert rows["reason"].str.startswith("all 1 trials of its search failed, the first: ").all()
    assert set(Run(tmp_path).results.query("method == 'fedquit' and preset == 'safe'")["status"]) != {"diverged"}


@pytest.mark.parametrize("rule", ["retain-forget", "oracle"])
def test_the_model_before_recovery_can_be_judged_and_needs_no_recovery(
    done: tuple[Path, Path], tmp_path: Path, rule: str
) -> None:
    changed = small(
        methods="ga", search='{"ga": {"max-norm": [0.5, 3, 0.1]}}', search_sampler="grid",
        search_checkpoint="unlearned", search_rule=rule,
    )  # fmt: skip
    grid = run_group(changed, done[0], tmp_path)
    run = Run(tmp_path)
    tried = run.trials.query("trial > 0")
    assert set(run.trials["checkpoint"]) == {"unlearned"}
    assert grid.sent["train.recover"] <= 2, "only the chosen one is recovered, at two sites"
    scored = run.results.set_index(["method", "preset", "checkpoint", "metric"])["value"]
    chosen = tried[tried["chosen"]].iloc[0]
    assert scored["ga", "searched", "unlearned", "forget_train_accuracy"] == chosen["forget_train"]
    if rule == "oracle":
        gold = {side: scored["retrain", "", "unlearned", f"{side}_train_accuracy"] for side in ("retain", "forget")}
        away = abs(tried["retain_train"] - gold["retain"]) + abs(tried["forget_train"] - gold["forget"])
        assert list(tried["score"]) == pytest.approx(list(-away))


@pytest.mark.slow
def test_in_a_sequence_each_search_goes_on_from_the_model_that_the_last_one_chose(
    done: tuple[Path, Path], tmp_path: Path
) -> None:
    changed = small(
        requests="client:site-1>class:3", methods="ga", search='{"ga": {"max-norm": [0.5, 2]}}',
        search_sampler="grid",
    )  # fmt: skip
    run_group(changed, done[0], tmp_path)
    trials = Run(tmp_path).trials
    assert trials.groupby("request")["chosen"].sum().to_dict() == {"client:site-1": 1, "client:site-1>class:3": 1}
    cells = {(c["request"], c["preset"]): c for c in Run(tmp_path).manifest["cells"] if c["method"] == "ga"}

    def record(request: str, checkpoint: str) -> dict[str, object]:
        path = Path(cells[request, "searched"]["checkpoints"][checkpoint])
        return dict(json.loads((path.parent / "stage.json").read_text()))

    first, second = record("client:site-1", "recovered"), record("client:site-1>class:3", "unlearned")
    assert second["parts"]["start"] == first["key"]  # type: ignore[index]

    def again(settings: GroupSettings) -> None:
        run_group(settings, Path(settings.home), Path(settings.out))

    chosen = choose("", str(tmp_path), ["request=client:site-1>class:3", "method=ga", "preset=searched"], done[0])
    assert reproduce(chosen, tmp_path / "home", again).equal
