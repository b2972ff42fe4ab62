"""What a server keeps: runs, submissions and their state, rows and points in a database; blobs in a folder."""

from __future__ import annotations

import json
import time
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, SAWarning, SQLAlchemyError

from evaluation.curves import COLUMNS as CURVE_COLUMNS
from evaluation.curves import merge_curves
from evaluation.results import COLUMNS as RESULT_COLUMNS
from evaluation.results import merge_results
from evaluation.service import schema
from evaluation.service.blobs import BlobStore
from evaluation.service.wire import Bundle
from partitions.errors import BadInput

Row = Mapping[str, Any]

NAMED = {"experiments": "experiment", "datasets": "dataset", "requests": "request", "methods": "method"}
"""What a list of runs tells of each, and the columns of its results that say so."""
LEASE = 30.0
"""Seconds after which a submission is anybody's again when whoever scores it has not said that it still does."""
DEATHS = 3
"""How many workers may die while they score a submission before it counts as one that kills them."""
BUSY_SECONDS = 30.0
"""How long a writer waits for another one of an SQLite store."""
CONNECTIONS = 40
"""As many as a server has threads; those beyond the first few are closed after use."""


@dataclass(frozen=True)
class Standing:
    """Where a submission stands.

    Attributes
    ----------
    id : str
        SHA-256 of its canonical JSON.
    status : str
        ``queued``, ``scoring``, ``done`` or ``failed``.
    reason : str
        Why it failed.
    attempts : int
        How often scoring was begun.
    posted, started, finished : float or None
        Seconds since the epoch.
    """

    id: str
    status: str
    reason: str
    attempts: int
    posted: float
    started: float | None
    finished: float | None


class StoreLost(SQLAlchemyError):
    """The SQLite file is no longer where it was: what is written now would be in no file that anybody finds."""


