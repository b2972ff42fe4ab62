import os
import shlex
from pathlib import Path

import pytest

from flower_apps import cli
from flower_apps.places import ROOT, Places, open_run_folder, outside_checkout, resolve_home, run_name
from partitions.errors import BadInput


def test_the_flag_wins_over_the_environment_which_wins_over_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LETHE_HOME", raising=False)
    assert resolve_home() == tmp_path / ".lethe"
    monkeypatch.setenv("LETHE_HOME", str(tmp_path / "env"))
    assert resolve_home() == tmp_path / "env"
    assert resolve_home(tmp_path / "flag") == tmp_path / "flag"


def test_home_is_absolute_and_making_it_is_left_to_whoever_writes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve_home("home mit ümlaut") == tmp_path / "home mit ümlaut"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("inside", ["results", "flower_apps/../out", ""])
def test_nothing_goes_into_the_checkout(inside):
    for check in (resolve_home, lambda path: outside_checkout("out", path), open_run_folder):
        with pytest.raises(BadInput, match="outside the checkout"):
            check(ROOT / inside)


def test_a_link_into_the_checkout_is_seen_through(tmp_path):
    (tmp_path / "link").symlink_to(ROOT)
    with pytest.raises(BadInput, match="outside the checkout"):
        resolve_home(tmp_path / "link" / "results")


def test_a_home_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="a folder"):
        resolve_home(tmp_path / "file")


def test_a_home_one_cannot_make_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="--home"):
        _ = Places(tmp_path / "file" / "home").data


def test_the_folders_lie_below_home(tmp_path):
    places = Places(tmp_path)
    assert [p.name for p in (places.data, places.stages, places.runs, places.flower)] == [
        "data",
        "stages",
        "runs",
        "flower",
    ]
    assert all((tmp_path / name).is_dir() for name in ("data", "stages", "runs", "flower"))


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path):
    made = {Places(tmp_path).new_run("a/b c") for _ in range(5)}
    assert len(made) == 5
    assert all(folder.parent == tmp_path / "runs" and "a-b-c" in folder.name for folder in made)


def test_a_named_run_folder_must_be_new_empty_or_a_runs_own(tmp_path):
    assert open_run_folder(tmp_path / "new" / "run").is_dir()
    assert open_run_folder(tmp_path / "new" / "run").is_dir()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").touch()
    with pytest.raises(BadInput, match="an earlier run's"):
        open_run_folder(tmp_path / "thesis")
    (tmp_path / "thesis" / "run.json").touch()
    assert open_run_folder(tmp_path / "thesis") == tmp_path / "thesis"


def test_a_run_is_called_by_its_name_only_where_that_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("LETHE_HOME", str(tmp_path))
    assert run_name(tmp_path / "runs" / "one") == run_name(tmp_path / "runs" / "one", tmp_path) == "one"
    for elsewhere in (tmp_path / "C-out1", tmp_path / "other" / "runs" / "one", tmp_path / "runs" / "a" / "b"):
        assert run_name(elsewhere) == run_name(elsewhere, tmp_path) == str(elsewhere)
    assert run_name(tmp_path / "other" / "runs" / "one", tmp_path / "other") == "one"
    assert shlex.split(run_name(tmp_path / "my runs" / "one")) == [str(tmp_path / "my runs" / "one")]


@pytest.mark.parametrize("name", ["data", "stages", "runs", "flower", "stages/train"])
@pytest.mark.parametrize("how", ["a file", "closed"])
def test_a_part_of_the_home_that_cannot_be_read_is_one_line(tmp_path, monkeypatch, capsys, name, how):
    part = tmp_path / name
    part.parent.mkdir(exist_ok=True)
    part.touch() if how == "a file" else part.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != part)
    for command in (["plan", "quickstart"], ["run", "quickstart"]):
        assert cli.main([*command, "--home", str(tmp_path)]) == 2
        assert f"{part}': allowed is a folder one can read; " in capsys.readouterr().err
    assert not [path for path in tmp_path.rglob("*") if path not in (part, part.parent)]


@pytest.mark.parametrize("name", ["", "runs", "stages", "flower"])
def test_a_home_that_cannot_be_written_is_one_line(tmp_path, monkeypatch, capsys, name):
    part = tmp_path / name
    part.mkdir(exist_ok=True)
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode & os.W_OK and Path(path) == part))
    for command in (["run", "quickstart"], ["resume", "latest"], ["data", "fetch", "digits"]):
        assert cli.main([*command, "--home", str(tmp_path)]) == 2
        assert f"LETHE_HOME='{tmp_path}': allowed is a folder that can be written; " in capsys.readouterr().err
    assert [path for path in tmp_path.rglob("*") if path != part] == []
