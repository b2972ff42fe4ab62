"""The `lethe` command. Parses, calls the room that does the work, prints. Heavy imports happen inside the commands."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import click
import typer

from flower_apps import cli_life, cli_manifest, cli_plan, cli_reproduce
from flower_apps.cli_options import AsJson, Depot, Experiments, Home, ManifestFile, Sets, Tags, print_rows, visible_gpus
from flower_apps.interrupts import INTERRUPTED
from flower_apps.places import Places, file_name, open_run_folder, outside_checkout, resolve_home, writable_home
from partitions.errors import BadInput, RunFailed, disk_full, naming, unknown_name

app = typer.Typer(
    help="Federated unlearning for medical imaging: run the methods, score them against retraining.",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="List, fetch and check data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")
evaluator_app = typer.Typer(help="Score the models of any number of runs on a server.", no_args_is_help=True)
app.add_typer(evaluator_app, name="evaluator")
for part in (cli_manifest, cli_plan, cli_life, cli_reproduce):
    part.register(app)


@app.command()
def run(
    experiments: Experiments = None,
    tags: Tags = None,
    manifest: ManifestFile = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: a new one below the home's runs/.")] = None,
    sets: Sets = None,
    jobs: Annotated[int, typer.Option(min=1, help="Flower runs side by side.")] = 1,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Sites at work at once in each; default: cores / jobs.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs to share out, real or logical; default: all.")] = None,
    evaluator: Annotated[
        str, typer.Option(metavar="URL", help="Evaluator that scores, see `lethe evaluator`; default: the run itself.")
    ] = "",
    depot: Depot = "",
    track: Annotated[
        str, typer.Option(metavar="TOOLS", help="Follow the run in tensorboard, mlflow or both (comma separated).")
    ] = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute again what the cache has.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    report: Annotated[
        bool | None, typer.Option("--report/--no-report", help="End with a report; default: as the experiment says.")
    ] = None,
    home: Home = None,
) -> None:
    """Run experiments: train, forget, retrain, score, and print how each method compares with retraining.

    EXPERIMENT is a name in the manifest; without one it is quickstart, or the only one there is.
    """
    from flower_apps.manifest import default_manifest, load_manifest
    from flower_apps.preflight import check_experiments

    root = writable_home(home)
    path = manifest or default_manifest()
    asked = load_manifest(path)
    names = asked.choose(experiments or [], tags or [])
    flags = {key: value for key, value in (("evaluator", evaluator), ("depot", depot), ("track", track)) if value}
    groups = asked.groups(names, sets or [], flags)
    with asked.placing(names, sets or [], flags):
        check_experiments(groups)
        from flower_apps.command_run import run_experiments
        from flower_apps.plan import budgets_of

        with _run_folder(root, out, "+".join(names)) as folder:
            code = run_experiments(
                groups,
                home=root,
                out=folder,
                workers=workers,
                jobs=jobs,
                gpus=visible_gpus(groups) if gpus is None else gpus,
                json_output=as_json,
                fresh=fresh,
                manifest=path,
                budgets=budgets_of(asked, names),
                report=any(asked.get(name).report for name in names) if report is None else report,
                experiments=names,
                sets=sets or [],
            )
    raise typer.Exit(code)


@app.command()
def methods(
    name: Annotated[str, typer.Argument(metavar="[NAME]", show_default=False)] = "", as_json: AsJson = False
) -> None:
    """List the unlearning methods: what each can forget, what it needs and where it comes from; or tell all of one."""
    from flower_apps.explain import method_page, method_rows, methods_table

    rows = method_rows()
    if not name:
        print_rows(rows, methods_table(rows), as_json)
        return
    chosen = [row for row in rows if row["name"] == name]
    if not chosen:
        raise unknown_name("method", name, [row["name"] for row in rows])
    from flower_apps.progress import table_console

    page = method_page(chosen[0], table_console().width)
    typer.echo(json.dumps(chosen[0], indent=1) if as_json else page)


@data_app.command("list")
def data_list(as_json: AsJson = False, home: Home = None) -> None:
    """List the data sets, their licences and whether they are here."""
    from flower_apps.explain import dataset_rows, datasets_table

    rows = dataset_rows(resolve_home(home))
    print_rows(rows, datasets_table(rows), as_json)


@data_app.command("fetch")
def data_fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...")], depot: Depot = "", home: Home = None
) -> None:
    """Fetch data sets by name into the data folder."""
    from flower_apps.depot import check_depot
    from flower_apps.settings import GroupSettings
    from partitions.catalogue import DATASETS
    from partitions.loading import fetch_data

    root = writable_home(home)
    url = check_depot(GroupSettings.parse({"depot": depot}), root)
    for dataset in [DATASETS.get(name) for name in names]:
        fetch_data(dataset, root, url, typer.echo)
        typer.echo(f"{dataset.name}: here")


@data_app.command("check")
def data_check(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...")] = None,
    home: Home = None,
) -> None:
    """Check fetched data sets: files, checksums, constant images. Exit code 1 when something is wrong.

    Without a NAME it checks every set that is here.
    """
    from flower_apps.explain import is_fetched
    from partitions.catalogue import DATASETS

    root = resolve_home(home)
    chosen = names or [name for name in DATASETS.names() if is_fetched(name, root)]
    if not chosen:
        typer.echo(f"no data set is in {root / 'data'} yet; fetch one with `lethe data fetch NAME`")
    problems = {dataset.name: dataset.check(root) for dataset in [DATASETS.get(name) for name in chosen]}
    for name, found in problems.items():
        typer.echo("\n".join(f"{name}: {problem}" for problem in found or ["ok"]))
    raise typer.Exit(1 if any(problems.values()) else 0)


@evaluator_app.command("serve")
def evaluator_serve(
    host: Annotated[str, typer.Option(help="Address to listen on; another than loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free one.")] = 8799,
    store: Annotated[
        str,
        typer.Option(
            metavar="URL",
            envvar="LETHE_EVALUATOR_STORE",
            show_envvar=True,
            show_default=False,
            help="SQLAlchemy URL of the database; default: evaluator/evaluator.sqlite below the home.",
        ),
    ] = "",
    folder: Annotated[
        Path | None, typer.Option(help="Folder for tables and weights; default: evaluator below the home.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token; default: LETHE_EVALUATOR_TOKEN.")
    ] = None,
    max_upload: Annotated[int, typer.Option(min=1, metavar="MIB", help="Largest table or weights taken.")] = 512,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Processes that score.")] = 1,
    home: Home = None,
) -> None:
    """Serve the evaluator until Ctrl-C: runs post models to it, it scores them and keeps the results.

    The token comes from a file or LETHE_EVALUATOR_TOKEN, never from the command line, which everyone can read.
    """
    from flower_apps.evaluators import serve

    serve(
        host=host,
        port=port,
        store=store,
        folder=folder,
        token_file=token_file,
        max_upload=max_upload,
        workers=workers,
        home=resolve_home(home),
        say=typer.echo,
    )


@app.command()
def partition(
    experiment: Annotated[str, typer.Argument(metavar="[EXPERIMENT]", show_default=False)] = "",
    manifest: ManifestFile = None,
    sets: Sets = None,
    out: Annotated[
        Path | None, typer.Option(metavar="PNG", help="Heat map; default: below the home's partitions/.")
    ] = None,
    as_json: AsJson = False,
    home: Home = None,
) -> None:
    """Show how an experiment's records lie on its sites: a table and a heat map."""
    from flower_apps.explain import draw_split, make_split, makeup_table, splits_of
    from flower_apps.manifest import default_manifest, load_manifest
    from flower_apps.progress import table_console

    root = resolve_home(home)
    asked = load_manifest(manifest or default_manifest())
    experiment = experiment or asked.default()
    groups = asked.groups([experiment], sets or [])
    named = outside_checkout("out", out) if out else None
    shown = []
    for number, settings in enumerate(splits_of(groups)):
        with asked.placing([experiment], sets or []), naming(experiment):
            made = make_split(settings, root)
        png = named or root / "partitions" / f"{file_name(experiment)}-{made.summary['fingerprint'][:8]}.png"
        if named and number:
            png = named.with_stem(f"{named.stem}-{number + 1}")
        draw_split(made, png)
        shown.append({**made.summary, "heatmap": str(png), "sites": made.rows})
        if not as_json:
            console = table_console()
            console.print(makeup_table(made, console.width))
            console.print(f"heat map: {png}", soft_wrap=True)
    if as_json:
        typer.echo(json.dumps(shown, indent=1))


