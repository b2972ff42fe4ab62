"""Facts about computing a kept row again: on one machine it is the same to the bit, and a changed one is noticed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from small_run import SmallRun, execute
from typer.testing import CliRunner

from evaluation.catalogue import is_timed
from evaluation.results import read_results
from flower_apps import reproduce as reproduction
from flower_apps import reproduce_run
from flower_apps.cells import cells_of
from flower_apps.cli import app, main
from flower_apps.depot import depot_url
from flower_apps.preflight import check_groups
from flower_apps.reproduce import (
    Chosen,
    Compared,
    Reproduction,
    choose,
    compare,
    comparison_table,
    reproduce,
    settings_of,
)
from flower_apps.runs import KEPT
from flower_apps.settings import GroupSettings
from partitions.errors import BadInput, RunFailed


@pytest.fixture(scope="module")
def again(small_run: SmallRun, tmp_path_factory: pytest.TempPathFactory) -> tuple[Chosen, Path, list[GroupSettings]]:
    """The cell of one method, the folder it was computed in again, and what was asked for."""
    home = tmp_path_factory.mktemp("again-home")
    chosen = choose("", str(small_run.path), ["method=ga"], home)
    asked: list[GroupSettings] = []

    def run(settings: GroupSettings) -> None:
        asked.append(settings)
        execute(settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LETHE_DEPOT", str(home.with_name("depot")))
        found = reproduce(chosen, home, run)
    assert found.equal, found.verdict
    assert not (home.with_name("depot") / "stages").exists(), "the depot is for the data alone"
    return chosen, Path(found.again), asked


@pytest.fixture
def doctored(small_run: SmallRun, tmp_path: Path) -> Callable[..., Path]:
    """Return what copies the run and changes one value of a cell."""

    def change(method: str = "ga", metric: str = "test_accuracy", column: str = "value", by: float = 2.0) -> Path:
        folder = Path(shutil.copytree(small_run.path, tmp_path / "doctored"))
        table = pd.read_csv(folder / "results.csv", dtype=str, keep_default_na=False)
        rows = (table["method"] == method) & (table["metric"] == metric) & (table["checkpoint"] == "recovered")
        assert rows.sum() >= 1
        table.loc[rows, column] = [f"{float(old) + by:g}" for old in table.loc[rows, column]]
        table.to_csv(folder / "results.csv", index=False, lineterminator="\n")
        return folder

    return change


def changed(cell: Mapping[str, Any], **settings: object) -> dict[str, Any]:
    """Return the record of a cell as if its run had had other settings."""
    return {**cell, "settings": {**cell["settings"], **{key.replace("_", "-"): one for key, one in settings.items()}}}


def cell_of(run: SmallRun, method: str) -> str:
    return str(read_results(run.path).query("method == @method")["cell"].iloc[0])


# ---------------------------------------------------------------------- computing again
def test_a_cell_computed_from_nothing_is_the_same_to_the_bit(again: tuple[Chosen, Path, list[GroupSettings]]) -> None:
    chosen, folder, _ = again
    found = compare(chosen, folder)
    assert found.equal
    assert len(found.compared) == len(chosen.rows) > 100
    assert {one.judgement for one in found.compared} == {"identical", "clock"}
    assert found.verdict.startswith(f"reproduced: ga client:site-1 ({chosen.cell['cell']}): ")
    assert {what for what, _, _ in found.changes} <= {"commit"}  # somebody may commit while the tests run


def test_only_that_cell_is_computed_and_nothing_of_the_old_result_is_used(
    small_run: SmallRun, again: tuple[Chosen, Path, list[GroupSettings]]
) -> None:
    chosen, folder, (asked,) = again
    kept = GroupSettings.parse(chosen.cell["settings"])
    assert asked.methods == "ga"
    assert asked.requests == "client:site-1"
    assert asked.unlearn_seeds == "0"
    placed = {"home", "out", "methods", "depot"}
    assert {k: v for k, v in asked.to_run_config().items() if k not in placed} == {
        k: v for k, v in kept.to_run_config().items() if k not in placed
    }
    assert Path(asked.home) == folder.parent != small_run.home
    assert not (folder.parent / "stages").exists()  # they were made, and are gone
    stages = (folder / "stages.txt").read_text()
    assert "train/" in stages and "retrain/" in stages


def test_settings_of_a_method_go_with_it_and_those_of_others_do_not(small_run: SmallRun, tmp_path: Path) -> None:
    chosen = choose("", str(small_run.path), ["method=ga"], small_run.home)
    settings = {**chosen.cell["settings"], "overrides": '{"ga": {"max-norm": 4.0}, "fedquit": {"max-norm": 3.0}}'}
    changed = Chosen(chosen.run, {**chosen.cell, "settings": settings}, chosen.rows)
    assert json.loads(settings_of(changed, tmp_path, tmp_path).overrides) == {"ga": {"max-norm": 4.0}}
    gold = Chosen(chosen.run, {**chosen.cell, "settings": settings, "method": "retrain"}, chosen.rows)
    assert settings_of(gold, tmp_path, tmp_path).methods == "fine-tuning"
    assert settings_of(gold, tmp_path, tmp_path).overrides == ""


def test_a_reproduction_has_no_depot_but_the_run_s_may_have_the_data(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = choose("", str(small_run.path), ["method=ga"], tmp_path)
    shared = Chosen(chosen.run, changed(chosen.cell, depot="/mnt/depot"), chosen.rows)
    did: list[tuple[object, ...]] = []
    monkeypatch.setattr(reproduction, "load_data", lambda *asked: did.append(asked))

    def run(settings: GroupSettings) -> None:
        did.append((settings.depot, depot_url(settings), (Path(settings.home) / KEPT).exists()))
        shutil.copytree(small_run.path, settings.out, dirs_exist_ok=True)

    monkeypatch.setenv("LETHE_DEPOT", "/mnt/other")
    reproduce(shared, tmp_path, run, keep=True)
    assert did == [("digits", tmp_path, 20, "/mnt/depot"), ("none", "", True)]
    reproduce(chosen, tmp_path, run)
    assert did[2:] == [("digits", tmp_path, 20, "/mnt/other"), ("none", "", False)]


EXCLUDE = [{"method": "fedquit", "request": "class:3"}, {"request": "client:site-2"}]


@pytest.mark.parametrize(
    ("request_", "method", "given"),
    [
        ("client:site-1", "ga", {"exclude": json.dumps(EXCLUDE)}),
        ("client:site-1", "fine-tuning", {"exclude": json.dumps(EXCLUDE)}),
        ("client:site-1", "retrain", {"exclude": json.dumps(EXCLUDE[1:]), "search": '{"ga": {"max-norm": [1, 5]}}'}),
        ("client:site-1", "fedquit", {"search": '{"ga": {"max-norm": [1, 5]}}'}),
        ("client:site-1", "ga", {"search": '{"ga": {"max-norm": [1, 5]}, "fedquit": {"lr": [0.1]}}'}),
        ("class:3>client:site-2", "ga", {"exclude": '[{"method": "fedquit", "request": "class:3>client:site-2"}]'}),
        ("class:3", "ga", {"exclude": '[{"method": "fedquit", "request": "class:3>client:site-2"}]'}),
    ],
)
def test_a_cell_of_any_group_is_a_group_of_its_own(
    small_run: SmallRun, tmp_path: Path, request_: str, method: str, given: dict[str, str]
) -> None:
    chosen = choose("", str(small_run.path), ["method=ga"], tmp_path)
    requests = "client:site-1;client:site-2;class:3;class:3>client:site-2"
    cell = changed(chosen.cell, requests=requests, unlearn_seeds="0,4", **given)
    check_groups([GroupSettings.parse(cell["settings"])])
    cell |= {"request": request_, "method": method, "unlearn_seed": 4, "preset": "safe"}
    asked = settings_of(Chosen(chosen.run, cell, chosen.rows), tmp_path, tmp_path)
    check_groups([asked])
    left = [(name, seed) for request, name, seed in cells_of(asked) if request == request_]
    assert left.count((method, 4)) == 1
    assert {seed for _, seed in left} == {4}
    assert {name for name, _ in left} == {"original", "retrain", "fine-tuning", method}
    assert asked.requests == request_
    assert (asked.exclude, asked.search, asked.overrides) == ("", "", "")


@pytest.mark.parametrize(
    ("given", "more", "search", "seeds", "overrides"),
    [
        ({}, {"search": {"trial": 2}}, {}, "1", {"ga": {"max-norm": 2.5, "recovery-max-norm": 0.0}}),
        ({}, {}, {"ga": {"max-norm": [1, 5]}}, "0,1", {"ga": {"max-norm": 4.0}}),
        ({"shadows": 2}, {"search": {"trial": 2}}, {"ga": {"max-norm": [1, 5]}}, "0,1", {"ga": {"max-norm": 4.0}}),
        (
            {},
            {"search": {}, "request": "class:3>class:4"},
            {"ga": {"max-norm": [1, 5]}},
            "0,1",
            {"ga": {"max-norm": 4}},
        ),
    ],
    ids=["what it chose", "it chose nothing", "shadows", "a later step"],
)
def test_what_a_search_chose_is_given_and_the_search_repeated_only_where_that_is_not_enough(
    small_run: SmallRun, tmp_path: Path, given: dict[str, object], more: dict[str, object],
    search: dict[str, object], seeds: str, overrides: dict[str, object],
) -> None:  # fmt: skip
    chosen = choose("", str(small_run.path), ["method=ga"], tmp_path)
    searched = '{"ga": {"max-norm": [1, 5]}, "fedquit": {"lr": [0.1]}}'
    cell = changed(chosen.cell, search=searched, unlearn_seeds="0,1,2", overrides='{"ga": {"max-norm": 4.0}}', **given)
    cell |= {"preset": "searched", "unlearn_seed": 1, "config": {"max_norm": 2.5, "recovery_max_norm": 0.0}, **more}
    asked = settings_of(Chosen(chosen.run, cell, chosen.rows), tmp_path, tmp_path)
    check_groups([asked])
    assert json.loads(asked.search or "{}") == search
    assert asked.unlearn_seeds == seeds
    assert asked.method_overrides() == overrides
    assert asked.preset == "safe"


# ---------------------------------------------------------------------- noticing
def test_one_cell_is_left_to_compare_with(again: tuple[Chosen, Path, list[GroupSettings]], tmp_path: Path) -> None:
    chosen, folder = again[0], Path(shutil.copytree(again[1], tmp_path / "again"))
    table = pd.read_csv(folder / "results.csv", dtype=str, keep_default_na=False)
    other = table[table["method"] == "ga"]
    pairs = pd.concat([table, other.assign(cell="0" * 12, preset="searched", value="7")])

    def write(rows: pd.DataFrame) -> None:
        rows.to_csv(folder / "results.csv", index=False, lineterminator="\n")

    write(pairs)
    assert compare(chosen, folder).equal
    repeated = compare(Chosen(chosen.run, {**chosen.cell, "preset": "searched"}, chosen.rows), folder)
    assert {one.now for one in repeated.compared} == {7.0}
    write(pd.concat([table, other.assign(unlearn_seed="9", value="7")]))
    assert compare(chosen, folder).equal
    write(pd.concat([table, other.assign(cell="0" * 12)]))
    with pytest.raises(RunFailed, match=r"^2 cells of ga client:site-1, unlearning seed 0 came out"):
        compare(chosen, folder)
    write(table[table["method"] != "ga"])
    with pytest.raises(RunFailed, match=r"^0 cells of ga"):
        compare(chosen, folder)


def test_a_doctored_value_is_noticed(
    again: tuple[Chosen, Path, list[GroupSettings]], doctored: Callable[..., Path]
) -> None:
    found = compare(choose("", str(doctored()), ["method=ga"], Path("/none")), again[1])
    assert not found.equal
    wrong = [one for one in found.compared if one.judgement not in ("identical", "clock")]
    assert {(one.checkpoint, one.metric) for one in wrong} == {("recovered", "test_accuracy")}
    assert all(one.then == pytest.approx(one.now + 2.0, abs=1e-4) for one in wrong)
    assert found.verdict.startswith("NOT reproduced: ga client:site-1")


def test_a_small_difference_is_within_the_interval_and_within_a_tolerance_that_allows_it(
    again: tuple[Chosen, Path, list[GroupSettings]], doctored: Callable[..., Path]
) -> None:
    chosen = choose("", str(doctored(by=0.001)), ["method=ga"], Path("/none"))

    def judgements(tolerance: float) -> set[str]:
        found = compare(chosen, again[1], tolerance)
        return {one.judgement for one in found.compared if one.metric == "test_accuracy"}

    assert judgements(0.0) == {"identical", "within interval"}
    assert judgements(0.01) == {"identical", "within tolerance"}
    assert not compare(chosen, again[1]).equal
    assert compare(chosen, again[1], 0.01).equal


def test_another_number_of_records_and_a_missing_row_are_noticed(
    again: tuple[Chosen, Path, list[GroupSettings]], doctored: Callable[..., Path]
) -> None:
    folder = doctored(column="n", by=1)
    table = pd.read_csv(folder / "results.csv", dtype=str, keep_default_na=False)
    table = table[table["metric"] != "forget_accuracy"]
    table.to_csv(folder / "results.csv", index=False, lineterminator="\n")
    found = compare(choose("", str(folder), ["method=ga"], Path("/none")), again[1])
    judged = {one.metric: one.judgement for one in found.compared if one.checkpoint == "recovered"}
    assert judged["test_accuracy"] == "differs"
    assert judged["forget_accuracy"] == "new"
    assert not found.equal


def test_clock_times_are_not_judged(
    again: tuple[Chosen, Path, list[GroupSettings]], doctored: Callable[..., Path]
) -> None:
    found = compare(choose("", str(doctored(metric="client_seconds", by=99)), ["method=ga"], Path("/none")), again[1])
    assert found.equal
    (late, *_) = [o for o in found.compared if o.metric == "client_seconds" and o.checkpoint == "recovered"]
    assert late.judgement == "clock"
    assert late.then is not None and late.now is not None and late.then > late.now + 90


def shown(compared: Sequence[Compared], *, everything: bool = False) -> str:
    console = Console(width=100, no_color=True)
    with console.capture() as captured:
        found = Reproduction("c" * 12, "ga", "class:5", "then", "now", tuple(compared), ())
        console.print(comparison_table(found, everything=everything))
    return " ".join(captured.get().split())


def test_the_table_lists_what_was_judged_and_differs_and_counts_the_rest() -> None:
    timed = [Compared("unlearned", name, None, 1.0, 2.0, "clock") for name in ("client_seconds", "speedup")]
    same = Compared("unlearned", "test_accuracy", 0, 0.5, 0.5, "identical")
    wrong = Compared("recovered", "forget_accuracy", 0, 0.5, 0.75, "differs")
    text = shown([*timed, same, wrong])
    assert "differs" in text and "client_seconds" not in text and "test_accuracy" not in text
    assert "not shown: 1 identical, 2 clock times (not judged); --all shows them" in text
    everything = shown([*timed, same, wrong], everything=True)
    assert everything.count("clock time, not judged") == 2 and "not shown" not in everything
    only = "ga, class:5: not shown: 1 identical, 2 clock times (not judged); --all shows them"
    assert shown([*timed, same]).strip() == only
    assert "checkpoint" not in shown([*timed, same]), "no table without a row"
    assert shown(timed).count("clock time, not judged") == 2, "nothing else was asked for"


@pytest.mark.parametrize(
    ("metric", "timed"),
    [
        ("seconds_unlearn", True),
        ("client_seconds", True),
        ("client_seconds_unlearn", True),
        ("speedup", True),
        ("speedup_total", True),
        ("speedup_examples", False),
        ("speedup_examples_total", False),
        ("test_accuracy", False),
        ("gradient_steps", False),
    ],
)
def test_which_metrics_are_clock_times(metric: str, timed: bool) -> None:
    assert is_timed(metric) is timed


def test_what_is_another_machine_now_is_named(
    again: tuple[Chosen, Path, list[GroupSettings]], doctored: Callable[..., Path]
) -> None:
    folder = doctored()
    record = json.loads((folder / "run.json").read_text())
    record["environment"]["commit"] = "0123abc"
    record["environment"]["libraries"]["torch"] = "1.0"
    (folder / "run.json").write_text(json.dumps(record))
    found = compare(choose("", str(folder), ["method=ga"], folder), again[1])
    changes = {what: then for what, then, _ in found.changes}
    assert changes == {"commit": "0123abc", "torch": "1.0"}


# ---------------------------------------------------------------------- which row
def test_a_row_is_named_by_run_and_cell_and_a_metric(small_run: SmallRun) -> None:
    cell = cell_of(small_run, "ga")
    whole = choose(f"latest:{cell}", "", [], small_run.home)
    assert whole.cell["method"] == "ga"
    one = choose(f"{small_run.path}:{cell}:test_accuracy", "", ["checkpoint=recovered"], small_run.home)
    assert set(one.rows["metric"]) == {"test_accuracy"}
    assert len(one.rows) == 2  # two evaluation seeds
    assert len(choose(f"latest:{cell}:test_accuracy", "", ["evaluate_seed=1"], small_run.home).rows) == 2


def test_only_the_rows_asked_for_are_judged(
    small_run: SmallRun, again: tuple[Chosen, Path, list[GroupSettings]], doctored: Callable[..., Path]
) -> None:
    where = ["method=ga", "metric=forget_accuracy", "checkpoint=recovered"]
    found = compare(choose("", str(doctored()), where, small_run.home), again[1])
    assert found.equal
    assert {one.metric for one in found.compared} == {"forget_accuracy"}


@pytest.mark.parametrize(
    ("row", "run", "where", "says"),
    [
        ("", "", [], "ROW='': allowed is RUN:CELL, RUN:CELL:METRIC, or --run RUN"),
        ("latest:a" * 3, "latest", [], "give one of the two"),
        ("latest", "", [], "CELL is 12 hex digits"),
        ("latest:000000000000", "", [], "cell='000000000000': allowed is one of"),
        ("", "latest", ["method"], "key=value, such as method=ga"),
        ("", "latest", ["methd=ga"], "--where='methd': .*did you mean 'method'"),
        ("", "latest", ["method=gaa"], "method='gaa': .*did you mean 'ga'"),
        ("", "latest", ["checkpoint=recovered"], r"4 do; add --where 'method=fedquit \| fine-tuning \| ga \| retrain'"),
        ("", "none", ["method=ga"], "a run folder or a name below"),
    ],
)
def test_what_is_not_one_cell_is_one_line(small_run: SmallRun, row: str, run: str, where: list[str], says: str) -> None:
    with pytest.raises(BadInput, match=says) as raised:
        choose(row, run, where, small_run.home)
    assert "\n" not in str(raised.value)


# ---------------------------------------------------------------------- the command
def test_the_command_prints_a_verdict_and_its_exit_code_tells(
    small_run: SmallRun,
    again: tuple[Chosen, Path, list[GroupSettings]],
    doctored: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def copied(workers: int) -> Callable[[GroupSettings], None]:
        return lambda settings: shutil.copytree(again[1], settings.out, dirs_exist_ok=True) and None

    monkeypatch.setattr(reproduce_run, "by_command", copied)
    home = ["--home", str(tmp_path)]
    same = CliRunner().invoke(app, ["reproduce", f"{small_run.path}:{again[0].cell['cell']}", *home])
    assert same.exit_code == 0, same.output
    said = " ".join(same.output.split())  # whatever the width
    assert "--all shows them" in said and "clock time, not judged" not in said
    assert same.output.strip().splitlines()[-1].startswith("reproduced: ga client:site-1")
    wrong = doctored()
    found = CliRunner().invoke(app, ["reproduce", "--run", str(wrong), "--where", "method=ga", "--json", *home])
    assert found.exit_code == 1
    told = json.loads(found.output)
    assert told["equal"] is False
    assert [row["metric"] for row in told["compared"] if row["judgement"] == "differs"] == ["test_accuracy"] * 2
    assert main(["reproduce", "--run", str(wrong), "--where", "method=gaa", *home]) == 2