class Store:
    """A database and the folder of its blobs. Safe to use from many threads, processes and servers at once.

    Parameters
    ----------
    url : str or URL
        Of SQLAlchemy, such as ``sqlite:////data/evaluator.sqlite`` or ``postgresql://user@host/lethe``.
    folder : Path
        For blobs; servers that share a database share it too.

    Raises
    ------
    BadInput
        When the database cannot be opened, is of another version, or belongs to another folder.
    """

    def __init__(self, url: str | URL, folder: Path) -> None:
        self.url = _parsed(url)
        self.blobs = BlobStore(folder)
        self._engine = _engine(self.url)
        self._file: tuple[int, int] | None = None
        try:
            self._open(folder)
        except BadInput:
            self.close()
            raise
        except (SQLAlchemyError, OSError, ValueError, TypeError) as error:  # the driver's own for odd options
            self.close()
            raise BadInput("store", self.shown, f"a database that can be opened ({_short(error)})", _REMEDY) from None

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return self.url.render_as_string(hide_password=True)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    # ------------------------------------------------------------------ runs
    def put_run(self, run: str, name: str, record: Mapping[str, Any], rounds: str | None = None) -> None:
        """Keep the record of a run (``run.json``) and the hash of the table of its rounds, or replace them."""
        values = {"name": name, "created": float(record["created"]), "record": json.dumps(record), "rounds": rounds}
        with self._writing() as connection:
            known = schema.runs.c.id == run
            if connection.execute(sa.update(schema.runs).where(known).values(**values)).rowcount == 0:
                _insert_unless_there(connection, schema.runs, {"id": run, **values})

    def runs(self) -> list[dict[str, Any]]:
        """Return every run, newest first.

        Returns
        -------
        list of dict
            id, name, created, counts (submissions by status), and experiments, datasets, requests and methods.
        """
        counted = (
            sa.select(schema.posts.c.run, schema.submissions.c.status, sa.func.count().label("count"))
            .join(schema.submissions)
            .group_by(schema.posts.c.run, schema.submissions.c.status)
        )
        named = (
            sa.select(schema.posts.c.run, *(schema.rows.c[name] for name in NAMED.values()))
            .join(schema.rows, schema.rows.c.submission == schema.posts.c.submission)
            .where(schema.rows.c.number == 0)
            .distinct()
        )
        listed = sa.select(schema.runs.c.id, schema.runs.c.name, schema.runs.c.created)
        with self._reading() as connection:
            found = {
                row.id: {**row._mapping, "counts": {}, **{name: set() for name in NAMED}}
                for row in connection.execute(listed)
            }
            for row in connection.execute(counted):
                found[row.run]["counts"][row.status] = row.count
            for row in connection.execute(named):
                for name, column in NAMED.items():
                    found[row.run][name].add(row._mapping[column])
        ordered = sorted(found.values(), key=lambda one: (one["created"], one["id"]), reverse=True)
        return [{**one, **{name: sorted(one[name]) for name in NAMED}} for one in ordered]

    def run(self, run: str) -> dict[str, Any]:
        """Return name, created, record, rounds and the submissions of a run; raises `KeyError` for an unknown one."""
        with self._reading() as connection:
            found = connection.execute(sa.select(schema.runs).where(schema.runs.c.id == run)).one_or_none()
            if found is None:
                raise KeyError(run)
            posted = (
                sa.select(*_STANDING)
                .join(schema.posts)
                .where(schema.posts.c.run == run)
                .order_by(schema.posts.c.number)
            )
            standing = [Standing(**row._mapping) for row in connection.execute(posted)]
        return {**found._mapping, "record": json.loads(found.record), "submissions": standing}

    def results(self, run: str) -> pd.DataFrame:
        """Return a run's results as ``results.csv`` of its run folder has them; what is not scored yet is not there."""
        return merge_results(_without_key(self._of_run(run, schema.rows)))

    def curves(self, run: str) -> pd.DataFrame:
        """Return the points of a run's figures as ``curves.csv`` of its run folder has them."""
        grouped = groupby(self._of_run(run, schema.curves), key=lambda row: row["submission"])
        return merge_curves([list(_without_key(rows)) for _, rows in grouped])

    # ------------------------------------------------------------------ submissions
    def post(self, run: str, bundle: Bundle) -> tuple[Standing, bool]:
        """Keep a checked bundle as a submission of a run, to be scored, and tell whether it is new.

        The same bundle again is the same submission, in whichever run; one that failed is queued again.

        Raises
        ------
        KeyError
            When there is no such run.
        """
        id, table = bundle.id, schema.submissions
        with self._writing() as connection:
            if connection.execute(sa.select(schema.runs.c.id).where(schema.runs.c.id == run)).one_or_none() is None:
                raise KeyError(run)
            fresh = {"id": id, "document": bundle.document(), "status": "queued", "posted": time.time()}
            is_new = _insert_unless_there(connection, table, fresh)
            if is_new:
                used = [{"submission": id, "sha256": sha} for sha in sorted(bundle.blobs())]
                if used:
                    connection.execute(sa.insert(schema.uses), used)
            else:
                again = sa.update(table).where(table.c.id == id, table.c.status == "failed")
                connection.execute(again.values(status="queued", reason="", attempts=0, deaths=0, finished=None))
            of = (schema.posts.c.run == run) & (schema.posts.c.submission == id)
            connection.execute(sa.delete(schema.posts).where(of))  # the last one posted is the last one written
            _insert_unless_there(connection, schema.posts, {"run": run, "submission": id})
        return self.standing(id), is_new

    def standing(self, id: str) -> Standing:
        """Return where a submission stands; raises `KeyError` for an unknown one."""
        with self._reading() as connection:
            asked = sa.select(*_STANDING).where(schema.submissions.c.id == id)
            found = connection.execute(asked).one_or_none()
        if found is None:
            raise KeyError(id)
        return Standing(**found._mapping)

    def bundle(self, id: str) -> Bundle:
        """Return the bundle of a submission."""
        with self._reading() as connection:
            asked = sa.select(schema.submissions.c.document).where(schema.submissions.c.id == id)
            return Bundle.model_validate_json(connection.execute(asked).scalar_one())

    def scored(self, id: str) -> tuple[list[Row], list[Row]]:
        """Return the rows and the points of a submission, in order; none unless it is done."""
        with self._reading() as connection:
            return _kept(connection, schema.rows, RESULT_COLUMNS, id), _kept(
                connection, schema.curves, CURVE_COLUMNS, id
            )

    # ------------------------------------------------------------------ scoring
    def claim(self, owner: str, lease: float = LEASE) -> str | None:
        """Take the oldest submission that waits, or whose scorer has gone silent; None when there is none.

        One transaction looks and takes, so no two workers, of whichever server, get the same one.
        """
        table, now = schema.submissions, time.time()
        free = (table.c.status == "queued") | ((table.c.status == "scoring") & (table.c.lease_until < now))
        oldest = sa.select(table.c.id, table.c.attempts).where(free).order_by(table.c.posted, table.c.id).limit(1)
        with self._reading() as connection:
            if connection.execute(oldest).one_or_none() is None:
                return None
        with self._writing() as connection:
            found = connection.execute(oldest.with_for_update(skip_locked=True)).one_or_none()
            if found is None:
                return None
            values = {"status": "scoring", "owner": owner, "lease_until": now + lease, "started": now}
            values["attempts"] = found.attempts + 1
            changed = connection.execute(sa.update(table).where(table.c.id == found.id, free).values(**values))
            return found.id if changed.rowcount == 1 else None

    def renew(self, id: str, owner: str, lease: float = LEASE) -> bool:
        """Say that `owner` still scores a submission; tells whether it is still his."""
        return self._as_owner(id, owner, {"lease_until": time.time() + lease})

    def finish(self, id: str, owner: str, rows: Sequence[Row], points: Sequence[Row]) -> bool:
        """Keep what was scored, all of it or nothing; tells whether the submission was still his."""
        with self._writing() as connection:
            if not self._as_owner(id, owner, {"status": "done", "owner": "", "finished": time.time()}, connection):
                return False
            for table, written in ((schema.rows, rows), (schema.curves, points)):
                connection.execute(sa.delete(table).where(table.c.submission == id))
                if written:
                    numbered = [
                        {"submission": id, "number": number, **_storable(row)} for number, row in enumerate(written)
                    ]
                    connection.execute(sa.insert(table), numbered)
        return True

    def fail(self, id: str, owner: str, reason: str) -> bool:
        """Keep why a submission cannot be scored; tells whether it was still his."""
        values = {"status": "failed", "owner": "", "reason": reason, "finished": time.time()}
        return self._as_owner(id, owner, _storable(values))

    def release(self, owner: str) -> int:
        """Give back what `owner` has taken and will not finish; returns how many."""
        table = schema.submissions
        mine = (table.c.owner == owner) & (table.c.status == "scoring")
        with self._writing() as connection:
            values = {"status": "queued", "owner": "", "attempts": table.c.attempts - 1}
            return connection.execute(sa.update(table).where(mine).values(**values)).rowcount

    def bury(self, owner: str) -> int:
        """Queue again what `owner`, a worker that a living server saw die, was at; returns how many.

        A submission that `DEATHS` workers died of is failed instead. The end of a server, which takes its workers
        along, is nobody's fault and never counted.
        """
        table = schema.submissions
        mine = (table.c.owner == owner) & (table.c.status == "scoring")
        reason = f"the worker died {DEATHS} times while scoring it: too little memory, most likely"
        failed = {"status": "failed", "reason": reason, "finished": time.time()}
        with self._writing() as connection:
            counted = sa.update(table).where(mine).values(deaths=table.c.deaths + 1)
            buried = connection.execute(counted).rowcount
            connection.execute(sa.update(table).where(mine, table.c.deaths >= DEATHS).values(owner="", **failed))
            connection.execute(sa.update(table).where(mine).values(owner="", status="queued"))
        return buried

    def counts(self) -> dict[str, int]:
        """Return the number of submissions by status."""
        table = schema.submissions
        with self._reading() as connection:
            asked = sa.select(table.c.status, sa.func.count()).group_by(table.c.status)
            return {str(status): int(count) for status, count in connection.execute(asked)}

    def take_away_leftovers(self) -> int:
        """Remove old blobs that nothing names; return how many."""
        with self._reading() as connection:
            used = set(connection.execute(sa.select(schema.uses.c.sha256).distinct()).scalars())
            used |= set(connection.execute(sa.select(schema.runs.c.rounds).distinct()).scalars())
        return self.blobs.take_away_leftovers(used)

    # ------------------------------------------------------------------ how
    def _as_owner(self, id: str, owner: str, values: Row, connection: Connection | None = None) -> bool:
        table = schema.submissions
        mine = (table.c.id == id) & (table.c.owner == owner) & (table.c.status == "scoring")
        changes = sa.update(table).where(mine).values(**values)
        if connection is not None:
            return connection.execute(changes).rowcount == 1
        with self._writing() as own:
            return own.execute(changes).rowcount == 1

    def _of_run(self, run: str, table: sa.Table) -> list[dict[str, Any]]:
        asked = (
            sa.select(table)
            .join(schema.posts, schema.posts.c.submission == table.c.submission)
            .where(schema.posts.c.run == run)
            .order_by(schema.posts.c.number, table.c.number)
        )
        with self._reading() as connection:
            return [dict(row._mapping) for row in connection.execute(asked)]

    def _check_file(self) -> None:
        """Raise `StoreLost` when an SQLite file was deleted or replaced since the store was opened."""
        if self._file is not None and _identity(self.url) != self._file:
            raise StoreLost(f"its file {self.url.database} was deleted or replaced: restore it, and start again")

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        self._check_file()
        with self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """Open a transaction that is kept whole or not at all; in SQLite it takes the write lock at once."""
        self._check_file()
        with self._engine.connect().execution_options(lethe_begin="BEGIN IMMEDIATE") as connection, connection.begin():
            yield connection
            self._check_file()

    def _open(self, folder: Path) -> None:
        """Make the tables where there are none, and check that version and folder are this store's."""
        for attempt in range(3):
            try:
                known = self._tables()
                break
            except SQLAlchemyError:
                if attempt == 2:
                    raise
                time.sleep(0.5)  # another server makes them right now
        self._file = _identity(self.url)
        mark = folder / "store-id"
        if not mark.exists():
            fresh = mark.with_name(f"{mark.name}-{uuid.uuid4().hex}")
            fresh.write_text(known["store"])
            fresh.replace(mark)
        if mark.read_bytes() != known["store"].encode():
            raise BadInput("store", self.shown, f"the database whose blobs lie in {folder}", "name its own --folder")

    def _tables(self) -> dict[str, str]:
        """Make the tables where there are none, and return the facts; a database of something else stays untouched."""
        with self._reading() as connection:
            facts = self._facts(connection)
        if self._engine.dialect.name == "sqlite":
            raw = self._engine.raw_connection()  # outside of any transaction
            raw.cursor().execute("PRAGMA journal_mode=WAL")  # kept in the file: for stores only
            raw.close()
        if facts:
            return facts
        with self._writing() as connection:
            facts = self._facts(connection)  # another server may have been faster
            if not facts:
                facts = {"version": schema.VERSION, "store": uuid.uuid4().hex}
                schema.metadata.create_all(connection)
                named = [{"name": name, "value": value} for name, value in facts.items()]
                connection.execute(sa.insert(schema.facts), named)
        return facts

    def _facts(self, connection: Connection) -> dict[str, str]:
        """Return the facts of a store, empty without any of its tables; raises `BadInput` for anything else."""
        looked, remedy = sa.inspect(connection), "name a new store"
        tables = schema.metadata.tables
        there = sorted(set(looked.get_table_names()) & tables.keys())
        if not there:
            return {}
        columns = {name: {str(column["name"]) for column in looked.get_columns(name)} for name in there}
        facts: dict[str, str] = {}
        if columns.get("facts", set()) >= set(schema.facts.c.keys()):
            asked = sa.select(schema.facts.c.name, schema.facts.c.value)
            facts = dict(connection.execute(asked).tuples().all())
        if not facts.keys() >= {"version", "store"}:
            allowed = f"an empty database or a store, and this has tables of something else ({', '.join(there)})"
            raise BadInput("store", self.shown, allowed, remedy)
        if facts["version"] != schema.VERSION:
            allowed = f"a store of version {schema.VERSION}, and this is version {facts['version']}"
            raise BadInput("store", self.shown, allowed, "use the Lethe that made it, or name a new store")
        for name, table in tables.items():
            if lacks := sorted(set(table.c.keys()) - columns.get(name, set())):
                allowed = f"a whole store, and this one's table {name} lacks {', '.join(lacks)}"
                raise BadInput("store", self.shown, allowed, f"take it from a backup, or {remedy}")
        return facts


