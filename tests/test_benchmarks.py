"""The benchmarks measure what they say, on tiny inputs and without Flower; they are in neither package nor bundle."""

from __future__ import annotations

import io
import json
import os
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from benchmarks import __main__ as command
from benchmarks import messages
from benchmarks.lethe_run import LetheRun, read_times
from benchmarks.machine import describe_machine
from benchmarks.memory import MemoryWatch, Peak, sample
from benchmarks.messages import costs_table
from benchmarks.plain import PlainLoop
from benchmarks.report import Report
from benchmarks.stock import APP, StockRun, read_rounds, write_records
from benchmarks.study import Way, computed_seconds, ways_table
from benchmarks.training import training_speeds
from benchmarks.work import BF16_LAST, FP32, FP32_LAST, MODES, Work
from flower_apps.settings import GroupSettings

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    folder = tmp_path_factory.mktemp("benchmarks")
    return Work(home=folder / "home", folder=folder / "work", dataset="digits", cap=6, sites=2, rounds=2, repeats=1)


def _events(start: float = 100.0) -> list[dict[str, object]]:
    """A run given at 100: two rounds of 4 s, in which two sites train 3 s each; recording takes 0.5 s."""
    found: list[dict[str, object]] = [{"kind": "run-started", "time": start + 5}]
    at = start + 10.0
    found.append({"kind": "stage-started", "stage": "train", "time": at})
    for round_ in (1, 2):
        found.append({"kind": "round-started", "stage": "train", "round": round_, "time": at})
        for seconds in (3.0, 3.2):
            found.append({"kind": "reply", "stage": "train", "round": round_, "seconds": 3.0, "time": at + seconds})
        at += 4.0
        found.append({"kind": "round-finished", "stage": "train", "round": round_, "seconds": 3.5, "time": at})
    return [*found, {"kind": "stage-finished", "stage": "train", "time": at}]


def test_the_times_of_a_run_come_from_its_events() -> None:
    times = read_times(_events(), started=100.0)
    assert (times.to_first_message, times.to_first_reply, times.stage) == (10.0, 13.0, 8.0)
    assert (times.rounds, times.training, times.recording) == ((4.0, 4.0), (6.0, 6.0), (0.5, 0.5))
    assert (times.round, times.recording_share) == (4.0, 0.125)


def test_events_of_other_stages_do_not_count() -> None:
    later = [{**event, "stage": "retrain"} for event in _events(start=200.0) if "stage" in event]
    assert read_times([*_events(), *later], started=100.0) == read_times(_events(), started=100.0)


def test_the_stock_app_counts_rounds_from_round_zero(tmp_path: Path) -> None:
    times = [("run-started", 1.0), ("round", 2.0), ("round", 5.0), ("round", 7.0), ("finished", 8.0)]
    events = tmp_path / "events.jsonl"
    events.write_text("".join(json.dumps({"kind": kind, "time": at}) + "\n" for kind, at in times))
    assert read_rounds(events, started=0.5) == StockRun(1.5, (3.0, 2.0))


def test_the_plain_loop_learns_and_passes_over_every_record(work: Work) -> None:
    loop = PlainLoop(work, FP32_LAST)
    before = {name: tensor.clone() for name, tensor in loop._state.items()}
    assert loop.round() > 0
    assert loop.samples == work.samples == 2 * sum(len(own) for own in work.partition.train.values())
    assert all(not torch.equal(before[name], tensor) for name, tensor in loop._state.items())


def test_the_plain_loop_computes_the_same_in_both_memory_formats(work: Work) -> None:
    states = []
    for mode in (FP32, FP32_LAST):
        loop = PlainLoop(work, mode)
        loop.round()
        states.append(loop._state)
    assert all(torch.allclose(states[0][name], states[1][name], atol=1e-5) for name in states[0])


def test_every_mode_of_a_sites_training_is_measured(work: Work) -> None:
    speeds = training_speeds(work)
    assert [speed.mode for speed in speeds] == [mode.label for mode in MODES]
    assert all(speed.lethe > 0 and speed.plain > 0 for speed in speeds)


def test_the_stock_app_trains_the_same_network_on_the_same_inputs(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(APP))
    from stock.task import Net, load_data, train

    _write_28x28(tmp_path)
    net, loader = Net(work.classes), load_data(str(tmp_path), 0, 4)
    batch = next(iter(loader))
    assert batch["img"].shape == (4, 3, 32, 32) and batch["img"][:, :, 0].eq(-1).all()
    assert sum(p.numel() for p in net.parameters()) == work.parameters()
    before = net.fc2.weight.detach().clone()
    assert train(net, loader, 1, 0.1, torch.device("cpu")) > 0
    assert not torch.equal(before, net.fc2.weight)


def _write_28x28(folder: Path) -> None:
    images = np.full((6, 28, 28, 3), 200, dtype=np.uint8)
    np.savez(folder / "0.npz", images=images, labels=np.arange(6) % 3)


