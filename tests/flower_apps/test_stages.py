"""Facts about the stage cache."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from pathlib import Path

import pytest
import torch

from flower_apps.stages import Stage, StageStore, StageWork, stage_key
from partitions.errors import RunFailed
from unlearning.state import State


def a_state(value: float = 1.0) -> State:
    return State({"w": torch.full((2, 3), value)}, {"running_var": torch.ones(2)}, {"n": torch.tensor(3)})


def test_the_key_depends_on_every_part_and_not_on_their_order() -> None:
    assert stage_key({"a": 1, "b": 2}) == stage_key({"b": 2, "a": 1})
    assert stage_key({"a": 1, "b": 2}) != stage_key({"a": 1, "b": 3})


def test_a_stage_is_computed_once_and_then_found(tmp_path: Path) -> None:
    store = StageStore(tmp_path)
    with store.claim("train", {"a": 1}) as work:
        assert isinstance(work, StageWork)
        work.commit(state=a_state(), cost={"seconds": 2.0})
    with store.claim("train", {"a": 1}) as again:
        assert isinstance(again, Stage)
        assert again.cost == {"seconds": 2.0}
        assert again.state.sha256() == a_state().sha256()
        assert again.state.int_buffers["n"].shape == ()


def test_an_interrupted_stage_is_not_visible_and_keeps_its_work(tmp_path: Path) -> None:
    store = StageStore(tmp_path)
    with pytest.raises(RuntimeError), store.claim("train", {"a": 1}) as work:
        assert isinstance(work, StageWork)
        (work.folder / "half").write_text("done")
        raise RuntimeError
    assert store.find("train", stage_key({"a": 1})) is None
    with store.claim("train", {"a": 1}) as work:
        assert isinstance(work, StageWork)
        assert (work.folder / "half").read_text() == "done"


def test_a_record_cut_short_counts_as_absent(tmp_path: Path) -> None:
    store = StageStore(tmp_path)
    with store.claim("score", {"a": 1}) as work:
        assert isinstance(work, StageWork)
        stage = work.commit()
    (stage.folder / "stage.json").write_text('{"kind": "sc')
    assert store.find("score", stage.key) is None


@pytest.mark.parametrize("text", ["[]", "{}", "3", '{"created": "x", "files": {}}', '{"created": 9e9, "files": []}'])
def test_a_record_that_is_something_else_counts_as_absent(tmp_path: Path, text: str) -> None:
    store = StageStore(tmp_path)
    with store.claim("score", {"a": 1}) as work:
        assert isinstance(work, StageWork)
        stage = work.commit()
    (stage.folder / "stage.json").write_text(text)
    assert store.find("score", stage.key) is None
    (stage.folder / "stage.json").write_bytes(b"\xff\xfe\x00")
    assert store.find("score", stage.key) is None


@pytest.mark.parametrize("name", ["model.safetensors", "table.parquet", "history/round-0001.safetensors"])
@pytest.mark.parametrize("gone", [True, False])
def test_a_stage_with_a_file_gone_or_cut_short_is_computed_again(tmp_path: Path, name: str, gone: bool) -> None:
    """A history with a round less would make FedEraser replay fewer rounds and cache that as its result."""
    store = StageStore(tmp_path)
    for _ in range(2):
        with store.claim("train", {"a": 1}) as work:
            assert isinstance(work, StageWork)
            work.history.mkdir()
            (work.history / "round-0001.safetensors").write_text("a round")
            (work.folder / "table.parquet").write_text("a table")
            stage = work.commit(state=a_state(), keep_history=True)
        found = store.find("train", stage.key)
        assert found is not None
        assert found.state.sha256() == a_state().sha256()
        if gone:
            (stage.folder / name).unlink()
        else:
            (stage.folder / name).write_text("a")
        assert store.find("train", stage.key) is None


def test_weights_with_a_changed_bit_are_refused(tmp_path: Path) -> None:
    store = StageStore(tmp_path)
    with store.claim("train", {"a": 1}) as work:
        assert isinstance(work, StageWork)
        stage = work.commit(state=a_state())
    held = bytearray(stage.model_path.read_bytes())
    held[-1] ^= 1
    stage.model_path.write_bytes(held)
    found = store.find("train", stage.key)
    assert found is not None
    with pytest.raises(RunFailed, match="damaged; remove"):
        _ = found.state


def test_fresh_ignores_older_stages_and_older_half_done_work(tmp_path: Path) -> None:
    old = StageStore(tmp_path)
    with old.claim("train", {"a": 1}) as work:
        assert isinstance(work, StageWork)
        work.commit(state=a_state(1.0))
    with pytest.raises(RuntimeError), old.claim("train", {"a": 2}) as work:
        assert isinstance(work, StageWork)
        (work.folder / "half").touch()
        raise RuntimeError
    time.sleep(0.05)
    fresh = StageStore(tmp_path, fresh_since=time.time())
    with fresh.claim("train", {"a": 1}) as work:
        assert isinstance(work, StageWork)
        work.commit(state=a_state(2.0))
    with fresh.claim("train", {"a": 2}) as work:
        assert isinstance(work, StageWork)
        assert not (work.folder / "half").exists()
    found = StageStore(tmp_path).find("train", stage_key({"a": 1}))
    assert found is not None
    assert found.state.sha256() == a_state(2.0).sha256()


def test_the_history_is_dropped_unless_kept(tmp_path: Path) -> None:
    store = StageStore(tmp_path)
    for keep in (True, False):
        with store.claim("train", {"keep": keep}) as work:
            assert isinstance(work, StageWork)
            work.history.mkdir()
            (work.history / "round-0001.safetensors").touch()
            stage = work.commit(keep_history=keep)
        assert stage.history.exists() is keep


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="trian"):
        StageStore(tmp_path).find("trian", "abc")


def _compute(root: Path) -> None:
    with StageStore(root).claim("train", {"a": 1}) as work:
        if isinstance(work, StageWork):
            time.sleep(0.3)
            with (root / "log").open("a") as log:
                log.write("computed\n")
            work.commit()


def test_two_processes_compute_a_stage_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=_compute, args=(tmp_path,)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
        assert process.exitcode == 0
    assert (tmp_path / "log").read_text() == "computed\n"


def test_the_record_says_what_determined_the_result(tmp_path: Path) -> None:
    with StageStore(tmp_path).claim("train", {"lr": 0.01}) as work:
        assert isinstance(work, StageWork)
        stage = work.commit(state=a_state(), status="diverged", reason="loss not finite")
    record = json.loads((stage.folder / "stage.json").read_text())
    assert record["parts"] == {"lr": 0.01}
    assert (record["status"], record["reason"]) == ("diverged", "loss not finite")
    assert record["sha256"] == a_state().sha256()


def test_who_comes_second_waits_until_the_first_has_done_with_it(tmp_path: Path) -> None:
    store, order, told = StageStore(tmp_path), list[str](), list[str]()

    def second() -> None:
        with store.alone("shadow", {"a": 1}, told.append):
            order.append("second")

    with store.alone("shadow", {"a": 1}):
        other = threading.Thread(target=second)
        other.start()
        while not told:
            time.sleep(0.01)
        with store.alone("shadow", {"a": 2}):
            order.append("first")
    other.join(10)
    assert order == ["first", "second"]
    assert "waiting" in told[0]
