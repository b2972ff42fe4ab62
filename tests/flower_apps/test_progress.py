"""Facts about what a person sees while runs are on."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from flower_apps.progress import Progress, StageState


@pytest.fixture
def screen():
    return io.StringIO()


def plain(screen: io.StringIO) -> Progress:
    return Progress(Console(file=screen, width=100))


def rendered(progress: Progress, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as capture:
        console.print(progress._render())
    return [line.rstrip() for line in capture.get().splitlines()]


def stage(listen, *, rounds=4, label="original", status="ok", stop_after=None, seconds=10.0, sites=2):
    """Tell a stage whose every round takes `seconds`; it ends now."""
    place = {"stage": "train", "label": label}
    start = time.time() - (stop_after or rounds) * seconds
    listen({"kind": "stage-started", "time": start, "rounds": rounds, "round": 0, **place})
    for round_ in range(1, (stop_after or rounds) + 1):
        begin = start + (round_ - 1) * seconds
        figures = {"loss": 1 / round_, "metric": 0.5}
        listen({"kind": "round-started", "time": begin, "round": round_, "rounds": rounds, **place})
        for site in range(sites):
            listen({"kind": "reply", "time": begin + 1, "round": round_, "site": f"site-{site}", **place})
        listen({"kind": "round-finished", "time": begin + seconds, "round": round_, **figures, **place})
    if stop_after is None:
        listen({"kind": "stage-finished", "time": start + rounds * seconds, "status": status, **place})


def test_time_left_follows_the_pace_of_the_rounds_so_far():
    state = StageState("", "original", rounds=20, done=10, started=0.0, round_started=0.0)
    assert state.left(0.0) is None  # resumed at round 10: no pace yet
    state.done, state.round_started = 12, 40.0  # two rounds in 40 s
    assert state.left(40.0) == pytest.approx(160.0)
    assert state.left(45.0) == pytest.approx(155.0)
    state.done = 20
    assert state.left(50.0) is None


def test_sites_that_have_replied_count_into_the_share():
    state = StageState("", "original", rounds=4, done=1, started=0.0, round_started=0.0, expected=2)
    assert state.share == 0.25
    state.replied.add("site-0")
    assert state.share == 0.375


def test_without_a_terminal_there_are_plain_lines_with_the_time(screen):
    with plain(screen) as progress:
        stage(progress.listener())
    lines = screen.getvalue().splitlines()
    assert all(line[2] == line[5] == ":" for line in lines)
    assert [line[9:] for line in lines] == [
        "original: started, 4 rounds",
        "original: round 1/4, loss 1.000, metric 0.500, 0:10, 0:30 left",
        "original: round 2/4, loss 0.500, metric 0.500, 0:20, 0:20 left",
        "original: round 3/4, loss 0.333, metric 0.500, 0:30, 0:10 left",
        "original: 4 rounds, loss 0.250, metric 0.500, 0:40, done",
    ]


def test_the_metric_has_the_name_that_the_task_gives_it(screen):
    with (progress := plain(screen)):
        listen = progress.listener()
        listen({"kind": "task", "metric": "accuracy", "time": 0})
        stage(listen)
    assert "accuracy 0.500" in screen.getvalue() and "metric" not in screen.getvalue()


def test_a_stage_of_one_step_is_one_line(screen):
    with (progress := plain(screen)):
        stage(progress.listener(), rounds=1, label="score ga")
    assert [text.partition(" ")[2] for text in screen.getvalue().splitlines()] == [
        "score ga: loss 1.000, metric 0.500, 0:10, done"
    ]


def test_fast_rounds_do_not_flood_a_log_file(screen):
    with plain(screen) as progress:
        stage(progress.listener(), rounds=200, seconds=0.1)
    assert len(screen.getvalue().splitlines()) <= 5


def test_a_live_stage_shows_round_sites_loss_elapsed_and_time_left(screen):
    progress = plain(screen)
    listen = progress.listener()
    stage(listen, stop_after=2)
    listen(
        {"kind": "round-started", "time": time.time(), "round": 3, "rounds": 4, "stage": "train", "label": "original"}
    )
    listen({"kind": "reply", "time": time.time(), "round": 3, "site": "site-0", "stage": "train", "label": "original"})
    (line,) = rendered(progress, 100)
    assert "original" in line and "3/4" in line and "1/2 sites" in line and "loss 0.500" in line and "0:20  0:" in line


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_a_long_name_gives_way_and_the_figures_stay(screen, width):
    progress = Progress(Console(file=screen, width=width))
    stage(progress.listener(), label="unlearn federaser client:patient-1,patient-3 with a long name", stop_after=2)
    (line,) = rendered(progress, width)
    assert len(line) <= width and line.endswith("left") and "unlearn" in line


def test_finished_stages_collapse_and_live_ones_go_with_the_run(screen):
    progress = Progress(Console(file=screen, width=100, force_terminal=True))
    listen = progress.listener()
    stage(listen)
    assert "✓ " in screen.getvalue() and "original: 4 rounds, loss 0.250" in screen.getvalue()
    assert not any("original" in line for line in rendered(progress, 100))
    stage(listen, label="ga", stop_after=1)
    listen({"kind": "failed", "time": 1.0, "reason": "site-1 raised [ValueError]"})
    assert "failed: site-1 raised [ValueError]" in screen.getvalue()
    assert rendered(progress, 100) == []


def test_a_diverged_stage_says_so(screen):
    with plain(screen) as progress:
        stage(progress.listener(), status="diverged")
    assert screen.getvalue().splitlines()[-1].endswith("diverged")


def test_runs_side_by_side_are_told_apart(screen):
    with plain(screen) as progress:
        stage(progress.listener("seed 0"))
        stage(progress.listener("seed 1"))
    assert "seed 0 · original: started" in screen.getvalue() and "seed 1 · original: started" in screen.getvalue()


def test_cached_stages_and_notes_are_lines(screen):
    with plain(screen) as progress:
        listen = progress.listener()
        listen({"kind": "stage-cached", "time": 0.0, "stage": "train", "label": "original"})
        listen({"kind": "note", "time": 0.0, "text": "sites: [a], b"})
    assert [line[9:] for line in screen.getvalue().splitlines()] == ["original: already there", "sites: [a], b"]


def test_answers_that_belong_to_no_stage_are_no_line(screen):
    progress = plain(screen)
    progress.listener()({"kind": "reply", "time": time.time(), "round": 0, "stage": "", "label": "", "site": "site-1"})
    assert screen.getvalue() == ""


def test_what_the_command_itself_does_is_shown_until_it_does_something_else(screen):
    progress = Progress(Console(file=io.StringIO(), force_terminal=True, width=100))
    progress.now("writing the report")
    text = "\n".join(rendered(progress, 100))
    assert "writing the report" not in text  # what is over at once does not flicker
    shown = io.StringIO()
    Console(file=shown, width=100).print(progress.lines(time.time() + 5))
    assert shown.getvalue().strip() == "writing the report 0:05"
    progress.now("")
    shown = io.StringIO()
    Console(file=shown, width=100).print(progress.lines(time.time() + 5))
    assert shown.getvalue().strip() == ""
    plain(screen).now("writing the report: files")
    assert screen.getvalue().rstrip().endswith("writing the report: files")


def test_an_unknown_kind_of_event_is_ignored(screen):
    with plain(screen) as progress:
        progress.listener()({"kind": "something-new", "time": 0.0})
    assert screen.getvalue() == ""


@pytest.mark.parametrize("terminal", [False, True])
def test_a_newline_in_a_note_or_a_failure_breaks_no_line(screen, terminal):
    progress = Progress(Console(file=screen, width=100, force_terminal=terminal))
    progress.say("one\ntwo")
    progress.take("a", {"kind": "note", "text": "three\r\nfour"})
    progress.take("a", {"kind": "failed", "reason": "five\u2028six"})
    told = screen.getvalue().splitlines()
    assert len(told) == 3
    assert all(text in line for text, line in zip(("one two", "three", "five six"), told, strict=True))
