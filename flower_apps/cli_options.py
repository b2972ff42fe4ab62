"""Options that several commands have, and how they print: what `flower_apps.cli` and its parts share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from flower_apps.settings import GroupSettings

Home = Annotated[Path | None, typer.Option(help="Data, cached stages and runs; default: LETHE_HOME, else ~/.lethe.")]
Depot = Annotated[
    str,
    typer.Option(
        metavar="URL",
        envvar="LETHE_DEPOT",
        show_envvar=True,
        show_default=False,
        help="Depot that homes share data and stages by: an fsspec URL, an absolute path, or none; see docs/depot.md.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Experiments = Annotated[list[str] | None, typer.Argument(metavar="[EXPERIMENT]...", show_default=False)]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", metavar="TAG", help="Also every experiment with this tag; repeatable.")
]
ManifestFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Experiments; default: ./experiments.yaml, else Lethe's own.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of every experiment; METHOD.KEY for a method's."),
]


def print_rows(rows: Sequence[dict[str, Any]], table: Any, as_json: bool) -> None:
    """Print rows as JSON, or the table that shows them."""
    if as_json:
        typer.echo(json.dumps(list(rows), indent=1))
    else:
        from flower_apps.progress import table_console

        table_console().print(table)


def visible_gpus(groups: Sequence[GroupSettings]) -> int:
    """Return the number of CUDA devices, 0 when no group could use one."""
    if all(group.device in ("cpu", "mps") for group in groups):
        return 0
    import torch

    return torch.cuda.device_count()
