import json
import os
import stat

import pandas as pd
import pytest
import torch
from fake_sites import start_state

from partitions.errors import BadInput, RunFailed
from strategies.history import History, HistoryWriter, RoundRecord, SiteRecord, predict_bytes, shrink
from unlearning.state import State, Update, update_of


def moved(state: State, by: float) -> State:
    return State(
        {n: t + by for n, t in state.params.items()},
        {n: t + by for n, t in state.float_buffers.items()},
        state.int_buffers,
    )


def record(round_: int, **changes) -> RoundRecord:
    sites = {
        "site-a": SiteRecord(
            weight=0.25, num_examples=10, num_batches=4, examples=20, loss=1.0, metric=0.5, seconds=2.0
        ),
        "site-b": SiteRecord(
            weight=0.75, num_examples=30, num_batches=12, examples=60, loss=3.0, metric=0.7, seconds=6.0
        ),
        "site-c": SiteRecord(status="failed", reason="ValueError: no"),
    }
    return RoundRecord(**{"round": round_, "lr": 0.1, "seconds": 1.5, "sites": sites, **changes})


def write(folder, rounds: int = 3, **kwargs) -> HistoryWriter:
    writer, state = HistoryWriter(folder, **kwargs), start_state()
    for round_ in range(1, rounds + 1):
        after = moved(state, 0.5)
        updates = {site: update_of(moved(state, i), state) for i, site in enumerate(["site-a", "site-b"])}
        writer.write(record(round_), state, after, updates)
        state = after
    return writer


def test_a_round_whose_bytes_changed_on_the_disk_is_refused_with_the_remedy(tmp_path):
    path = write(tmp_path / "history", 1).read().path(1)
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 1
    path.write_bytes(damaged)
    history = History(tmp_path / "history")
    assert history.last_complete_round == 1
    with pytest.raises(RunFailed, match=r"round-0001\.safetensors is damaged .* remove"):
        [history.after(1), history.before(1), history.update(1, "site-a"), history.update(1, "site-b")]


def test_states_and_updates_come_back_bit_for_bit(tmp_path):
    history = write(tmp_path).read()
    assert history.before(1).sha256() == start_state().sha256()
    assert history.after(1).sha256() == history.before(2).sha256()
    assert torch.equal(history.update(2, "site-b").params["w"], torch.ones(3))
    assert history.after(3).int_buffers["bn.num_batches_tracked"].shape == ()


def test_names_come_back_in_their_order(tmp_path):
    history = write(tmp_path).read()
    assert list(history.after(1).params) == list(history.update(1, "site-a").params) == ["w", "scale"]


def test_a_record_survives_json_with_its_nan_losses():
    back = RoundRecord.from_json(record(4).to_json())
    assert back.participants == ("site-a", "site-b")
    assert back.sites["site-b"] == record(4).sites["site-b"]
    assert back.sites["site-c"].loss != back.sites["site-c"].loss
    assert json.loads(record(4).to_json())["format"] == 1


def test_a_round_has_weighted_means_and_summed_costs():
    assert record(1).loss == pytest.approx(0.25 * 1 + 0.75 * 3)
    assert record(1).metric == pytest.approx(0.65)
    cost = record(1, disk_read=7).cost
    assert (cost.seconds, cost.client_seconds) == (1.5, 8.0)
    assert (cost.client_examples, cost.gradient_steps, cost.disk_read) == (80, 16, 7)
    assert record(1).notes == ("round 1: site-c failed: ValueError: no",)


def test_the_cost_of_a_history_is_the_sum_over_its_rounds(tmp_path):
    assert write(tmp_path).read().cost.seconds == pytest.approx(4.5)


def test_an_absent_folder_is_a_history_of_no_rounds(tmp_path):
    history = History(tmp_path / "nowhere")
    assert history.last_complete_round == 0 and list(history.rounds) == [] and history.frame().empty
    with pytest.raises(RunFailed, match="round 1 is not in"):
        history.before(1)


@pytest.mark.parametrize("left", [0, 4, 300, 1000])
def test_a_truncated_newest_round_falls_back_to_the_one_before_and_says_so(tmp_path, left):
    path = write(tmp_path).read().path(3)
    os.truncate(path, left)
    history = History(tmp_path)
    assert history.last_complete_round == 2
    assert "round-0003" in history.notes[0] and "round 2" in history.notes[0]


def test_a_round_being_written_is_not_seen(tmp_path, monkeypatch):
    writer = write(tmp_path, rounds=1)

    def dies(tensors, path, **kwargs):
        path.write_bytes(b"half")
        assert not History(tmp_path).path(2).exists()
        raise OSError("disk full")

    monkeypatch.setattr("strategies.history.save_file", dies)
    with pytest.raises(OSError):
        writer.write(record(2), start_state(), start_state(), {})
    assert History(tmp_path).last_complete_round == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-0001.safetensors"]


