import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from flower_apps import cli, places
from partitions.errors import BadInput, RunFailed


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LETHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def asked(monkeypatch):
    """Stand in for the room that runs; what it was asked is kept, and what it returns or raises is set here."""
    calls = {"then": 0}

    def run_experiments(groups, **options):
        calls.update(options, groups=groups)
        if isinstance(calls["then"], Exception):
            raise calls["then"]
        return calls["then"]

    module = ModuleType("flower_apps.command_run")
    module.run_experiments = run_experiments
    monkeypatch.setitem(sys.modules, "flower_apps.command_run", module)
    return calls


# lethe run
def test_plain_run_is_the_quickstart_of_the_manifest_that_ships(asked, home):
    assert cli.main(["run"]) == 0
    assert [group.name for group in asked["groups"]] == ["quickstart"]
    assert asked["out"].parent == home / "runs"
    assert asked["home"] == home
    assert asked["manifest"] == places.ROOT / "experiments.yaml"
    assert (asked["jobs"], asked["json_output"], asked["fresh"], asked["gpus"]) == (1, False, False, 0)
    assert asked["workers"] is None, "the cores are shared out when groups and sites are known"


def test_every_option_arrives(asked, tmp_path):
    manifest = tmp_path / "mine.yaml"
    manifest.write_text("a: {}\nb: {}")
    code = cli.main(
        f"run b a --manifest {manifest} --out {tmp_path / 'o'} --set rounds=3 --set lr=1e-4 --jobs 2 --workers 3 "
        f"--gpus 2 --fresh --json --home {tmp_path / 'h'}".split()
    )
    assert code == 0
    assert [(g.name, g.rounds, g.lr) for g in asked["groups"]] == [("b", 3, 1e-4), ("a", 3, 1e-4)]
    expected = {
        "home": tmp_path / "h",
        "out": tmp_path / "o",
        "workers": 3,
        "jobs": 2,
        "gpus": 2,
        "json_output": True,
        "fresh": True,
        "manifest": manifest,
    }
    assert {key: asked[key] for key in expected} == expected


def test_the_exit_code_is_that_of_the_run(asked):
    asked["then"] = 1
    assert cli.main(["run"]) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("run quikstart", "did you mean 'quickstart'"),
        ("run --set roundz=3", "did you mean 'rounds'"),
        ("run --set rounds=x", "a whole number from 1 to 100000"),
        ("run --set dataset=lung-cd", "did you mean 'lung-ct'"),
        ("run --set methods=federeraser", "did you mean 'federaser'"),
        ("run --set ga.max-nrom=5", "did you mean 'max-norm'"),
        ("run --set fedquit.temperature=1 --set methods=ga", "overrides='fedquit'"),
        ("run --set model=cnnn", "did you mean 'cnn'"),
        ("run --set split=naturel", "did you mean 'natural'"),
        ("run --set requests=cliant:patient-1", "client"),
        ("run --set requests=", "at least one request"),
        ("run --set original=none.safetensors", "a safetensors file that exists"),
        ("run --manifest none.yaml", "--manifest FILE"),
        ("run --jobs 0", "--jobs"),
        ("run --jbos 2", "--jobs"),
        ("rnu", "rnu"),
        ("export none ga", "a run folder"),
        ("report none", "a run folder"),
        ("data fetch lung-cd", "did you mean 'lung-ct'"),
        ("data", "Usage"),
    ],
)
def test_a_persons_mistake_is_one_line_and_exit_code_2_and_leaves_nothing(arguments, says, asked, home, capfd):
    assert cli.main(arguments.split()) == 2
    shown = capfd.readouterr()
    assert says in shown.err + shown.out
    assert "Traceback" not in shown.err
    assert shown.err.count("\n") == 1 or arguments == "data"
    assert "groups" not in asked
    assert list(home.glob("runs/*")) == []


