"""`lethe run`: reads what the cache has, submits the rest to Flower, shows progress, prints the table."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from evaluation.files import write_text
from evaluation.results import read_results
from evaluation.tables import attacks_table, summary_json, summary_table
from flower_apps.cluster import Cluster, join_cluster, ray_address
from flower_apps.control import usable_cores
from flower_apps.depot import check_depot, depot_url
from flower_apps.evaluators import scoring
from flower_apps.executor import GroupExecutor
from flower_apps.gpu_memory import check_memory
from flower_apps.labels import labels_of
from flower_apps.lanes import Lanes, Means
from flower_apps.lifetime import Lifetime
from flower_apps.places import run_name
from flower_apps.plan import Plan, check_plan, make_plan
from flower_apps.progress import Progress, table_console
from flower_apps.runs import MANIFEST, PLAN, RunFolder, group_id
from flower_apps.schedule import expected_work
from flower_apps.settings import GroupSettings
from flower_apps.sites import LocalSites, give_data, partition_of
from flower_apps.tracking.follow import tracked
from flower_apps.watch import OnEvent
from flower_apps.workshop import MissingStage
from flower_apps.write_up import REPORT, write_up
from partitions.errors import BadInput, RunFailed, naming
from strategies.events import EventSink

Join = Callable[[], Cluster]
LONGEST_PLAN = 60.0
"""Seconds that a run spends on its plan at most."""


def run_experiments(
    groups: Sequence[GroupSettings],
    *,
    home: Path,
    out: Path,
    workers: int | None,
    jobs: int,
    gpus: int,
    json_output: bool,
    fresh: bool,
    manifest: Path | None,
    report: bool = False,
    budgets: Mapping[str, Mapping[str, float]] | None = None,
    experiments: Sequence[str] = (),
    sets: Sequence[str] = (),
    show: bool = True,
    resumed: bool = False,
) -> int:
    """Run groups of cells and print how every method compares with the retrained model.

    Parameters
    ----------
    groups : sequence of GroupSettings
        What to run; placement keys are set here.
    home, out : Path
        LETHE_HOME and the run folder.
    workers : int or None
        Sites at work at once in a Flower run; None shares out the cores.
    jobs, gpus : int
        Flower runs side by side at most; GPUs that they share (real or logical).
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
    experiments, sets : sequences of str
        What the groups came from, for the record.
    show : bool
        Print the results at all.
    resumed : bool
        Whether it goes on with the command before it: what that was to compute again is not computed once more.

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
        group.model_copy(update={"home": str(home), "out": str(out), "jobs": jobs, "fresh": fresh or group.fresh})
        for group in groups
    ]
    placed = list({group_id(group): group for group in placed}.values())
    asked = {"experiments": list(experiments), "sets": list(sets), "manifest": str(manifest or ""), "report": report}
    asked |= {"jobs": jobs, "workers": workers, "gpus": gpus, "fresh": any(group.fresh for group in placed)}
    asked |= {"via": "lethe run", "evaluator": next((group.evaluator for group in groups), "")}
    run = RunFolder(out)
    means = Means(jobs, workers, gpus, usable_cores()).sharing(placed)
    join = _joining(ray_address(), placed, home)
    with Lifetime(run, asked, placed, resumed=resumed) as lifetime:
        if manifest is not None and manifest.is_file():
            write_text(out / MANIFEST, manifest.read_text(encoding="utf-8"))
        for group in placed:
            check_depot(group, home)
            with naming(group.name):
                split = partition_of(group, home)  # refuses an impossible split, and fetches and prepares once
            give_data(group.dataset, home, group.cap, depot_url(group))
            run.keep_data(group_id(group), group.dataset, split.fingerprint)
        plan = _plan(placed, home, run, means, budgets or {}, join)
        followed = dict.fromkeys(name for group in placed for name in group.tracking_names())
        try:
            with Progress() as progress, tracked(list(followed), out, progress.say):
                if plan is not None:
                    progress.say(plan.line(), "dim")
                    progress.expect(plan.left(), side_by_side=plan.jobs)
                _run_all(placed, home, run, means, progress, lifetime, plan, join)
        except KeyboardInterrupt:
            going_on = f"`lethe resume {run_name(out, home)}` goes on with it"
            print(f"nothing is lost: {going_on}; run folder: {out}", file=sys.stderr)
            raise
        if show:
            _show(out, json_output)
        if report and (out / "results.csv").exists():
            lifetime.doing("writing the report")
            _write_up(out)
        for text in lifetime.failures:
            print(f"lethe: {' '.join(text.split())}", file=sys.stderr)
        return lifetime.exit_code