_STANDING = [
    schema.submissions.c[name] for name in ("id", "status", "reason", "attempts", "posted", "started", "finished")
]
_REMEDY = "check the URL, that the server runs and that the user may create tables"


def sqlite_url(file: Path) -> URL:
    """Return the URL of an SQLite file, whatever characters its path has."""
    return URL.create("sqlite", database=str(file))


def _parsed(url: str | URL) -> URL:
    allowed = "a URL of SQLAlchemy, such as sqlite:////data/evaluator.sqlite or postgresql://user@host/lethe"
    try:
        found = sa.make_url(url)
    except (ArgumentError, ValueError):
        raise BadInput("store", str(url).rpartition("@")[2], allowed) from None
    return found.set(drivername="postgresql+psycopg") if found.drivername in ("postgresql", "postgres") else found


def _engine(url: URL) -> sa.Engine:
    shown = url.render_as_string(hide_password=True)
    try:
        if url.get_backend_name() != "sqlite":
            return sa.create_engine(url, pool_pre_ping=True, max_overflow=CONNECTIONS)
        if not url.database or url.database == ":memory:":
            raise BadInput("store", shown, "a file: the workers are processes of their own")
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        arguments = {"timeout": BUSY_SECONDS, "check_same_thread": False}
        with warnings.catch_warnings():
            warnings.simplefilter("error", SAWarning)  # an option that the driver does not know would be ignored
            engine = sa.create_engine(url, connect_args=arguments, max_overflow=CONNECTIONS)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        remedy = "pip install 'lethe[postgres]'" if "psycopg" in str(error) else "install its driver"
        raise BadInput("store", shown, f"a database whose driver is installed ({_short(error)})", remedy) from None
    except BadInput:
        raise
    except (ArgumentError, SAWarning, ValueError, TypeError) as error:
        raise BadInput("store", shown, f"options that its driver takes ({_short(error)})", _REMEDY) from None
    except OSError as error:
        raise BadInput("store", shown, f"a folder one can write to ({error.strerror or error})") from None
    sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _identity(url: URL) -> tuple[int, int] | None:
    """Return device and inode of an SQLite file; None where there is none."""
    if url.get_backend_name() != "sqlite":
        return None
    try:
        found = Path(str(url.database)).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _prepare_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # the driver would begin transactions when it likes
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("lethe_begin", "BEGIN"))


def _insert_unless_there(connection: Connection, table: sa.Table, values: Row) -> bool:
    """Insert a row; tells whether it was not there yet, also where another transaction is inserting it."""
    try:
        with connection.begin_nested():
            connection.execute(sa.insert(table).values(**values))
    except IntegrityError:
        return False
    return True


def _kept(connection: Connection, table: sa.Table, names: Sequence[str], id: str) -> list[Row]:
    columns = [table.c[name] for name in names]
    asked = sa.select(*columns).where(table.c.submission == id).order_by(table.c.number)
    return [dict(row._mapping) for row in connection.execute(asked)]


def _without_key(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield {name: value for name, value in row.items() if name not in ("submission", "number")}


def _storable(row: Row) -> dict[str, Any]:
    """Return a row as a database takes it: numpy numbers as Python's, no NUL in text."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        plain = value.item() if hasattr(value, "item") else value
        found[name] = plain.replace("\0", "\ufffd") if isinstance(plain, str) else plain
    return found


def _short(error: BaseException) -> str:
    text = str(getattr(error, "orig", None) or error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