def test_files_can_be_read_by_others(tmp_path):
    path = write(tmp_path, rounds=1).read().path(1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_round_is_read_only_where_it_is_asked_for(tmp_path):
    history = write(tmp_path).read()
    assert history.bytes_read == 0
    history.update(2, "site-a")
    assert history.bytes_read == (3 + 1 + 2 + 2) * 4


def test_a_site_without_an_update_is_refused(tmp_path):
    with pytest.raises(RunFailed, match="site-c has no update in round 1"):
        write(tmp_path).read().update(1, "site-c")


def test_a_site_may_have_any_name(tmp_path):
    writer, state = HistoryWriter(tmp_path), start_state()
    names = ["St. Mary's / ward 2", "St. Mary's", "Zürich"]
    found = {name: SiteRecord(weight=1 / 3, num_examples=1) for name in names}
    updates = {name: update_of(moved(state, i + 1.0), state) for i, name in enumerate(names)}
    writer.write(record(1, sites=found), state, state, updates)
    for i, name in enumerate(names):
        assert torch.equal(writer.read().update(1, name).params["scale"], torch.tensor(i + 1.0))


def test_a_round_that_changes_nothing_can_be_written(tmp_path):
    state = start_state()
    HistoryWriter(tmp_path).write(record(1), state, state, {})
    assert History(tmp_path).after(1).sha256() == state.sha256()


def test_fp64_states_stay_fp64(tmp_path):
    state = State({"w": torch.tensor([1 / 3], dtype=torch.float64)}, {}, {})
    HistoryWriter(tmp_path).write(record(1), state, state, {})
    assert torch.equal(History(tmp_path).after(1).params["w"], state.params["w"])


def test_without_updates_it_still_resumes_but_has_no_update(tmp_path):
    history = write(tmp_path, keep_updates=False).read()
    assert history.last_complete_round == 3 and history.record(1).participants == ("site-a", "site-b")
    with pytest.raises(RunFailed, match="not kept"):
        history.update(1, "site-a")


def test_the_server_optimisers_memory_is_kept(tmp_path):
    moments = {"first": {"w": torch.tensor([1.0, 2.0], dtype=torch.float64)}, "second": {}}
    HistoryWriter(tmp_path).write(record(1), start_state(), start_state(), {}, moments)
    history = History(tmp_path)
    assert torch.equal(history.server(1, "first")["w"], moments["first"]["w"])
    assert history.server(1, "second") == {}


def test_the_table_has_a_row_for_each_round_and_site(tmp_path):
    path = write(tmp_path).read().write_table()
    table = pd.read_parquet(path)
    assert path.name == "rounds.parquet" and len(table) == 9
    assert {"round", "site", "num_examples", "loss", "metric", "seconds", "bytes_down", "bytes_up", "device"} <= set(
        table
    )
    failed = table[(table.site == "site-c") & (table["round"] == 2)].iloc[0]
    assert (failed.status, failed.reason) == ("failed", "ValueError: no")


def test_the_predicted_size_covers_the_real_one_closely(tmp_path):
    state = State({"w": torch.randn(200_000)}, {"m": torch.zeros(10)}, {"n": torch.tensor(1)})
    writer = HistoryWriter(tmp_path)
    update = Update({"w": torch.randn(200_000)}, {"m": torch.zeros(10)})
    path = writer.write(record(1), state, moved(state, 1), {"site-a": update, "site-b": update})
    real = path.stat().st_size
    assert real <= predict_bytes(state, 2, 1) <= 1.05 * real


def test_a_history_that_does_not_fit_is_refused_before_it_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("strategies.history.shutil.disk_usage", lambda path: _Usage())
    with pytest.raises(BadInput, match="LETHE_HOME"):
        HistoryWriter(tmp_path / "not" / "yet").check_space(start_state(), sites=20, rounds=1000)
    HistoryWriter(tmp_path).check_space(start_state(), sites=2, rounds=1)


class _Usage:
    free = 1_000_000


def test_a_completed_history_can_be_thinned(tmp_path):
    write(tmp_path)
    freed = shrink(tmp_path, keep_every=2)
    history = History(tmp_path)
    assert freed > 0 and history.last_complete_round == 3
    assert history.update(3, "site-a") and history.after(2).sha256() == history.before(3).sha256()
    with pytest.raises(RunFailed, match="not kept"):
        history.update(2, "site-a")


def test_half_precision_is_for_updates_only_and_reads_back_in_fp32(tmp_path):
    states = [write(tmp_path).read().after(r).sha256() for r in (1, 2, 3)]
    shrink(tmp_path, half=True)
    history = History(tmp_path)
    assert [history.after(r).sha256() for r in (1, 2, 3)] == states
    assert history.update(2, "site-b").params["w"].dtype == torch.float32
    assert torch.equal(history.update(2, "site-b").params["w"], torch.ones(3))


def test_without_updates_a_state_is_kept_once_and_what_a_round_began_with_is_still_there(tmp_path):
    whole, lean = write(tmp_path / "whole").read(), write(tmp_path / "lean", keep_updates=False).read()
    for round_ in (1, 2, 3):
        assert lean.before(round_).sha256() == whole.before(round_).sha256()
        assert lean.after(round_).sha256() == whole.after(round_).sha256()
    assert lean.path(2).stat().st_size < lean.path(1).stat().st_size < whole.path(1).stat().st_size
