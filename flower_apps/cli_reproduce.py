"""`lethe reproduce`: its options."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from flower_apps.cli_options import AsJson, Home
from flower_apps.places import writable_home


def register(app: typer.Typer) -> None:
    """Add the command to `lethe`."""
    app.command()(reproduce)


def reproduce(
    row: Annotated[str, typer.Argument(metavar="[RUN:CELL[:METRIC]]", show_default=False)] = "",
    run: Annotated[str, typer.Option(metavar="RUN", help="Run folder, a name below runs/, or latest.")] = "",
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="KEY=VALUE", help="Columns of results.csv that single out one cell."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="Largest difference that counts as equal, relative to values above 1.")
    ] = 0.0,
    workers: Annotated[int, typer.Option(min=0, help="Sites at work at once; 0: as many as the run had.")] = 0,
    everything: Annotated[bool, typer.Option("--all", help="Show identical values and clock times too.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the new stages (weights and rounds).")] = False,
    as_json: AsJson = False,
    home: Home = None,
) -> None:
    """Compute one row of a kept results.csv again, from nothing, and compare. Exit code 1 when it is not equal.

    The original is trained again too. Clock times are not judged.
    """
    from flower_apps.progress import table_console
    from flower_apps.reproduce import changes_table, choose, comparison_table
    from flower_apps.reproduce import reproduce as compute
    from flower_apps.reproduce_run import by_command

    root = writable_home(home)
    chosen = choose(row, run, where or [], root)
    found = compute(chosen, root, by_command(workers), tolerance=tolerance, keep=keep)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=1))
    else:
        console = table_console()
        console.print(comparison_table(found, everything=everything))
        if (changes := changes_table(found)) is not None:
            console.print(changes)
        console.print(f"run folder: {found.again}", soft_wrap=True, highlight=False)
        console.print(found.verdict, soft_wrap=True, highlight=False)
    raise typer.Exit(0 if found.equal else 1)
