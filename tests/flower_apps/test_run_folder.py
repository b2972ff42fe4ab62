"""Facts about the run folder."""

from __future__ import annotations

from flower_apps.runs import RunFolder, stages_of


def test_a_run_names_its_stages_once_and_survives_a_line_cut_short(tmp_path):
    run = RunFolder(tmp_path)
    run.add_stage("train", "a" * 24)
    run.add_stage("train", "a" * 24)
    with (tmp_path / "stages.txt").open("a") as file:
        file.write("score/bbb")  # killed while writing
    RunFolder(tmp_path).add_stage("score", "c" * 24)
    assert stages_of(tmp_path) == {f"train/{'a' * 24}", f"score/{'c' * 24}"}
    assert stages_of(tmp_path / "none") == set()
