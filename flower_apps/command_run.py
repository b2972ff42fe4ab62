"""`lethe run`: reads what the cache has, submits the rest to Flower, shows progress, prints the table."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from evaluation.results import read_results
from evaluation.tables import attacks_table, summary_json, summary_table
from flower_apps.control import Scalar
from flower_apps.evaluators import scoring
from flower_apps.executor import GroupExecutor
from flower_apps.launcher import Launcher
from flower_apps.plan import Plan, check_plan, make_plan
from flower_apps.progress import Progress, table_console
from flower_apps.runs import RunFolder, group_id
from flower_apps.settings import GroupSettings
from flower_apps.sites import LocalSites, partition_of
from flower_apps.workshop import MissingStage
from partitions.errors import BadInput, RunFailed
from strategies.events import EventSink

LONGEST_PLAN = 60.0
"""Seconds that a run spends on its plan at most."""


def run_experiments(
    groups: Sequence[GroupSettings],
    *,
    home: Path,
    out: Path,
    workers: int,
    jobs: int,
    gpus: int,
    json_output: bool,
    fresh: bool,
    manifest: Path | None,
    report: bool = False,
    budgets: Mapping[str, Mapping[str, float]] | None = None,
) -> int:
    """Run groups of cells and print how every method compares with the retrained model.

    Parameters
    ----------
    groups : sequence of GroupSettings
        What to run; placement keys are set here.
    home, out : Path
        LETHE_HOME and the run folder.
    workers, jobs, gpus : int
        Sites at work at once in a group; groups at once; GPUs that the sites of a group share (real or logical).
    json_output : bool
        Print the summary as JSON instead of a table.
    fresh : bool
        Compute again what the cache has.
    manifest : Path or None
        Copied into the run folder.
    report : bool
        Write the run up at its end, below the run folder.
    budgets : mapping of str to mapping of str to float, optional
        By experiment; see `flower_apps.plan.check_plan`.

    Returns
    -------
    int
        0 when every group finished, 1 otherwise.

    Raises
    ------
    BadInput
        Before anything starts, for what cannot fit.
    """
    placed = [
        group.model_copy(
            update={"home": str(home), "out": str(out), "workers": workers, "jobs": jobs, "fresh": fresh or group.fresh}
        )
        for group in groups
    ]
    for group in placed:
        partition_of(group, home)  # refuses an impossible split, and fetches and prepares once, before anything starts
    run = RunFolder(out)
    plan = _plan(placed, home, run, jobs, workers, gpus, budgets or {})
    if manifest is not None and manifest.is_file():
        shutil.copy(manifest, out / "experiments.yaml")
    with Progress() as progress:
        if plan is not None:
            progress.say(plan.line(), "dim")
            progress.expect(plan.left(), side_by_side=min(jobs, max(plan.needed().runs, 1)))
        failures = _run_all(placed, home, run, jobs, gpus, progress)
    _show(out, json_output)
    if report and (out / "results.csv").exists():
        _write_up(out)
    for text in failures:
        print(f"lethe: {text}", file=sys.stderr)
    return 1 if failures else 0


def _plan(
    groups: Sequence[GroupSettings],
    home: Path,
    run: RunFolder,
    jobs: int,
    workers: int,
    gpus: int,
    budgets: Mapping[str, Mapping[str, float]],
) -> Plan | None:
    """Refuse what cannot fit, and keep the plan in the run folder; None where making it would take long."""
    since = run.created if any(group.fresh for group in groups) else 0.0
    try:
        plan = make_plan(groups, home, jobs=jobs, workers=workers, gpus=gpus, fresh_since=since, limit=LONGEST_PLAN)
    except (BadInput, RunFailed):
        raise
    except Exception as error:  # a component of another package that no plan can be made with can still be run
        print(f"lethe: there is no plan of this run: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    if plan is not None:
        check_plan(plan, budgets)
        plan.write(run.path)
    return plan


def _run_all(
    groups: Sequence[GroupSettings], home: Path, run: RunFolder, jobs: int, gpus: int, progress: Progress
) -> list[str]:
    """Run every group, `jobs` at once, and return a line for each that failed."""
    cancel = threading.Event()
    failures: list[str] = []
    progress.say("looking into the cache", "dim")
    missing = [group for group in groups if not _read_cached(group, home, run, progress)]
    if not missing:
        return failures
    progress.say("starting Flower and Ray", "dim")
    with ExitStack() as stack:
        launcher = stack.enter_context(Launcher(home))
        pool = stack.enter_context(ThreadPoolExecutor(jobs, thread_name_prefix="group"))
        stack.callback(cancel.set)
        names = _names(missing)
        futures = {
            pool.submit(_submit, launcher, group, home, run, gpus, progress, names[number], cancel): names[number]
            for number, group in enumerate(missing)
        }
        for future, name in futures.items():
            try:
                future.result()
            except RunFailed as error:
                failures.append(f"{name}: {error}" if name else str(error))
    return failures


def _read_cached(group: GroupSettings, home: Path, run: RunFolder, progress: Progress) -> bool:
    """Write a group's results from the cache alone; tell whether that was possible."""
    run.add_group(group_id(group), group.to_run_config())
    try:
        with scoring(group, run.path, progress.say) as evaluator:
            GroupExecutor(group, home, run, LocalSites(group, home), None, EventSink(None), evaluator).execute()
    except MissingStage:
        return False
    progress.say(f"{group.name}: everything is in the cache")
    return True


def _submit(
    launcher: Launcher,
    group: GroupSettings,
    home: Path,
    run: RunFolder,
    gpus: int,
    progress: Progress,
    name: str,
    cancel: threading.Event,
) -> None:
    sites = len(partition_of(group, home).sites)
    result = launcher.run(
        group.to_run_config(),
        resources(group, sites, gpus),
        run.events_path(group_id(group)),
        progress.listener(name),
        cancel,
    )
    result.raise_for_status()


def resources(group: GroupSettings, sites: int, gpus: int) -> dict[str, Scalar]:
    """Return what Ray is asked for: ``workers`` sites at once, each with its threads and its share of a GPU."""
    workers = max(1, min(group.workers, sites))
    asked: dict[str, Scalar] = {
        "num-supernodes": sites,
        "client-resources-num-cpus": group.threads,
        "init-args-num-cpus": workers * group.threads,
    }
    if gpus:
        sharing = -(-workers // gpus)
        asked |= {"client-resources-num-gpus": 1 / sharing, "init-args-num-gpus": gpus}
    return asked


def _names(groups: Sequence[GroupSettings]) -> list[str]:
    """Return a name for each group in progress and errors; one group needs none."""
    if len(groups) == 1:
        return [""]
    return [f"{group.name} {group_id(group)[:4]}" for group in groups]


def _write_up(out: Path) -> None:
    """Write the report, in place of one that an earlier run into the same folder left."""
    from evaluation.report.write import REPORT, write_report  # matplotlib takes a second

    target = out / REPORT
    print("writing the report", file=sys.stderr)
    shutil.rmtree(target, ignore_errors=True)
    write_report(out, target)
    print(f"report: {target / 'report.html'}", file=sys.stderr)


def _show(out: Path, json_output: bool) -> None:
    if not (out / "results.csv").exists():
        print(f"no results yet; run folder: {out}", file=sys.stderr)
        return
    results = read_results(out / "results.csv")
    if json_output:
        print(json.dumps({"run": str(out), **summary_json(results)}, indent=1))
        return
    console = table_console()
    console.print(summary_table(results, console.width))
    if (attacks := attacks_table(results)) is not None:
        console.print(attacks)
    console.print(f"run folder: {out}", soft_wrap=True, highlight=False)
