"""What a store keeps and for whom: the same facts on SQLite and on PostgreSQL."""

from __future__ import annotations

import math
import os
import pwd
import shutil
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bundles import Bundles
from posting import RECORD
from servers import free_port

from evaluation.curves import COLUMNS as CURVE_COLUMNS
from evaluation.evaluator import InProcess
from evaluation.results import COLUMNS, csv_text
from evaluation.service import schema
from evaluation.service.blobs import LEFTOVER_SECONDS
from evaluation.service.formats import TABLE
from evaluation.service.store import DEATHS, Store, sqlite_url
from evaluation.service.wire import Encoder
from evaluation.service.worker import new_owner, score_next
from evaluation.submission import Submission
from partitions.errors import BadInput

USER = "postgres"


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """Start a private PostgreSQL; gives its URL without a database."""
    if not (initdb := _binary("initdb")) or not (postgres := _binary("postgres")):
        pytest.skip("PostgreSQL's initdb and postgres are not installed")
    user = _unprivileged()
    if user is None:
        pytest.skip("PostgreSQL refuses to run as root, and there is no user postgres or nobody to run it as")
    folder = Path(tempfile.mkdtemp(prefix="lethe-pg-", dir="/tmp"))
    port = free_port()
    if user.pw_uid != os.getuid():
        os.chown(folder, user.pw_uid, user.pw_gid)
    as_user: dict[str, Any] = {"cwd": folder, "env": {**os.environ, "LC_ALL": "C.UTF-8", "HOME": str(folder)}}
    if user.pw_uid != os.getuid():
        as_user |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    arguments = ["-D", str(folder / "data"), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync"]
    made = subprocess.run([initdb, *arguments], capture_output=True, text=True, **as_user)
    assert made.returncode == 0, made.stderr
    options = ["-D", str(folder / "data"), "-p", str(port), "-k", str(folder), "-c", "listen_addresses=127.0.0.1"]
    log = (folder / "log").open("w")
    server = subprocess.Popen([postgres, *options, "-c", "fsync=off"], stdout=log, stderr=log, **as_user)
    url = f"postgresql://{USER}@127.0.0.1:{port}"
    try:
        _wait_for(url, server, folder / "log")
        yield url
    finally:
        server.terminate()
        server.wait(20)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def _binary(name: str) -> str | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}")) if Path("/usr/lib/postgresql").is_dir() else []
    return str(found[-1]) if found else shutil.which(name)