@pytest.mark.parametrize("command", ["run", "plan", "partition", "experiments"])
def test_errors_of_an_experiment_have_the_entry_that_states_the_value_in_front(command, home, tmp_path, capfd):
    manifest = tmp_path / "mine.yaml"

    def said(settings, *sets):
        manifest.write_text(f"find: {{extends: quick}}\nquick: {{dataset: digits, cap: 20, split: iid, {settings}}}")
        assert cli.main([command, "find", "--manifest", str(manifest), *sets]) == 2
        return capfd.readouterr().err

    if command != "partition":
        assert said("requests: clien:site-0").startswith("lethe: quick.requests='clien': allowed is one of")
        assert said("sites: 2", "--set", "requests=clien:x").startswith("lethe: --set requests='clien'")
        excluded = said("requests: class:5, methods: ga, exclude: [{method: ga}]")
        assert excluded.startswith("lethe: quick.exclude=")
    if command != "experiments":
        assert said("sites: 5000").startswith("lethe: quick.sites=5000: allowed is")
        assert said("sites: 2", "--set", "sites=5000").startswith("lethe: --set sites=5000: allowed is")
    assert list(home.glob("runs/*")) == []


def test_bad_input_found_by_the_run_leaves_no_empty_run_folder(asked, home, capsys):
    asked["then"] = BadInput("requests", "client:x", "one of patient-1", "fix it")
    assert cli.main(["run"]) == 2
    assert capsys.readouterr().err == "lethe: requests='client:x': allowed is one of patient-1; fix it\n"
    assert list((home / "runs").iterdir()) == []


def test_a_run_refused_before_its_first_result_leaves_no_folder_and_a_later_one_keeps_it(asked, home, monkeypatch):
    def refuse(groups, *, out, **_):
        (out / "run.json").write_text("{}")
        if asked.get("results"):
            (out / "results.csv").write_text("")
        raise BadInput("requests", "class:99", "a class there is", "fix it")

    monkeypatch.setattr(sys.modules["flower_apps.command_run"], "run_experiments", refuse)
    assert cli.main(["run"]) == 2
    assert list((home / "runs").iterdir()) == []
    asked["results"] = True
    assert cli.main(["run"]) == 2
    assert len(list((home / "runs").iterdir())) == 1


def test_a_full_disk_is_one_line_with_the_remedy(asked, capsys):
    asked["then"] = OSError(28, "No space left on device")
    assert cli.main(["run"]) == 1
    assert capsys.readouterr().err.startswith("lethe: no space left on the disk: free some")


def test_a_failed_run_is_one_line_and_exit_code_1(asked, capsys):
    asked["then"] = RunFailed("worker died\nin round 2")
    assert cli.main(["run"]) == 1
    assert capsys.readouterr().err == "lethe: worker died in round 2\n"


def test_the_unexpected_is_one_line_that_names_a_file_with_the_traceback(asked, home, capsys):
    asked["then"] = ZeroDivisionError("oh")
    assert cli.main(["run", "--set", "rounds=3"]) == 1
    line = capsys.readouterr().err
    assert line.startswith("lethe: unexpected ZeroDivisionError: oh; traceback: ")
    assert line.count("\n") == 1
    log = Path(line.rsplit(" ", 1)[1].strip())
    assert log.parent == home / "crashes"
    assert "Traceback" in log.read_text()
    assert log.read_text().startswith("lethe run --set rounds=3")


def test_the_crash_log_follows_the_home_flag_and_falls_back_when_that_cannot_be_written(asked, tmp_path, capsys):
    asked["then"] = ZeroDivisionError()
    assert cli.main(["run", f"--home={tmp_path / 'other'}"]) == 1
    assert str(tmp_path / "other" / "crashes") in capsys.readouterr().err
    (tmp_path / "file").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LETHE_HOME", str(tmp_path / "file"))
        assert cli.main(["methods", "--json", "--home"]) == 2
        assert cli._write_crash(["x"]).is_file()


def test_an_interrupt_is_exit_code_130(asked, capsys):
    asked["then"] = KeyboardInterrupt()

    def raise_it(*_, **__):
        raise KeyboardInterrupt

    sys.modules["flower_apps.command_run"].run_experiments = raise_it
    assert cli.main(["run"]) == 130
    assert capsys.readouterr().err == "lethe: interrupted\n"


