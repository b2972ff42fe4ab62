"""Facts about predictions: packing, budgets, refusals, rates, and the commands that show them."""

from __future__ import annotations

import io
import json
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from flower_apps import command_run
from flower_apps.cli import main
from flower_apps.durations import in_words
from flower_apps.lanes import Means
from flower_apps.plan import Plan, Step, check_plan, packed
from flower_apps.plan_table import plan_view
from flower_apps.planned import PLANNED, PlannedStage, Rehearsed, Work
from flower_apps.progress import Progress
from flower_apps.rates import Rates, rates_of, read_measured
from flower_apps.runs import PLAN, RunFolder
from flower_apps.settings import GroupSettings
from partitions.errors import BadInput

MODEL = 4_000_000


def stage(kind: str = "train", key: str = "a", **more: Any) -> PlannedStage:
    known = {"kind": kind, "label": f"{kind} {key}", "key": key, "group": "g1", "cached": False}
    return PlannedStage(**{**known, **more})


def group(name: str, *stages: PlannedStage, original: str = "a") -> Rehearsed:
    return Rehearsed(
        group=name,
        stages=stages,
        original=original,
        submissions=2,
        parameters=MODEL // 4,
        model_bytes=MODEL,
        sites=4,
        threads=1,
        network="cnn in 32-true on cpu",
        precision="32-true",
        device="cpu",
        held_models=8,
    )


def plan_of(*steps: Step, groups: tuple[Rehearsed, ...] = (), **more: Any) -> Plan:
    groups = groups or (group("g1", *(step.stage for step in steps)),)
    known = {
        "steps": steps,
        "rehearsed": groups,
        "names": {one.group: f"experiment-{one.group}" for one in groups},
        "rates": {one.group: Rates(train=1e-3) for one in groups},
        "home": Path("/somewhere"),
        "jobs": 1,
        "workers": 2,
        "cores": 2,
        "disk_free": 10**12,
        "memory_there": 10**11,
    }
    return Plan(**{**known, **more})


def test_the_longest_start_first() -> None:
    assert packed([1, 2, 3, 4], 2) == 5
    assert packed([5, 1, 1, 1], 3) == 5
    assert packed([], 2) == 0


def test_durations_are_said_in_the_unit_that_fits() -> None:
    assert [in_words(seconds) for seconds in (40, 720, 9000, 260_000)] == ["40 s", "12 min", "2.5 h", "3.0 days"]


def test_runs_side_by_side_take_as_long_as_the_longest() -> None:
    groups = group("g1", stage(key="a")), group("g2", stage(key="b", group="g2"), original="b")
    steps = Step(stage(key="a"), ("g1",), 100.0), Step(stage(key="b", group="g2"), ("g2",), 300.0)
    one, two = (plan_of(*steps, groups=groups, jobs=jobs, cores=8).needed() for jobs in (1, 2))
    assert (one.runs, two.runs) == (2, 2)
    assert one.wall > 400
    assert 300 < two.wall < 400
    assert two.memory == 2 * one.memory
    crowded = plan_of(*steps, groups=groups, jobs=2, cores=2).needed()
    assert crowded.wall == pytest.approx(2 * two.wall), "four workers on two cores"


def test_what_is_cached_costs_nothing_and_needs_no_flower() -> None:
    needed = plan_of(Step(stage(cached=True), ("g1",), 0.0)).needed()
    assert (needed.runs, needed.computing, needed.disk_peak, needed.memory) == (0, 0, 0, 0)
    assert needed.wall < 5


def test_what_stays_and_what_passes_are_told_apart() -> None:
    steps = [
        Step(stage("train", "a", kept=100, passing=50), ("g1",), 1.0),
        Step(stage("shadow", "b", kept=0, passing=500), ("g1",), 1.0),
        Step(stage("recover", "c", kept=10, passing=20), ("g1",), 1.0),
    ]
    needed = plan_of(*steps).needed()
    assert (needed.disk_kept, needed.disk_peak) == (110, 110 + 500 + 50)
    assert needed.models == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"disk_free": 10**9}, ("disk", "2.0 GB", "1.0 GB are free", "history-half", "another LETHE_HOME")),
        ({"memory_there": 10**9}, ("memory", "this machine has 1.0 GB", "--workers, now 2")),
    ],
)
def test_what_cannot_fit_is_refused_with_the_numbers(more: dict[str, int], said: tuple[str, ...]) -> None:
    plan = plan_of(Step(stage(kept=2 * 10**9), ("g1",), 1.0), **more)
    with pytest.raises(BadInput) as refused:
        check_plan(plan)
    for text in said:
        assert text in str(refused.value)


