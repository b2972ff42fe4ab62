"""`lethe plan`: parses, has the plan made, prints it."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated

import typer

from flower_apps.cli_options import AsJson, Experiments, Home, ManifestFile, Sets, Tags, visible_gpus
from flower_apps.control import usable_cores
from flower_apps.places import resolve_home


def register(app: typer.Typer) -> None:
    """Add the command to `lethe`."""
    app.command()(plan)


def plan(
    experiments: Experiments = None,
    tags: Tags = None,
    manifest: ManifestFile = None,
    sets: Sets = None,
    jobs: Annotated[int, typer.Option(min=1, help="Flower runs side by side.")] = 1,
    workers: Annotated[int | None, typer.Option(min=1, help="Sites at work at once; default: cores / jobs.")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs to share out; default: all.")] = None,
    every_stage: Annotated[bool, typer.Option("--stages", help="List every stage.")] = False,
    as_json: AsJson = False,
    home: Home = None,
) -> None:
    """Show what experiments need before anything starts: stages, hours, disk and memory. It starts nothing.

    EXPERIMENT is a name in the manifest; without one it is quickstart, or the only one there is. What cannot fit is
    refused with exit code 2, as `lethe run` would.
    """
    from flower_apps.manifest import default_manifest, load_manifest
    from flower_apps.preflight import check_experiments

    root = resolve_home(home)
    asked = load_manifest(manifest or default_manifest())
    names = asked.choose(experiments or [], tags or [])
    groups = asked.groups(names, sets or [])
    with asked.placing(names, sets or []):
        check_experiments(groups)
        from flower_apps.cluster import look, ray_address
        from flower_apps.depot import check_depot
        from flower_apps.lanes import Means
        from flower_apps.plan import budgets_of, check_fetched, check_plan, make_plan

        for group in groups:
            check_depot(group, root, ask=False)
        check_fetched(groups, root)
        placed = [group.model_copy(update={"home": str(root)}) for group in groups]
        means = Means(jobs, workers, visible_gpus(groups) if gpus is None else gpus, usable_cores())
        address = ray_address()
        made = make_plan(placed, root, means=means, join=partial(look, address) if address else None)
        assert made is not None, "without a limit it does not give up"
        if as_json:
            typer.echo(json.dumps(made.to_json(), indent=1))
        else:
            from flower_apps.plan_table import plan_view
            from flower_apps.progress import table_console

            table_console().print(plan_view(made, every_stage=every_stage))
        check_plan(made, budgets_of(asked, names))
