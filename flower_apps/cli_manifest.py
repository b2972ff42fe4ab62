"""`lethe experiments` and `lethe schema`: what the manifest has, and what an editor needs to know to complete it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_apps.cli_options import AsJson, ManifestFile, Sets, print_rows
from partitions.errors import BadInput


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(experiments)
    app.command()(schema)


def experiments(
    name: Annotated[str, typer.Argument(metavar="[NAME]", show_default=False)] = "",
    tags: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="Only those with this tag; repeatable.")
    ] = None,
    manifest: ManifestFile = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """List the experiments of the manifest: what each is for, its tags, groups and cells; or show one's settings."""
    from flower_apps.listing import experiment_row, experiment_table, experiments_table
    from flower_apps.manifest import default_manifest, load_manifest

    asked = load_manifest(manifest or default_manifest())
    if name:
        row = experiment_row(asked, name, sets or [])
        print_rows([row], experiment_table(row), as_json)
        return
    names = asked.choose([], tags) if tags else list(asked.experiments)
    rows = [experiment_row(asked, one, sets or []) for one in names]
    print_rows(rows, experiments_table(rows), as_json)


def schema(
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write it; default: standard output.")
    ] = None,
) -> None:
    """Print the JSON Schema of manifests: with it an editor completes keys and names, and marks what is wrong.

    It knows the methods, data sets and models that are installed. How to use it: docs/manifest.md.
    """
    from flower_apps.schema import schema_text

    if out is None:
        typer.echo(schema_text(), nl=False)
        return
    path = out.expanduser()
    if not path.parent.is_dir() or path.is_dir():
        raise BadInput("--out", str(out), "a file in a folder that exists")
    path.write_text(schema_text(), encoding="utf-8")
    typer.echo(str(path))