@pytest.mark.parametrize(
    ("budget", "key"), [({"hours": 0.5}, "hours"), ({"disk-gb": 1}, "disk-gb"), ({"memory-gb": 1}, "memory-gb")]
)
def test_a_budget_is_of_its_own_experiment(budget: dict[str, float], key: str) -> None:
    plan = plan_of(Step(stage(kept=2 * 10**9), ("g1",), 3600.0))
    check_plan(plan, {"experiment-g1": {"hours": 2, "disk-gb": 3, "memory-gb": 50}})
    with pytest.raises(BadInput, match=rf"experiment-g1\.budget\.{key}"):
        check_plan(plan, {"experiment-g1": budget})


def test_all_that_is_too_much_is_named_in_one_line_and_numbers_are_not_quoted() -> None:
    plan = plan_of(Step(stage(kept=2 * 10**9), ("g1",), 3600.0), disk_free=10**9, memory_there=10**9)
    with pytest.raises(BadInput) as refused:
        check_plan(plan, {"experiment-g1": {"hours": 0.5, "disk-gb": 1, "memory-gb": 50}})
    text = str(refused.value)
    assert text.startswith("disk=2.0 GB: allowed is what fits: 1.0 GB are free at /somewhere; also too much: memory=")
    assert "too much: budget.hours=1.00, allowed is at most 0.5, the budget of experiment-g1;" in text
    assert "too much: budget.disk-gb=2.00, allowed is at most 1, the budget of experiment-g1;" in text
    assert "'" not in text and "\n" not in text and "memory-gb" not in text
    assert text.count("or raise the budget") == 2 and "another LETHE_HOME" in text


@pytest.mark.parametrize("over", [1e-5, 0.004, 0.3])
def test_a_number_has_the_digits_that_tell_it_from_its_limit(over: float) -> None:
    plan = plan_of(Step(stage(), ("g1",), 1800.0))
    limit = plan.needed().wall / 3600 - over
    with pytest.raises(BadInput) as refused:
        check_plan(plan, {"experiment-g1": {"hours": limit}})
    assert limit < float(str(refused.value.value)) == pytest.approx(limit + over, abs=0.005)


def test_the_line_of_a_run_says_whether_its_time_is_a_guess() -> None:
    steps = (Step(stage("train", "a"), ("g1",), 30.0), Step(stage("train", "b", group="g2"), ("g2",), 30.0))
    groups = (group("g1", steps[0].stage), group("g2", steps[1].stage))

    def line(one: int, two: int, *chosen: Step) -> str:
        rates = {"g1": Rates(train=1e-3, stages=one), "g2": Rates(train=1e-3, stages=two)}
        return plan_of(*(chosen or steps), groups=groups, rates=rates).line()

    assert line(0, 0).endswith(" s (a guess: no stage like these was measured yet)")
    assert line(3, 0).endswith(" s (partly a guess; see `lethe plan`)")
    assert line(3, 1).endswith(" s")
    there = replace(steps[0], stage=replace(steps[0].stage, cached=True), seconds=0.0)
    assert line(0, 3, there, steps[1]).endswith(" s"), "what is in the cache needs no guess"
    assert line(0, 0, there).endswith("all of them cached")


def write_stage(store: Path, key: str, *, method: str = "", kind: str = "train", **more: Any) -> None:
    about = {"task": "classification", "model": "cnn", "threads": 1, "device": "cpu"}
    record = {
        "kind": kind,
        "parts": {**about, "precision": "32-true", "channels-last": True, **({"method": method} if method else {})},
        "cost": {"seconds": 20.0, "client_seconds": 30.0, "client_examples": 1000, "bytes_down": 8 * MODEL},
        "conditions": {"host": socket.gethostname(), "workers": 2},
        "rounds": 2,
        "created": time.time(),
        "dataset": "lung-ct",
    }
    folder = store / kind / key
    folder.mkdir(parents=True)
    (folder / "stage.json").write_text(json.dumps(record | more))