@app.command()
def doctor(as_json: AsJson = False, home: Home = None) -> None:
    """Check this machine: versions, devices, memory, disk, leftovers. Exit code 1 when something stops a run."""
    from flower_apps.doctor import checks_table, examine

    checks = examine(resolve_home(home))
    print_rows([check.to_row() for check in checks], checks_table(checks), as_json)
    raise typer.Exit(1 if any(check.level == "stop" for check in checks) else 0)


@app.command()
def rank(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", show_default=False)],
    metric: Annotated[
        str, typer.Option(help="Of results.csv; of one that has a difference to gold, that is ranked.")
    ] = "delta_test_accuracy",
    checkpoint: Annotated[str, typer.Option(help="unlearned or recovered.")] = "recovered",
    block: Annotated[str, typer.Option(help="What counts as a block: dataset, split or request.")] = "dataset",
    level: Annotated[float, typer.Option(help="Significance level.")] = 0.05,
    as_json: AsJson = False,
    home: Home = None,
) -> None:
    """Rank the methods of one or several runs by distance to retraining, with Friedman's and Nemenyi's tests.

    RUN is a run folder, a results table, a name below runs/, or latest. Each kind of request is ranked for itself.
    """
    from evaluation.ranking import rank_methods, read_runs
    from evaluation.ranking_table import ranking_table

    results = read_runs(runs, resolve_home(home))
    rankings = rank_methods(results, metric, checkpoint=checkpoint, block=block, level=level)
    print_rows([ranking.to_json() for ranking in rankings], ranking_table(rankings), as_json)


