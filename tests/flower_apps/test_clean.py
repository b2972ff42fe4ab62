"""Facts about what `lethe clean` takes away, and what it leaves."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from filelock import FileLock
from runs_made import GONE, HERE, make_run, make_stage

from flower_apps import cli
from flower_apps.clean import find_stale, remove
from flower_apps.identity import CACHE_VERSION
from flower_apps.lifetime import Lifetime, command_lock
from flower_apps.run_state import Busy
from flower_apps.runs import KEPT, RunFolder
from flower_apps.settings import GroupSettings
from flower_apps.stages import StageStore
from partitions.errors import BadInput

A, B, C = ("a" * 24, "b" * 24, "c" * 24)


def stale(home: Path, *named: str) -> dict[str, str]:
    """Return why each thing is stale, by its name."""
    return {one.path.name: f"{one.what}: {one.why}" for one in find_stale(home, named)}


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds, time.time() - seconds))


def unfinished(home: Path, kind: str = "train", key: str = A) -> Path:
    folder = home / "stages" / ".work" / f"{kind}-{key}"
    folder.mkdir(parents=True)
    (folder / "round-0001").write_bytes(b"x" * 10)
    return folder


def test_stages_that_no_run_stands_on_go_and_all_others_stay(tmp_path):
    old = make_stage(tmp_path, "retrain", B)
    make_run(tmp_path, "new", stages=(f"train/{A}",))
    make_run(tmp_path, "older", status="", checkpoints={"unlearned": str(old / "model.safetensors")})
    kept = [make_stage(tmp_path, "train", A), old]
    gone = make_stage(tmp_path, "train", C)
    found = find_stale(tmp_path)
    assert [(one.path, one.why) for one in found] == [(gone, "no run stands on it")]
    assert found[0].size >= 1000
    assert remove(found) == found
    assert not gone.exists() and all(folder.exists() for folder in kept)
    assert list(tmp_path.glob("stages/*/.*")) == []


def test_a_run_folder_elsewhere_keeps_its_stages(tmp_path):
    home, out = tmp_path / "home", tmp_path / "out"
    group = GroupSettings.parse({"home": str(home)})
    run = RunFolder(out)
    with Lifetime(run, {}, [group]):
        run.add_stage("train", A)
    make_stage(home, "train", A)
    assert stale(home) == {}


def test_a_stage_that_can_never_be_found_again_says_why(tmp_path):
    present = {"torch": version("torch"), "flwr": version("flwr"), "cache": CACHE_VERSION}
    make_stage(tmp_path, "train", A, **{**present, "torch": "1.0"})
    make_stage(tmp_path, "train", B, **{**present, "cache": CACHE_VERSION + 1})
    make_stage(tmp_path, "train", C, **present)
    found = stale(tmp_path)
    assert "of torch 1.0" in found[A] and f"of cache version {CACHE_VERSION + 1}" in found[B]
    assert found[C] == "stage (train): no run stands on it"


def test_half_done_work_stays_while_somebody_computes_or_a_run_can_go_on_with_it(tmp_path):
    unfinished(tmp_path, key=A)
    unfinished(tmp_path, key=B)
    unfinished(tmp_path, key=C)
    make_run(tmp_path, "killed", status="running", by=GONE, stages=(f"train/{A}",))
    make_run(tmp_path, "done", stages=(f"train/{C}",))
    with FileLock(tmp_path / "stages" / ".work" / f"train-{B}.lock"):
        assert set(stale(tmp_path)) == {f"train-{C}"}
    remove(find_stale(tmp_path))
    left = sorted(path.name for path in (tmp_path / "stages" / ".work").iterdir())
    assert left == [f"train-{A}"]


def test_what_a_killed_command_had_taken_from_a_depot_in_part_goes_unless_it_is_being_taken(tmp_path):
    work = tmp_path / "stages" / ".work"
    for key in (A, B):
        (work / f"train-{key}.taken").mkdir(parents=True)
        (work / f"train-{key}.taken" / "model.safetensors").write_bytes(b"x" * 10)
    make_run(tmp_path, "killed", status="running", by=GONE, stages=(f"train/{A}",))
    with FileLock(work / f"train-{B}.lock"):
        assert set(stale(tmp_path)) == {f"train-{A}.taken"}
        remove(find_stale(tmp_path))
    remove(find_stale(tmp_path))
    remove(find_stale(tmp_path))
    assert list(work.iterdir()) == []


def test_a_lock_is_gone_before_it_is_let_go(tmp_path):
    work = tmp_path / "stages" / ".work"
    work.mkdir(parents=True)
    (work / f"train-{A}.lock").touch()
    (found,) = find_stale(tmp_path)
    held: list[list[Path]] = []

    @contextmanager
    def hold() -> Iterator[bool]:
        with found.hold() as free:
            yield free
            held.append(list(work.iterdir()))

    assert len(remove([replace(found, hold=hold)])) == 1
    assert held == [[]]


def test_runs_without_a_finished_cell_go_but_not_one_that_runs_or_can_be_gone_on_with(tmp_path):
    make_run(tmp_path, "refused", status="refused", cells=False, stages=(f"train/{A}",))
    make_run(tmp_path, "running", status="running", cells=False)
    make_run(tmp_path, "killed", status="running", by=GONE, cells=False)
    make_run(tmp_path, "done")
    make_stage(tmp_path, "train", A)
    month_ago = make_run(tmp_path, "forgotten", status="running", by=GONE, cells=False, started=time.time() - 1e7)
    age(month_ago / "run.json", 1e7)
    empty = tmp_path / "runs" / "empty"
    empty.mkdir()
    assert set(stale(tmp_path)) == {"refused", "forgotten", A}
    age(empty, 1e4)
    remove(find_stale(tmp_path))
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["done", "killed", "running"]
    assert not list((tmp_path / "stages" / "train").iterdir())


def test_named_runs_go_with_the_stages_that_only_they_stand_on(tmp_path):
    one = make_run(tmp_path, "one", stages=(f"train/{A}", f"train/{B}"))
    make_run(tmp_path, "two", stages=(f"train/{A}",))
    for key in (A, B, C):
        make_stage(tmp_path, "train", key)
    unfinished(tmp_path, "retrain", B)
    (tmp_path / "runs" / "one" / "stages.txt").open("a").write(f"retrain/{B}\n")
    found = stale(tmp_path, "one")
    assert set(found) == {"one", B, f"retrain-{B}"}
    assert found[B] == "stage (train): only of runs that are removed"
    remove(find_stale(tmp_path, ["one"]))
    assert not one.exists()
    assert not list((tmp_path / "stages" / ".work").iterdir())
    assert {path.name for path in (tmp_path / "stages" / "train").iterdir()} == {A, C}
    make_run(tmp_path, "on", status="running")
    with pytest.raises(Busy, match="worked on by process"):
        find_stale(tmp_path, ["on"])
    with pytest.raises(BadInput, match="a run folder"):
        find_stale(tmp_path, ["none"])


def test_rounds_of_shadows_go_once_no_run_will_use_them(tmp_path):
    make_stage(tmp_path, "shadow", A, rounds=True)
    make_stage(tmp_path, "shadow", B, rounds="kept")
    make_stage(tmp_path, "shadow", C)
    run = make_run(tmp_path, status="running", by=GONE, stages=tuple(f"shadow/{key}" for key in (A, B, C)))
    assert stale(tmp_path) == {}
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "status": "completed"}))
    assert stale(tmp_path) == {A: "shadow rounds: left behind"}
    remove(find_stale(tmp_path))
    assert {path.name for path in (tmp_path / "stages" / "shadow").iterdir()} == {B, C}


def reproduction(home: Path, name: str, by: dict[str, object] = GONE) -> Path:
    """Make what `lethe reproduce` leaves when it is killed, or has while it runs."""
    place = home / "reproductions" / name
    run = make_run(place, "run", status="running", by=by, cells=False)
    run.rename(place / "run")
    make_stage(place)
    return place


def test_stages_of_a_killed_reproduction_go_and_those_of_a_kept_one_and_of_one_at_work_stay(tmp_path, capsys):
    killed, kept, held = (reproduction(tmp_path, name) for name in ("killed", "kept", "held"))
    at_work = reproduction(tmp_path, "at-work", HERE)
    half_removed = reproduction(tmp_path, "half-removed")
    (half_removed / "stages").rename(half_removed / ".stages-0a1b2c3d")
    (kept / KEPT).touch()
    with command_lock(held / "run"):
        found = find_stale(tmp_path)
        assert [(one.what, one.called) for one in found] == [
            ("reproduction", half_removed.name),
            ("reproduction", "killed"),
        ]
        assert all(one.size >= 1000 for one in found)
        assert remove(found) == found
    assert (killed / "run" / "run.json").exists() and not (killed / "stages").exists()
    assert not (half_removed / ".stages-0a1b2c3d").exists()
    assert all((place / "stages" / "train").is_dir() for place in (kept, held, at_work))
    found = find_stale(tmp_path)
    assert [one.called for one in found] == ["held"]
    with command_lock(held / "run"):
        assert remove(found) == []
    cli.main(["clean", "--home", str(tmp_path), "--yes"])
    assert re.search(r"\n +held *\n", capsys.readouterr().out)
    assert not (held / "stages").exists() and (kept / "stages").exists()


def test_what_a_run_names_after_it_was_listed_stays(tmp_path):
    folder = make_stage(tmp_path, "train", A)
    found = find_stale(tmp_path)
    run = RunFolder(make_run(tmp_path, "new", status="running", cells=False))
    with StageStore(tmp_path / "stages").pinning():
        run.add_stage("train", A)
    assert remove(found) == [] and folder.exists()


def test_while_a_run_names_a_stage_nothing_is_taken_away(tmp_path):
    folder = make_stage(tmp_path, "train", A)
    found = find_stale(tmp_path)
    run = RunFolder(make_run(tmp_path, "new", status="running", cells=False))
    with StageStore(tmp_path / "stages").pinning():
        cleaning = threading.Thread(target=remove, args=(found,))
        cleaning.start()
        cleaning.join(0.2)
        assert cleaning.is_alive() and folder.exists()
        run.add_stage("train", A)
    cleaning.join(10)
    assert folder.exists()


def test_two_cleans_at_once_take_everything_away_once(tmp_path):
    for number in range(40):
        make_stage(tmp_path, "score", f"{number:024x}")
    make_run(tmp_path, "refused", status="refused", cells=False)
    found = [find_stale(tmp_path), find_stale(tmp_path)]
    gone: list[list[object]] = [[], []]
    threads = [threading.Thread(target=lambda n=n: gone[n].extend(remove(found[n]))) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(gone[0]) + len(gone[1]) == 41
    assert find_stale(tmp_path) == []


def test_logs_and_half_written_files_go(tmp_path):
    run = make_run(tmp_path)
    half = run / ".results.csv-abcd1234"
    half.write_text("half")
    crash = tmp_path / "crashes" / "x.log"
    crash.parent.mkdir()
    crash.write_text("Traceback")
    preparing = tmp_path / "data" / "digits" / ".preparing-xyz"
    preparing.mkdir(parents=True)
    assert set(stale(tmp_path)) == {"x.log", ".preparing-xyz"}
    age(half, 1e4)
    with FileLock(preparing.parent / ".lock"):
        assert set(stale(tmp_path)) == {"x.log", half.name}
    remove(find_stale(tmp_path))
    assert not half.exists() and not crash.exists() and not preparing.exists()


def test_nothing_behind_a_link_is_entered_or_removed_and_the_link_is_named(tmp_path):
    home, other, notes = tmp_path / "home", tmp_path / "other", tmp_path / "notes"
    kept = [make_stage(other, "train", A), make_run(other, "its", status="refused", cells=False)]
    kept += [notes / "thesis", other / "crashes" / "x.log"]
    kept[2].mkdir(parents=True)
    kept[3].parent.mkdir()
    kept[3].write_text("Traceback")
    links = {"stages/train": other / "stages" / "train", "stages/recover": notes, "crashes": other / "crashes"}
    links |= {"runs/sym": kept[1], f"stages/score/{B}": notes, "stages/retrain": home / "stages" / "unlearn"}
    for link, target in links.items():
        (home / link).parent.mkdir(parents=True, exist_ok=True)
        (home / link).symlink_to(target)
    make_stage(home, "unlearn", C)
    make_run(home, stages=(f"unlearn/{C}",))
    (home / "stages" / "shadow" / "notes").mkdir(parents=True)
    said: list[str] = []
    found = find_stale(home, say=said.append)
    assert found == [] and remove(found) == []
    assert all(path.exists() for path in kept) and all((home / link).is_symlink() for link in links)
    left = {link for link in links if any(f"{home / link} is a link to {links[link]}" in text for text in said)}
    assert left == set(links) - {"stages/recover"}  # in which there is nothing that is called as a stage is
    with pytest.raises(BadInput, match=f"runs/sym is a link that leads to {kept[1]}"):
        find_stale(home, ["sym"])


def test_a_link_in_what_is_removed_goes_alone_and_counts_nothing(tmp_path):
    big = tmp_path / "big"
    big.mkdir()
    (big / "file").write_bytes(b"x" * 100_000)
    folder = make_stage(tmp_path / "home", "train", A)
    for name in ("file", ""):
        (folder / f"link{name}").symlink_to(big / name)
    (one,) = find_stale(tmp_path / "home")
    assert 1000 < one.size < 2000
    assert remove([one]) == [one] and not folder.exists() and (big / "file").stat().st_size == 100_000


@pytest.mark.parametrize(
    ("holds", "goes"), [(".git", False), (".backup", False), ("notes", False), (".run.lock", True)]
)
def test_a_folder_below_runs_with_anything_of_a_person_in_it_is_not_half_made(tmp_path, holds, goes):
    for name in ("mine", ".mine-20261130"):
        (tmp_path / "runs" / name / holds).mkdir(parents=True)
        age(tmp_path / "runs" / name, 1e5)
    assert set(stale(tmp_path)) == ({"mine", ".mine-20261130"} if goes else set())


def test_a_person_s_folders_in_a_run_and_among_stages_stay(tmp_path):
    run = make_run(tmp_path)
    for folder in (run / ".backup-20261130", tmp_path / "stages" / "train" / ".notes-abcdefgh"):
        folder.mkdir(parents=True)
        age(folder, 1e5)
    assert stale(tmp_path) == {}
    assert (tmp_path / "stages" / "train" / ".notes-abcdefgh").exists()


def spoil(path: Path, how: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if how == "folder":
        path.mkdir()
    else:
        path.write_bytes({"binary": b"\xff\xfe\x00", "long": b"/" + b"x" * 5000, "no JSON": b"{"}[how])


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("bad/stages.txt", "binary"),
        ("bad/stages.txt", "folder"),
        ("bad/run.json", "no JSON"),
        ("elsewhere.txt", "binary"),
        ("elsewhere.txt", "folder"),
        ("elsewhere.txt", "long"),
    ],
)
def test_while_it_cannot_be_known_which_stages_are_used_all_stay_and_the_rest_goes(tmp_path, name, how):
    make_run(tmp_path, "bad")
    make_run(tmp_path, "refused", status="refused", cells=False, stages=(f"train/{A}",))
    stage = make_stage(tmp_path, "train", A)
    before = find_stale(tmp_path)
    spoil(tmp_path / "runs" / name, how)
    said: list[str] = []
    assert [one.path.name for one in find_stale(tmp_path, say=said.append)] == ["refused"]
    assert any("all stages are kept" in text and name in text for text in said)
    assert [one.path.name for one in remove(before)] == ["refused"] and stage.exists()


def test_a_damaged_run_goes_when_it_is_named(tmp_path):
    spoil(make_run(tmp_path, "bad") / "stages.txt", "binary")
    make_stage(tmp_path, "train", A)
    assert [one.path.name for one in remove(find_stale(tmp_path, ["bad"]))] == ["bad"]
    assert set(stale(tmp_path)) == {A}


def test_a_run_with_a_damaged_record_is_refused_with_a_way_out(tmp_path):
    folder = make_run(tmp_path, "bad", status="banana")
    with pytest.raises(BadInput, match=f"it is damaged .status.*remove {folder} by hand"):
        find_stale(tmp_path, ["bad"])


def test_a_running_run_without_a_process_is_damaged_and_may_go_when_named(tmp_path, monkeypatch):
    monkeypatch.setenv("LETHE_HOME", str(tmp_path))
    folder = make_run(tmp_path, "bad", status="running", command=None)
    said: list[str] = []
    assert [one.path for one in find_stale(tmp_path, ["bad"], said.append)] == [folder]
    assert "damaged or old" in said[0] and "lethe resume bad" in said[0]


def test_the_table_leaves_out_what_frees_nothing_and_shortens_hashes(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lock = tmp_path / "stages" / ".work" / f"train-{B}.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert cli.main(["clean", "--home", str(tmp_path)]) == 0
    assert "nothing to clean" in capsys.readouterr().out
    unfinished(tmp_path, key=A)
    assert cli.main(["clean", "--yes", "--home", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "train-aaaaaaaa\n" in text.replace(" ", "") and "lock" not in text and "kept" not in text
    assert not lock.exists()


def test_the_command_lists_and_removes_only_when_told_to(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    folder = make_stage(tmp_path, "train", A)
    assert cli.main(["clean", "--home", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "no run stands on it" in text and "1 kB" in text and "--yes" in text
    assert max(map(len, text.splitlines())) <= 80 and folder.exists()
    assert cli.main(["clean", "--yes", "--json", "--home", str(tmp_path)]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["removed"] and told["path"] == str(folder) and not folder.exists()
    assert cli.main(["clean", "--home", str(tmp_path)]) == 0
    assert "nothing to clean" in capsys.readouterr().out