def rates(store: Path, **changes: Any) -> Rates:
    settings = GroupSettings.parse({"methods": "ga,fedquit"} | changes)
    found = read_measured(store)
    about = {"precision": "32-true", "device": "cpu", "parameters": MODEL // 4, "model_bytes": MODEL}
    return rates_of(settings, **about, measured=found)  # type: ignore[arg-type]


def test_rates_come_from_stages_of_the_same_kind(tmp_path: Path) -> None:
    write_stage(tmp_path, "a")
    write_stage(
        tmp_path, "b", kind="unlearn", method="ga", cost={"seconds": 9.0, "client_seconds": 9.0, "client_examples": 100}
    )
    found = rates(tmp_path)
    assert found.train == pytest.approx(0.03)
    assert found.methods == {"ga": pytest.approx(0.09)}
    assert found.message == pytest.approx((20 - 30 / 2) / 8)
    assert found.basis == "1 stage measured, the last today"
    for other in ({"threads": 2}, {"channels-last": False}, {"model": "resnet18"}):
        assert "guess" in rates(tmp_path, **other).basis


def test_the_same_data_set_and_host_go_first(tmp_path: Path) -> None:
    slow = {"cost": {"seconds": 90.0, "client_seconds": 90.0, "client_examples": 100}}
    write_stage(tmp_path, "here")
    write_stage(tmp_path, "elsewhere", conditions={"host": "other", "workers": 2}, **slow)
    write_stage(tmp_path, "other-data", dataset="pathmnist", **slow)
    assert rates(tmp_path).train == pytest.approx(0.03)
    assert rates(tmp_path, dataset="pathmnist").train == pytest.approx(0.9)


def test_damaged_records_are_left_out(tmp_path: Path) -> None:
    write_stage(tmp_path, "a")
    for number, text in enumerate(("", "[]", '{"parts": 3}', '{"kind": "train"}')):
        folder = tmp_path / "train" / str(number)
        folder.mkdir()
        (folder / "stage.json").write_text(text)
    assert len(read_measured(tmp_path)) == 1


def test_a_round_takes_as_long_as_its_largest_site() -> None:
    found = Rates(train=0.01, message=0.0)
    even = stage(work=Work(({"a": 100, "b": 100},)))
    skewed = stage(work=Work(({"a": 190, "b": 10},)))
    assert found.seconds(even, workers=2) == pytest.approx(1.0)
    assert found.seconds(skewed, workers=2) == pytest.approx(1.9)
    assert found.seconds(even, workers=1) == found.seconds(skewed, workers=1) == pytest.approx(2.0)
    assert found.seconds(replace(even, cached=True), workers=1) == 0


def test_a_plan_reads_at_80_columns() -> None:
    steps = [
        Step(stage("train", "a", kept=10**9), ("g1", "g2"), 4000.0),
        Step(stage("shadow", "b", label="shadow:0/8@client:a-hospital-with-a-long-name > class:12"), ("g1",), 900.0),
        Step(stage("score", f"{PLANNED}c"), ("g1",), 1.0),
        Step(stage("recover", "d", cached=True), ("g1",), 0.0),
    ]
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as capture:
        console.print(plan_view(plan_of(*steps), every_stage=True))
    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert [line.split()[1:5] for line in lines if line.startswith("all")] == [["4", "1", "1", "3"]]
    assert "1 of the models left are for the membership attacks" in text
    assert "1 Flower run of 1 group" in text
    assert "cached" in text


def test_a_data_set_that_is_not_here_is_named_with_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "quickstart", "--home", str(tmp_path)]) == 2
    assert "lethe data fetch lung-ct" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.fixture
def digits(tmp_path: Path) -> Callable[..., list[str]]:
    manifest = tmp_path / "experiments.yaml"
    manifest.write_text(
        "tiny: {dataset: digits, cap: 20, split: iid, sites: 2, rounds: 2, requests: 'client:site-1', methods: ga}\n"
    )
    return lambda *more: ["plan", "tiny", "--manifest", str(manifest), "--home", str(tmp_path / "home"), *more]