def _unprivileged() -> pwd.struct_passwd | None:
    if os.getuid() != 0:
        return pwd.getpwuid(os.getuid())
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    return known.get("postgres") or known.get("nobody")


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    engine = sa.create_engine(url.replace("postgresql", "postgresql+psycopg") + "/postgres")
    for _ in range(600):
        assert server.poll() is None, log.read_text()
        try:
            with engine.connect():
                break
        except sa.exc.OperationalError:
            time.sleep(0.1)
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the URL of a new database."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "e.sqlite").render_as_string()
    cluster = request.getfixturevalue("cluster")
    name = f"lethe_{time.time_ns()}"
    engine = sa.create_engine(
        cluster.replace("postgresql", "postgresql+psycopg") + "/postgres", isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return f"{cluster}/{name}"


@pytest.fixture
def store(url: str, tmp_path: Path) -> Iterator[Store]:
    opened = Store(url, tmp_path / "folder")
    opened.put_run("run", "RUN", RECORD)
    yield opened
    opened.close()


def keep(store: Store, submission: Submission, run: str = "run") -> str:
    """Post a submission with its blobs; returns its id."""
    bundle, blobs = Encoder().encode(submission)
    for sha, blob in blobs.items():
        path = store.blobs.path(sha, blob.kind)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(blob.make())
    return store.post(run, bundle)[0].id


ROW: dict[str, Any] = {
    **dict.fromkeys(COLUMNS, "x"), "alpha": None, "train_seed": 2**63 - 1, "unlearn_seed": None, "evaluate_seed": 0,
    "n": 3, "value": 1.0, "ci_low": 0.0, "ci_high": 0.0,
}  # fmt: skip
FLOATS = [0.1 + 0.2, -0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan, 1 / 3, 1e22, 123456789.0]


def test_floats_come_back_bit_for_bit(store: Store, bundles: Bundles) -> None:
    id = keep(store, bundles())
    assert store.claim("me") == id
    rows = [{**ROW, "metric": f"m{number}", "value": value} for number, value in enumerate(FLOATS)]
    points = [
        {**{name: ROW.get(name, "x") for name in CURVE_COLUMNS}, "label": "a\0b", "x": value, "y": -value}
        for value in FLOATS
    ]
    assert store.finish(id, "me", rows, points)
    back, back_points = store.scored(id)
    for value, row, point in zip(FLOATS, back, back_points, strict=True):
        for expected, found in ((value, row["value"]), (value, point["x"]), (-value, point["y"])):
            assert found is None if math.isnan(expected) else expected.hex() == found.hex()
        assert row["train_seed"] == 2**63 - 1 and row["alpha"] is None
        assert point["label"] == "a\ufffdb"


def test_a_run_scored_here_has_the_tables_of_in_process_scoring(store: Store, bundles: Bundles, tmp_path: Path) -> None:
    here = InProcess(tmp_path / "here")
    for submission in (bundles("ga", 1), bundles.unfit()):
        here.submit(submission)
        keep(store, submission)
        assert score_next(store, new_owner())
    assert csv_text(store.results("run")) == (tmp_path / "here" / "results.csv").read_text()
    assert csv_text(store.curves("run")) == (tmp_path / "here" / "curves.csv").read_text()


def test_a_submission_is_taken_by_one_at_a_time_and_again_once_its_lease_is_over(
    store: Store, bundles: Bundles
) -> None:
    id = keep(store, bundles())
    assert store.claim("first", lease=0.2) == id
    assert store.claim("second") is None
    assert store.renew(id, "first", lease=0.2)
    time.sleep(0.3)
    assert store.claim("second") == id
    assert not store.renew(id, "first")
    assert not store.finish(id, "first", [ROW], [])
    assert store.scored(id) == ([], [])
    assert store.finish(id, "second", [ROW], [])
    assert store.standing(id).status == "done"
    assert not store.fail(id, "second", "too late")
    assert store.claim("third") is None


def test_the_same_bundle_posted_by_many_at_once_is_one_submission(store: Store, bundles: Bundles) -> None:
    bundle, _ = Encoder().encode(bundles())
    found, failures = [], []

    def post(number: int) -> None:
        try:
            store.put_run(f"run{number}", "R", RECORD)
            found.append(store.post(f"run{number % 3}" if number % 2 else "run", bundle)[1])
        except KeyError:
            found.append(False)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=post, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert found.count(True) == 1
    assert store.counts() == {"queued": 1}


def test_many_claim_at_once_and_each_gets_another(store: Store, bundles: Bundles) -> None:
    ids = {keep(store, bundles("ga", 1, evaluate_seeds=(number,))) for number in range(12)}
    taken: list[str] = []

    def claim(owner: str) -> None:
        while (id := store.claim(owner)) is not None:
            taken.append(id)

    threads = [threading.Thread(target=claim, args=(f"w{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while (id := store.claim("late")) is not None:  # a claim that lost a race returns empty-handed
        taken.append(id)
    assert sorted(taken) == sorted(ids)


def test_what_kills_every_worker_is_failed_in_the_end(store: Store, bundles: Bundles) -> None:
    id = keep(store, bundles())
    for _ in range(DEATHS):
        assert store.claim("me") == id
        assert store.bury("me") == 1
    assert store.claim("me") is None
    standing = store.standing(id)
    assert standing.status == "failed" and "memory" in standing.reason
    keep(store, bundles())
    assert store.standing(id).status == "queued", "posted again, it is tried again"
    assert store.claim("me") == id


def test_the_end_of_a_server_is_no_death_of_its_workers(store: Store, bundles: Bundles) -> None:
    id = keep(store, bundles())
    for _ in range(2 * DEATHS):
        assert store.claim("me", lease=-1.0) == id, "nobody was left to bury it"
    assert store.bury("me") == 1
    standing = store.standing(id)
    assert (standing.status, standing.attempts) == ("queued", 2 * DEATHS)
    assert store.bury("me") == 0


def test_what_a_worker_gives_back_was_not_an_attempt(store: Store, bundles: Bundles) -> None:
    id = keep(store, bundles())
    for _ in range(2 * DEATHS):
        assert store.claim("me") == id
        assert store.release("me") == 1
    assert store.standing(id).attempts == 0
    assert store.release("me") == 0


def test_a_missing_blob_fails_its_submission_with_a_reason(store: Store, bundles: Bundles) -> None:
    submission = bundles()
    id = keep(store, submission)
    for path in store.blobs.folder.glob("blobs/??/*"):
        path.unlink()
    assert score_next(store, "me")
    assert "missing blob" in store.standing(id).reason


def test_a_store_is_opened_again_with_what_it_had(store: Store, url: str, tmp_path: Path, bundles: Bundles) -> None:
    id = keep(store, bundles())
    again = Store(url, tmp_path / "folder")
    assert again.standing(id) == store.standing(id)
    assert again.bundle(id) == Encoder().encode(bundles())[0]
    again.close()


def test_another_version_or_folder_is_refused_in_one_line(store: Store, url: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--folder"):
        Store(url, Store(sqlite_url(tmp_path / "other.sqlite"), tmp_path / "other").blobs.folder)
    with store._writing() as connection:
        connection.execute(sa.update(schema.facts).where(schema.facts.c.name == "version").values(value="0"))
    with pytest.raises(BadInput, match=f"version {schema.VERSION}, and this is version 0") as caught:
        Store(url, tmp_path / "folder")
    assert "\n" not in str(caught.value)


def test_many_open_a_new_store_at_once(url: str, tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def open_it() -> None:
        try:
            Store(url, tmp_path / "folder").close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_old_leftovers_go_and_what_is_used_stays(store: Store, bundles: Bundles, tmp_path: Path) -> None:
    keep(store, bundles())
    used = len(list(store.blobs.folder.glob("blobs/??/*")))
    old = time.time() - LEFTOVER_SECONDS - 60
    for name, age in (("0" * 64, old), ("1" * 64, time.time())):
        path = store.blobs.path(name, TABLE)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        os.utime(path, (age, age))
    for path in store.blobs.folder.glob("blobs/??/*"):
        if path.read_bytes() != b"x":
            os.utime(path, (old, old))
    (store.blobs.folder / "uploads" / "upload-old").write_bytes(b"x")
    os.utime(store.blobs.folder / "uploads" / "upload-old", (old, old))
    assert store.take_away_leftovers() == 2
    assert len(list(store.blobs.folder.glob("blobs/??/*"))) == used + 1
    assert store.blobs.kinds("1" * 64) == [TABLE] and not store.blobs.kinds("0" * 64)


@pytest.mark.parametrize("name", ["..", "../../etc/passwd", "0" * 63, "0" * 63 + "/", "A" * 64, "0" * 64 + "\n"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    store = Store(sqlite_url(tmp_path / "e.sqlite"), tmp_path / "folder")
    with pytest.raises(KeyError):
        store.blobs.path(name, TABLE)
    assert not store.blobs.kinds(name)
    store.close()


def test_sqlite_is_on_the_disk_before_it_answers(tmp_path: Path) -> None:
    store = Store(sqlite_url(tmp_path / "e.sqlite"), tmp_path)
    with store._reading() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
    store.close()


@pytest.mark.parametrize(
    "made",
    [
        ["create table runs (run_uuid text primary key, name text)", "insert into runs values ('a', 'b')"],
        ["create table facts (name text, value text)", "create table rows (x int)"],
        ["create table facts (x int)"],
        ["create table facts (name text, value text)", "insert into facts values ('version', '2')"],
    ],
)
def test_a_database_of_something_else_stays_as_it_is(tmp_path: Path, made: list[str]) -> None:
    file = tmp_path / "e.sqlite"
    with sqlite3.connect(file) as connection:
        for statement in made:
            connection.execute(statement)
    connection.close()
    before = file.read_bytes()
    with pytest.raises(BadInput, match="tables of something else") as caught:
        Store(sqlite_url(file), tmp_path / "folder")
    assert "\n" not in str(caught.value)
    assert file.read_bytes() == before
    assert not (tmp_path / "folder" / "store-id").exists()


def test_a_database_with_other_tables_may_hold_a_store(url: str, tmp_path: Path) -> None:
    engine = sa.create_engine(url.replace("postgresql", "postgresql+psycopg"))
    with engine.begin() as connection:
        connection.exec_driver_sql("create table patients (x int)")
    engine.dispose()
    Store(url, tmp_path / "folder").close()


@pytest.mark.parametrize("change", ["drop table uses", "alter table submissions drop column owner"])
def test_a_store_that_lacks_something_is_refused(store: Store, url: str, tmp_path: Path, change: str) -> None:
    with store._writing() as connection:
        connection.exec_driver_sql(change)
    with pytest.raises(BadInput, match="a whole store"):
        Store(url, tmp_path / "folder")


def test_a_store_without_its_version_is_of_no_version(store: Store, url: str, tmp_path: Path) -> None:
    with store._writing() as connection:
        connection.execute(sa.delete(schema.facts).where(schema.facts.c.name == "version"))
    with pytest.raises(BadInput, match="something else"):
        Store(url, tmp_path / "folder")


def test_a_file_that_is_no_database_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "e.sqlite").write_bytes(b"not a database at all, but long enough to be one" * 100)
    with pytest.raises(BadInput, match="not a database") as caught:
        Store(sqlite_url(tmp_path / "e.sqlite"), tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(sqlite3.DatabaseError):
        sqlite3.connect(tmp_path / "e.sqlite").execute("select 1 from x")