def _joining(address: str, groups: Sequence[GroupSettings], home: Path) -> Join | None:
    """Return what looks at the Ray cluster, once and only when it is called; None to work on this machine."""

    @cache
    def join() -> Cluster:
        print(f"looking at the Ray cluster {address}", file=sys.stderr)
        return join_cluster(address, groups, home)

    return join if address else None


def _plan(
    groups: Sequence[GroupSettings],
    home: Path,
    run: RunFolder,
    means: Means,
    budgets: Mapping[str, Mapping[str, float]],
    join: Join | None = None,
) -> Plan | None:
    """Refuse what cannot fit, and keep the plan in the run folder; None where making it would take long."""
    (run.path / PLAN).unlink(missing_ok=True)  # of an earlier command
    since = run.fresh_since if any(group.fresh for group in groups) else 0.0
    try:
        plan = make_plan(groups, home, means=means, join=join, fresh_since=since, limit=LONGEST_PLAN)
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
    groups: Sequence[GroupSettings],
    home: Path,
    run: RunFolder,
    means: Means,
    progress: Progress,
    lifetime: Lifetime,
    plan: Plan | None,
    join: Join | None,
) -> None:
    """Run every group that the cache does not have; one that fails ends no other."""
    progress.say("looking into the cache", "dim")
    names = _names(groups)
    missing = [
        group for group in groups if not _read_cached(group, names[group_id(group)], home, run, progress, lifetime)
    ]
    if not missing:
        return
    if join is not None:
        means = means.on(join())
    means = replace(means, at_once=check_memory(missing, means, progress.say))
    progress.say("starting Flower and Ray", "dim")

    def ended(group: GroupSettings, reason: str, log: Path) -> None:
        if reason:
            lifetime.failed(group, names[group_id(group)], reason, log)
        else:
            lifetime.completed(group)

    def listener(group: GroupSettings) -> OnEvent:
        return progress.listener(names[group_id(group)])

    planned = dict(zip([found.group for found in plan.rehearsed], plan.group_seconds(), strict=True)) if plan else {}

    def expected(group: GroupSettings) -> float:
        return planned.get(group_id(group)) or roughly_expected(group)

    Lanes(missing, means, expected, listener, ended, progress.say).run(home)


def roughly_expected(group: GroupSettings) -> float:
    """Return roughly how long a group takes, where there was no time for a plan."""
    partition = partition_of(group, Path(group.home))
    return expected_work(group, sum(len(records) for records in partition.train.values()))


def _read_cached(
    group: GroupSettings, label: str, home: Path, run: RunFolder, progress: Progress, lifetime: Lifetime
) -> bool:
    """Write a group's results from the cache alone; tell whether nothing is left to be done for it."""
    try:
        with scoring(group, run.path, progress.say) as evaluator:
            GroupExecutor(group, home, run, LocalSites(group, home), None, _Notes(progress.say), evaluator).execute()
    except MissingStage:
        return False
    except RunFailed as error:
        lifetime.failed(group, label, str(error))
        return True
    lifetime.completed(group)
    progress.say(f"{label or group.name}: everything is in the cache")
    return True


class _Notes(EventSink):
    """Passes notes on and drops all other events."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(None)
        self._say = say

    def emit(self, kind: str, **fields: Any) -> None:
        """Pass a note on."""
        if kind == "note":
            self._say(str(fields["text"]))


def _names(groups: Sequence[GroupSettings]) -> dict[str, str]:
    """Return a name for each group in progress and errors, by its id; one group needs none."""
    if len(groups) == 1:
        return {group_id(groups[0]): ""}
    return labels_of({group_id(group): group.to_run_config() for group in groups})


def _write_up(out: Path) -> None:
    """Write the report, in place of one that an earlier run into the same folder left."""
    target = out / REPORT
    shutil.rmtree(target, ignore_errors=True)
    write_up(out, target)
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