def test_the_command_tells_programs_the_same(
    digits: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(digits("--json", "--workers", "1")) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["totals"]["stages"] == len(told["stages"]) == 15 - 2
    assert told["totals"]["flower_runs"] == 1
    assert told["totals"]["wall_seconds"] > 0
    assert told["basis"]


def test_the_command_refuses_what_cannot_fit(
    digits: Callable[..., list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(digits()) == 0
    capsys.readouterr()
    monkeypatch.setattr("flower_apps.plan.shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    assert main(digits()) == 2
    said = capsys.readouterr()
    assert said.err.startswith("lethe: disk=")
    assert said.err.count("\n") == 1
    assert "Stages" in said.out, "the plan is shown all the same"


def test_without_a_plan_that_of_an_earlier_command_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder(tmp_path / "run")
    (run.path / PLAN).write_text("{}")
    monkeypatch.setattr(command_run, "make_plan", lambda *given, **named: None)
    assert command_run._plan([GroupSettings()], tmp_path, run, Means(), {}) is None
    assert not (run.path / PLAN).exists()


def test_a_run_that_cannot_be_planned_is_run_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def odd(*given: Any, **named: Any) -> Plan:
        raise KeyError("a probe of another package")

    monkeypatch.setattr(command_run, "make_plan", odd)
    settings = GroupSettings.parse({"dataset": "digits"})
    assert command_run._plan([settings], tmp_path, RunFolder(tmp_path / "run"), Means(), {}) is None
    assert "no plan of this run" in capsys.readouterr().err


def test_progress_says_how_far_the_whole_is() -> None:
    screen = io.StringIO()
    progress = Progress(Console(file=screen, width=100))
    progress.expect([("original", 100.0), ("ga client:a", 50.0)])
    listen = progress.listener()
    listen({"kind": "stage-started", "stage": "train", "label": "original", "rounds": 2, "round": 0, "time": 1000.0})
    listen({"kind": "stage-finished", "stage": "train", "label": "original", "status": "ok", "time": 1200.0})
    assert "1 of 2 stages, about 1:40 left" in screen.getvalue(), "it went half as fast as predicted"
    listen({"kind": "stage-started", "stage": "unlearn", "label": "ga client:a", "rounds": 1, "round": 0, "time": 1200})
    listen({"kind": "stage-finished", "stage": "unlearn", "label": "ga client:a", "status": "ok", "time": 1300.0})
    assert "left" not in screen.getvalue().splitlines()[-1]


def test_a_cluster_is_looked_at_once_and_only_when_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    monkeypatch.setattr(command_run, "join_cluster", lambda *given: looked.append(given) or "cluster")
    assert command_run._joining("", [], tmp_path) is None
    join = command_run._joining("head:6379", [], tmp_path)
    assert join is not None and not looked
    assert (join(), join()) == ("cluster", "cluster")
    assert looked == [("head:6379", [], tmp_path)]


def test_rounds_that_ask_the_same_are_counted_at_once() -> None:
    many, few = {"a": 3, "b": 4}, {"a": 3}
    work = Work((many, few, many, many), done=1)
    assert work.alike == [(few, 1), (many, 2)]
    assert (work.examples, work.messages) == (17, 5)


@pytest.mark.parametrize(
    ("depot", "says"),
    [("{home}/stages", "a folder apart from LETHE_HOME"), ("nope://x", "a URL that fsspec knows")],
)
def test_a_plan_refuses_the_depots_that_a_run_refuses_and_makes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], depot: str, says: str
) -> None:
    (tmp_path / "mine.yaml").write_text("a: {dataset: digits, split: iid, sites: 2, requests: [client:site-0]}")
    home = tmp_path / "home"
    asked = ["plan", "a", "--manifest", str(tmp_path / "mine.yaml"), "--home", str(home)]
    assert main([*asked, "--set", f"depot={depot.format(home=home)}"]) == 2
    assert says in capsys.readouterr().err
    assert not list(home.glob("stages/lethe-depot.json"))


@pytest.mark.parametrize(("names", "said"), [(("s", "s"), "train a · lr=1"), (("s", "t"), "train a · s lr=1")])
def test_stages_of_several_groups_say_whose_they_are(names: tuple[str, str], said: str) -> None:
    groups = group("g1", stage(key="a")), group("g2", stage(key="b", group="g2"), original="b")
    steps = [
        Step(stage(key="a"), ("g1",), 100.0),
        Step(stage(key="b", group="g2"), ("g2",), 90.0),
        Step(stage(key="c"), ("g1", "g2"), 80.0),
    ]
    labels = {"g1": f"{names[0]} lr=1", "g2": f"{names[1]} lr=2"}
    plan = plan_of(*steps, groups=groups, names=dict(zip(("g1", "g2"), names, strict=True)), labels=labels)
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as captured:
        console.print(plan_view(plan))
    lines = [" ".join(line.split()) for line in captured.get().splitlines()]
    assert any(line.startswith(f"train {said} 1") for line in lines)
    assert any(line.startswith("train train c 2") for line in lines), "it is of both"