@app.command()
def export(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    method: Annotated[str, typer.Argument(metavar="METHOD")],
    checkpoint: Annotated[
        str | None, typer.Option(help="unlearned or recovered (original: trained); default: the last one.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="KEY=VALUE", help="Choose among cells: cell, request, preset, a seed, a key."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="New folder; default: below the run's exports/.")] = None,
    home: Home = None,
) -> None:
    """Write a model out: weights, a model card and a script that loads it.

    RUN is a run folder, a name below runs/, or latest. METHOD is a method of the run, retrain or original.
    """
    from evaluation.runs import find_run
    from flower_apps.export import export_model

    root = resolve_home(home)
    folder = export_model(find_run(run, root), method, checkpoint=checkpoint, where=where or [], out=out, home=root)
    typer.echo(f"{folder}: weights.safetensors, MODEL_CARD.md, metrics.csv, load.py")


@app.command("report")
def report_run(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    out: Annotated[Path | None, typer.Option(help="New folder; default: report below the run.")] = None,
    home: Home = None,
) -> None:
    """Write a run up: one HTML page with tables and figures, the tables for a paper, every figure with its numbers.

    RUN is a run folder, a name below runs/, or latest.
    """
    from evaluation.runs import find_run
    from flower_apps.write_up import REPORT, write_up

    folder = find_run(run, resolve_home(home))
    target = outside_checkout("out", out or folder / REPORT)
    write_up(folder, target)
    typer.echo(f"{target}: report.html, tables.md, tables.tex, figures/")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, 1 for a failed run, 2 for bad input, 130 when interrupted.

    Every error is one line on standard error; an unexpected one also names a file with its traceback.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if sys.platform == "win32":
        return _fail("Flower's simulation does not run on Windows itself: install Lethe in WSL 2", 2)
    try:
        code = app(args=given, prog_name="lethe", standalone_mode=False)
        if code == INTERRUPTED:  # Typer turns the KeyboardInterrupt into an exit code
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "lethe"
        return _fail(f"{error.format_message()} See `{command} --help`.", 2)
    except BadInput as error:
        return _fail(str(error), 2)
    except RunFailed as error:
        return _fail(str(error), 1)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if disk_full(error):
            return _fail("no space left on the disk: free some, or move LETHE_HOME or --out; nothing else is lost", 1)
        return _fail(f"unexpected {type(error).__name__}: {error}; traceback: {_write_crash(given)}", 1)


def _fail(message: str, code: int) -> int:
    print("lethe: " + " ".join(message.split()), file=sys.stderr)
    return code


def _write_crash(given: Sequence[str]) -> Path:
    """Write the traceback of the exception at hand below LETHE_HOME, or into the temporary folder; return the file."""
    text = f"lethe {' '.join(given)}\n\n{traceback.format_exc()}"
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}.log"
    named = [b for a, b in itertools.pairwise(given) if a == "--home"]
    named += [a.removeprefix("--home=") for a in given if a.startswith("--home=")]
    with contextlib.suppress(OSError, BadInput):
        folder = resolve_home(named[0] if named else None) / "crashes"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
        return folder / name
    path = Path(tempfile.gettempdir()) / f"lethe-{name}"
    path.write_text(text, encoding="utf-8")
    return path


@contextlib.contextmanager
def _run_folder(home: Path, out: Path | None, name: str) -> Iterator[Path]:
    """Make the run folder, and take it away again when bad input ends the run before it has a result."""
    there = out is not None and out.expanduser().exists()
    folder = open_run_folder(out) if out else Places(home).new_run(name)
    try:
        yield folder
    except BadInput:
        if not there and not (folder / "results.csv").exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise


if __name__ == "__main__":
    sys.exit(main())