# the rest
def test_methods_lists_what_each_can_forget_and_where_it_comes_from(capsys):
    assert cli.main(["methods", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert {"ga", "federaser", "fedquit", "fine-tuning", "retrain"} <= rows.keys()
    assert set(rows["federaser"]) == {
        "name",
        "title",
        "family",
        "granularities",
        "needs",
        "not_for",
        "presets",
        "provenance",
        "settings",
        "citation",
    }
    assert "history" in rows["federaser"]["needs"]
    assert "history" not in rows["ga"]["needs"]
    assert cli.main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("federaser" in line for line in lines)
    assert max(map(len, lines)) <= 100


def test_data_list_tells_what_is_here_and_its_licence(capsys):
    assert cli.main(["data", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["lung-ct"]["licence"].startswith("CC BY-NC")
    assert rows["lung-ct"]["here"] is False
    assert cli.main(["data", "list"]) == 0
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 100


def test_data_check_of_nothing_says_how_to_fetch(capsys):
    assert cli.main(["data", "check"]) == 0
    assert "lethe data fetch" in capsys.readouterr().out


def test_partition_prints_every_site_and_draws_the_heat_map(capsys, tmp_path, home):
    sets = ["--set", "dataset=digits", "--set", "split=dirichlet", "--set", "sites=3", "--set", "alpha=0.5"]
    assert cli.main(["partition", *sets, "--json"]) == 0
    (split,) = json.loads(capsys.readouterr().out)
    assert [site["site"] for site in split["sites"]] == ["site-0", "site-1", "site-2"]
    assert Path(split["heatmap"]).parent == home / "partitions"
    assert Path(split["heatmap"]).read_bytes().startswith(b"\x89PNG")
    assert cli.main(["partition", *sets, "--out", str(tmp_path / "map.png")]) == 0
    shown = capsys.readouterr().out
    assert all(f"site-{k}" in shown for k in range(3))
    assert max(map(len, shown.splitlines()[:-1])) <= 100
    assert (tmp_path / "map.png").exists()


def test_partition_shows_each_different_split_once(capsys, tmp_path):
    manifest = tmp_path / "m.yaml"
    manifest.write_text("a: {dataset: digits, split: iid, sites: [2, 3], lr: [0.1, 0.2]}")
    assert cli.main(["partition", "a", "--manifest", str(manifest), "--json"]) == 0
    assert [len(split["sites"]) for split in json.loads(capsys.readouterr().out)] == [2, 3]


@pytest.mark.parametrize("name", ["Früh", "a..b"])
def test_a_heat_map_stays_in_its_folder_whatever_the_experiment_is_called(capsys, tmp_path, home, name):
    manifest = tmp_path / "m.yaml"
    manifest.write_text(f"{name}: {{dataset: digits, split: iid, sites: 2}}")
    assert cli.main(["partition", name, "--manifest", str(manifest), "--json"]) == 0
    (split,) = json.loads(capsys.readouterr().out)
    assert Path(split["heatmap"]).parent == home / "partitions"


def test_a_drawing_never_goes_into_the_checkout(capsys):
    assert cli.main(["partition", "--out", str(places.ROOT / "map.png")]) == 2
    assert "outside the checkout" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["data", "--help"], ["export", "--help"], ["report", "--help"]]
)
def test_help_is_readable_and_imports_neither_torch_nor_flower(arguments):
    script = (
        f"import sys\nfrom flower_apps.cli import main\ncode = main({arguments!r})\n"
        "heavy = sorted({'torch', 'flwr', 'pandas', 'numpy', 'ray'} & sys.modules.keys())\n"
        "print('HEAVY', heavy)\nsys.exit(code)"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=places.ROOT)
    assert shown.returncode == 0, shown.stderr
    assert "HEAVY []" in shown.stdout


# lethe rank
def test_rank_prints_the_methods_of_a_table_and_the_same_as_json(capsys):
    kept = places.ROOT / "docs" / "results" / "methods.csv"
    assert cli.main(["rank", str(kept), "--block", "split"]) == 0
    page = capsys.readouterr().out
    assert "class requests · |delta_test_accuracy| at recovered" in page
    assert max(map(len, page.splitlines())) <= 100
    assert cli.main(["rank", str(kept), "--metric", "retrain_gap_l2", "--checkpoint", "unlearned", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["metric"] for one in found} == {"retrain_gap_l2"}
    assert {one["block"] for one in found} == {"dataset"}


@pytest.mark.parametrize(("arguments", "says"), [("rank none", "a run folder"), ("rank", "RUN")])
def test_rank_refuses_what_is_no_run(arguments, says, capfd):
    assert cli.main(arguments.split()) == 2
    assert says in capfd.readouterr().err


def test_a_report_lies_below_its_run_unless_told_otherwise(home, tmp_path, monkeypatch, capsys):
    (home / "runs" / "one").mkdir(parents=True)
    (home / "runs" / "one" / "run.json").write_text('{"created": 0.0, "cells": []}')
    asked = []
    monkeypatch.setattr(
        "evaluation.report.write.write_report", lambda run, target, tell: asked.append((run.name, target))
    )
    assert cli.main(["report", "one"]) == 0
    assert cli.main(["report", "one", "--out", "elsewhere"]) == 0
    assert asked == [("one", home / "runs" / "one" / "report"), ("one", tmp_path / "elsewhere")]
    assert "report.html, tables.md, tables.tex, figures/" in capsys.readouterr().out


# lethe experiments
def test_experiments_are_listed_with_what_they_come_to(tmp_path, capsys):
    (tmp_path / "experiments.yaml").write_text(
        "_p: {tags: [t]}\na: {extends: _p, description: first, train-seed: [0, 1]}\nb: {description: second}"
    )
    assert cli.main(["experiments", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == ["a", "b"]
    assert (rows["a"]["description"], rows["a"]["tags"], rows["a"]["groups"]) == ("first", ["t"], 2)
    assert rows["a"]["cells"] == 2 * 6
    assert rows["a"]["settings"] == {"train-seed": [0, 1]}
    assert cli.main(["experiments", "--tag", "t", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["a"]
    assert cli.main(["experiments"]) == 0
    shown = capsys.readouterr().out
    assert ("first" in shown, "second" in shown, "_p" in shown) == (True, True, False)


def test_one_experiment_is_shown_with_its_settings_and_those_that_set_changes(tmp_path, capsys):
    (tmp_path / "experiments.yaml").write_text("a: {description: first, alpha: [0.1, 1], budget: {hours: 2}}")
    assert cli.main(["experiments", "a", "--set", "rounds=7"]) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("first", "alpha", "1.0", "training rounds", "budget: hours 2", "2 groups"))
    assert cli.main(["experiments", "aa"]) == 2
    assert "did you mean 'a'" in capsys.readouterr().err


def test_an_experiment_in_small_shares_a_line_and_mappings_are_shown_as_one_writes_them(tmp_path, capsys, monkeypatch):
    (tmp_path / "experiments.yaml").write_text(
        "a: {description: 'first [b]', tags: [t], methods: [ga, fedquit], requests: [class:5, class:4],\n"
        "    search: {ga: {max-norm: [1, 5]}}, exclude: [{method: fedquit, request: class:5}],\n"
        "    overrides: {ga: {max-norm: 5}}}\na-small: {extends: a}\nb-small: {}"
    )
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["experiments"]) == 0
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines() if line.startswith(("a", "b"))]
    assert lines == [["a", "first", "[b]", "[t]", "yes", "1", "11"], ["b-small", "1", "6"]]
    assert cli.main(["experiments", "a"]) == 0
    shown = capsys.readouterr().out
    assert "ga: {max-norm: 5}" in shown and "ga: {max-norm: [1, 5]}" in shown
    assert "- {method: fedquit" in shown


def test_run_takes_tags_beside_names(asked, tmp_path):
    (tmp_path / "experiments.yaml").write_text("a: {}\nb: {tags: [t]}\nc: {tags: [t, u]}")
    assert cli.main(["run", "a", "--tag", "u", "--tag", "t"]) == 0
    assert [group.name for group in asked["groups"]] == ["a", "b", "c"]
    assert cli.main(["run", "--tag", "v"]) == 2
