"""The commands around a run that is on, or was: status, resume, stop, clean."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from flower_apps.cli_options import AsJson, Home, print_rows
from flower_apps.places import resolve_home, writable_home

RunName = Annotated[str, typer.Argument(metavar="[RUN]", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands to `lethe`."""
    for command in (status, resume, stop, clean):
        app.command()(command)


def status(
    run: RunName = "",
    all_runs: Annotated[bool, typer.Option("--all", help="List the runs, the last started first.")] = False,
    most: Annotated[int, typer.Option(min=1, help="How many of them.")] = 20,
    once: Annotated[bool, typer.Option("--once", help="Say it once, where a terminal would show it live.")] = False,
    as_json: AsJson = False,
    home: Home = None,
) -> None:
    """Show what a run is doing, or what became of it; from any terminal, live until it ends or Ctrl-C leaves.

    RUN is a run folder, a name below runs/, or latest, the run that was started last (default: that of those that
    are running, or else latest).
    """
    from flower_apps.progress import table_console
    from flower_apps.status import RunWatch, overview, overview_table, run_of_interest, show

    root = resolve_home(home)
    if all_runs:
        rows = overview(root, most, _note)
        print_rows(rows, overview_table(rows, root), as_json)
        return
    folder = _find(run, root) if run else run_of_interest(root, _note)
    if as_json:
        typer.echo(json.dumps(RunWatch(folder, root).summary(), indent=1))
        return
    show(folder, root, table_console(), once=once)


def resume(
    run: RunName = "",
    jobs: Annotated[int | None, typer.Option(min=1, help="Groups of cells side by side; default: as it was.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Sites at work at once; default: as it was.")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs to share out; default: as it was.")] = None,
    evaluator: Annotated[
        str | None, typer.Option(metavar="URL", help="Evaluator that scores; '': the run itself; default: as it was.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    report: Annotated[
        bool | None, typer.Option("--report/--no-report", help="End with a report; default: as it was.")
    ] = None,
    home: Home = None,
) -> None:
    """Go on with a run that was killed, stopped or failed: the same results as if nothing had happened.

    RUN is a run folder or a name below runs/ (default: the last started that did not come to its end).
    """
    from flower_apps.resume import resume_run
    from flower_apps.status import newest_run

    root = writable_home(home)
    folder = _find(run, root) if run else newest_run(root, resumable=True, say=_note)
    print(f"going on with {folder}", file=sys.stderr)
    code = resume_run(
        folder,
        root,
        jobs=jobs,
        workers=workers,
        gpus=gpus,
        evaluator=evaluator,
        report=report,
        json_output=as_json,
        say=_note,
    )
    raise typer.Exit(code)


def stop(run: RunName = "", home: Home = None) -> None:
    """End the command that works on a run, from another terminal, and wait until nothing of it is left.

    RUN is a run folder or a name below runs/ (default: the last started that is running). Nothing is lost.
    """
    from flower_apps.status import newest_run
    from flower_apps.stop import stop_run

    root = resolve_home(home)
    stop_run(_find(run, root) if run else newest_run(root, running=True, say=_note), root, typer.echo)


def clean(
    runs: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", show_default=False)] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove it; without, it is only listed.")] = False,
    as_json: AsJson = False,
    home: Home = None,
) -> None:
    """List what nobody needs any more and how much it frees; with --yes, remove it. Safe beside running commands.

    With RUN (a run folder or a name below runs/) those runs go as a whole, with the stages that only they stand on.
    """
    from flower_apps.clean import find_stale, remove
    from flower_apps.clean_table import stale_table
    from flower_apps.progress import table_console

    root = resolve_home(home)
    found = find_stale(root, runs or [], _note)
    gone = remove(found) if yes else []
    if as_json:
        typer.echo(json.dumps([{**one.to_json(), "removed": one in gone} for one in found], indent=1))
        return
    table_console().print(stale_table(found, gone, root, removed=yes))


def _find(run: str, home: Path) -> Path:
    from evaluation.runs import find_run
    from flower_apps.status import newest_run

    return newest_run(home, say=_note) if run == "latest" else find_run(run, home)


def _note(text: str) -> None:
    print(f"lethe: note: {text}", file=sys.stderr)