def test_the_stock_app_gets_every_sites_training_records(work: Work, tmp_path: Path) -> None:
    write_records(work, tmp_path / "records")
    for number, site in enumerate(work.partition.sites):
        with np.load(tmp_path / "records" / f"{number}.npz") as found:
            assert found["images"].shape[1:] == (8, 8, 3)
            assert np.array_equal(found["labels"], work.arrays(site)[1])


def test_the_work_is_a_valid_group_of_settings(work: Work) -> None:
    settings = GroupSettings.parse(work.settings(BF16_LAST))
    assert (settings.sites, settings.local_epochs, settings.channels_last) == (2, 2, True)


def test_the_stock_apps_keys_are_those_that_it_is_given() -> None:
    config = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    given = {"events", "records", "rounds", "local-epochs", "batch-size", "lr", "sites", "classes"}
    assert set(config) == given


def test_memory_is_that_of_a_process_and_its_children() -> None:
    with MemoryWatch(os.getpid()) as watch:
        pass
    assert watch.peak.rss > 50e6 and watch.peak.processes >= 1
    assert watch.peak.largest <= watch.peak.rss
    assert sample(2**22 + 1) == Peak()


def _report() -> Report:
    times = read_times(_events(), started=100.0)
    return Report(
        {**describe_machine(), "load_average": 0.1},
        {"rounds": 2},
        bf16=True,
        workers=2,
        plain={FP32.label: [6.0, 8.0], BF16_LAST.label: [5.0, 5.2]},
        lethe=[LetheRun(FP32.label, 20, times), LetheRun(BF16_LAST.label, 20, times)],
        stock=StockRun(9.0, (10.0, 10.0)),
        memory=[LetheRun(FP32_LAST.label, 20, times, Peak(3, 2, 1, 1))],
    )


def test_a_report_has_ratios_beside_seconds_and_says_which_aims_are_met() -> None:
    found = _report().to_json()
    first = found["lethe"][0]
    assert first["round_seconds"] == 4.0
    assert (first["over_plain_by_workers"], first["over_stock"]) == (pytest.approx(4.0 / 3.5), pytest.approx(0.4))
    assert found["stock"]["over_plain_by_workers"] == pytest.approx(10.0 / 3.5)
    assert [aim["met"] for aim in found["aims"]] == [True, False, False, True]
    json.dumps(found, allow_nan=False)


def test_a_machine_that_was_not_quiet_is_named() -> None:
    report = _report()
    report.machine["load_average"] = 3.0
    busy, varied = report.warnings()
    assert "load average was 3" in busy and FP32.label in varied


def test_without_bf16_its_aim_does_not_apply() -> None:
    report = _report()
    report.bf16 = False
    assert report.aims()[-1].met is None


def test_the_tables_hold_every_part() -> None:
    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    _report().show(console)
    text = console.export_text()
    for expected in ("Federated training, 2 workers", "stock Flower app", "0.50 (12.5%)", "Peak memory", "Aims"):
        assert expected in text


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["speed"])
    assert "training, federated, stock, memory" in capsys.readouterr().err


def test_neither_package_nor_bundle_includes_the_benchmarks() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    included = [*tool["flwr"]["app"]["fab-include"], *tool["setuptools"]["packages"]["find"]["include"]]
    assert not [pattern for pattern in included if "benchmarks" in pattern or pattern.startswith(("*", "/**"))]


def test_the_overhead_of_a_study_is_what_is_above_the_sites_own_seconds() -> None:
    events = [
        {"kind": "reply", "stage": "train", "round": 1, "seconds": 3.0},
        {"kind": "reply", "stage": "train", "round": 2, "seconds": 3.0},
        {"kind": "reply", "stage": "", "round": 0, "seconds": 2.0},
        {"kind": "round-finished", "stage": "train", "seconds": 9.0},
    ]
    computed = computed_seconds(events)
    assert computed == {"train": 6.0, "score": 2.0}
    one, two = Way(1, 1, 10.0, computed, {"train": 1}, 0.1), Way(2, 1, 5.0, computed, {"train": 1}, 0.1)
    assert (one.overhead, two.overhead) == (1.25, 1.25)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(ways_table([one, two]))
    assert "2.00" in console.export_text()


def test_a_message_costs_its_exchange_over_the_sites_and_the_ways_are_compared() -> None:
    found = {(1_000_000, "messages"): 0.4, (1_000_000, "files"): 0.1}
    table = costs_table(found, 20)
    (row,) = zip(*(column.cells for column in table.columns), strict=True)
    assert row == ("4", "20.0", "5.0", "0.25")


def test_the_keys_of_the_messages_app_are_those_that_it_is_given() -> None:
    config = tomllib.loads((messages.APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert set(config) == {"events", "sites", "sizes", "turns"}
