"""Who scores a group: this process, or the server that its settings name; and that server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from evaluation.evaluator import Beside, Evaluator, InProcess
from flower_apps.settings import GroupSettings

PATIENCE = 2.0
"""Seconds between two writes of a run's tables, at least."""


@contextmanager
def scoring(settings: GroupSettings, run_folder: Path, tell: Callable[[str], None]) -> Iterator[Evaluator]:
    """Give the evaluator of a group for as long as it is needed.

    Parameters
    ----------
    settings : GroupSettings
        Of the group.
    run_folder : Path
        Where the tables lie.
    tell : callable
        Gets a line of progress from a server.

    Raises
    ------
    BadInput
        When the server does not take this token or this version.
    RunFailed
        When it does not answer.
    """
    if not settings.evaluator:
        with Beside(InProcess(run_folder, PATIENCE)) as here:
            yield here
        return
    from evaluation.service.access import read_token
    from evaluation.service.remote import Remote

    with Remote(settings.evaluator, run_folder, token=read_token(), on_progress=tell) as remote:
        yield remote


def serve(
    *,
    host: str,
    port: int,
    store: str,
    folder: Path | None,
    token_file: Path | None,
    max_upload: int,
    workers: int,
    home: Path,
    say: Callable[[str], None],
) -> None:
    """Serve the evaluator, and pages of its runs and of `home`, until INT or TERM.

    Arguments as of `evaluation.service.serve.Server`.

    Parameters
    ----------
    store : str
        URL of the database; empty: an SQLite file in `folder`.
    folder : Path or None
        Of the blobs; None: ``evaluator`` below `home`.
    token_file : Path or None
        See `evaluation.service.access.read_token`.
    home : Path
        LETHE_HOME.
    """
    from fastapi import FastAPI

    from evaluation.pages.folders import FolderRuns
    from evaluation.pages.router import add_pages
    from evaluation.pages.together import Together
    from evaluation.service.access import read_token
    from evaluation.service.serve import Server
    from evaluation.service.store import Store, sqlite_url
    from evaluation.service.store_runs import StoreRuns
    from flower_apps.places import outside_checkout

    place = outside_checkout("folder", folder) if folder else home / "evaluator"
    url = store or sqlite_url(place / "evaluator.sqlite")

    def add_to(app: FastAPI, kept: Store) -> None:
        add_pages(app, Together(StoreRuns(kept), FolderRuns(home)))

    Server(host, port, url, place, read_token(token_file), max_upload, workers).run(say, add_to)
