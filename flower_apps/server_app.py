"""The ServerApp: meets the sites, then executes the group that the run's settings describe, or a lane of groups."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR, INFO
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log

from evaluation.results import read_results
from evaluation.tables import summary_text
from flower_apps.depot import depot_url
from flower_apps.evaluators import scoring
from flower_apps.executor import GroupExecutor
from flower_apps.lane import Lane, LaneSink
from flower_apps.lifetime import flower_run
from flower_apps.places import Places, open_run_folder, resolve_home
from flower_apps.preflight import check_groups
from flower_apps.runs import RunFolder, group_id
from flower_apps.settings import GroupSettings
from flower_apps.sites import FederatedSites, give_data, partition_of
from flower_apps.tracking.follow import tracked
from partitions.errors import RunFailed, SiteLost, disk_full
from strategies.events import EventSink
from strategies.federation import Federation
from strategies.handover import Handover
from strategies.roster import Roster, meet_sites

app = ServerApp()

SWITCH = 0.0005
"""Seconds that a thread may compute before another gets its turn: in a simulation the threads that hand messages to the
workers live in this process, and what is decoded or scored meanwhile is not to keep them waiting."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the group in ``context.run_config`` (keys of `GroupSettings`), or those that its ``lane`` names."""
    settings = GroupSettings.parse(context.run_config)
    home = resolve_home(settings.home)
    torch.set_num_threads(settings.threads)
    sys.setswitchinterval(SWITCH)
    if settings.lane:
        _run_lane(grid, settings, home)
        return
    check_groups([settings])
    folder = open_run_folder(Path(settings.out)) if settings.out else Places(home).new_run(settings.name)
    run = RunFolder(folder)
    placed = settings.model_copy(update={"home": str(home), "out": str(folder)})
    path = run.events_path(group_id(settings))
    with flower_run(run, placed, context.run_id), told(events := EventSink(path), home):
        events.emit("note", text=f"results: {run.path}")
        # `lethe run` follows what it starts itself
        followed = [] if settings.out else settings.tracking_names()
        with tracked(followed, run.path, lambda text: events.emit("note", text=text)):
            _execute(settings, home, run, grid, _meet(grid, settings, home, events), events)
        if not settings.out:  # `flwr run`: nobody else shows what came of it
            log(INFO, "%s\nrun folder: %s", summary_text(read_results(run.path)), run.path)


def _run_lane(grid: Grid, settings: GroupSettings, home: Path) -> None:
    """Execute groups that share their sites; what fails in one is told and the next begins, unless a site was lost."""
    lane, run = Lane(Path(settings.lane)), RunFolder(Path(settings.out))
    handover = Handover.here()  # of all groups: what one of them left is removed by the next
    events = EventSink(lane.events_path)
    with told(events, home):
        roster = _meet(grid, settings, home, events)
        for name in lane.groups():
            asked = GroupSettings.parse(run.record()["groups"][name])
            group = asked.model_copy(update={"workers": settings.workers, "jobs": settings.jobs})
            sink = LaneSink(run.events_path(name), events, name)
            try:
                with told(sink, home):
                    check_groups([group])
                    _execute(group, home, run, grid, roster, sink, handover)
            except SiteLost:
                raise
            except Exception as error:
                log(ERROR, "group %s failed", name, exc_info=error)
            finally:
                sink.close()


def _meet(grid: Grid, settings: GroupSettings, home: Path, events: EventSink) -> Roster:
    if not settings.out:  # `flwr run`; `lethe run` has given it
        give_data(settings.dataset, home, settings.cap, depot_url(settings))
    expected = settings.sites or len(partition_of(settings, home).sites)
    return meet_sites(grid, expected, {}, events, timeout=settings.timeout)


def _execute(
    settings: GroupSettings,
    home: Path,
    run: RunFolder,
    grid: Grid,
    roster: Roster,
    events: EventSink,
    handover: Handover | None = None,
) -> None:
    federation = Federation(grid, roster, events, settings.timeout, settings.failure_policy, handover)
    with scoring(settings, run.path, lambda text: events.emit("note", text=text)) as evaluator:
        GroupExecutor(settings, home, run, FederatedSites(federation), federation, events, evaluator).execute()


@contextmanager
def told(events: EventSink, home: Path) -> Iterator[None]:
    """Write how the run ended into its event file: Flower's own status comes late and without a reason."""
    events.emit("run-started")
    try:
        yield
    except BaseException as error:
        kind = type(error).__name__
        if disk_full(error):
            error = RunFailed(f"no space left on the disk of {home}: free some; the same command goes on from here")
        resumable = isinstance(error, SiteLost)
        where = traceback.format_exc()
        events.emit("failed", reason=str(error).strip() or kind, error=kind, resumable=resumable, traceback=where)
        raise
    events.emit("finished")
