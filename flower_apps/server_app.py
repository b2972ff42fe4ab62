"""The ServerApp: meets the sites, then executes the group of cells that the run's flat settings describe."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from logging import INFO
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log

from evaluation.results import read_results
from evaluation.tables import summary_text
from flower_apps.evaluators import scoring
from flower_apps.executor import GroupExecutor
from flower_apps.places import Places, open_run_folder, resolve_home
from flower_apps.preflight import check_groups
from flower_apps.runs import RunFolder, group_id
from flower_apps.settings import GroupSettings
from flower_apps.sites import FederatedSites, partition_of
from flower_apps.tracking.follow import tracked
from partitions.errors import RunFailed, SiteLost, disk_full
from strategies.events import EventSink
from strategies.federation import Federation
from strategies.roster import meet_sites

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one group: everything it needs is in ``context.run_config`` (keys of `GroupSettings`)."""
    settings = GroupSettings.parse(context.run_config)
    check_groups([settings])
    home = resolve_home(settings.home)
    folder = open_run_folder(Path(settings.out)) if settings.out else Places(home).new_run(settings.name)
    run = RunFolder(folder)
    events = EventSink(run.events_path(group_id(settings)))
    with told(events, home):
        torch.set_num_threads(settings.threads)
        placed = settings.model_copy(update={"home": str(home), "out": str(folder)})
        run.add_group(group_id(settings), placed.to_run_config())
        events.emit("note", text=f"results: {run.path}")
        expected = settings.sites or len(partition_of(settings, home).sites)
        roster = meet_sites(grid, expected, {}, events, timeout=settings.timeout)
        federation = Federation(grid, roster, events, settings.timeout, settings.failure_policy)
        # `lethe run` follows what it starts itself
        followed = [] if settings.out else settings.tracking_names()

        def tell(text: str) -> None:
            events.emit("note", text=text)

        with scoring(settings, run.path, tell) as evaluator, tracked(followed, run.path, tell):
            GroupExecutor(settings, home, run, FederatedSites(federation), federation, events, evaluator).execute()
        if not settings.out:  # `flwr run`: nobody else shows what came of it
            log(INFO, "%s\nrun folder: %s", summary_text(read_results(run.path)), run.path)


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
