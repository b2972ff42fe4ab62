"""The tables of a store, for any database that SQLAlchemy knows."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from evaluation.curves import COLUMNS as CURVE_COLUMNS
from evaluation.results import COLUMNS as RESULT_COLUMNS
from evaluation.results import SEEDS

VERSION = "2"
"""Of these tables; a store of another version is refused."""
WAITING = ("queued", "scoring")
STATES = (*WAITING, "done", "failed")
_WHOLE = (*SEEDS, "n")
_FLOATS = ("alpha", "value", "ci_low", "ci_high", "x", "y")


class Exact(TypeDecorator[float]):
    """A float that comes back bit for bit; NaN is NULL.

    SQLite writes -0.0 as 0, so there it is text, as short as it can be read back exactly.
    """

    impl = sa.Double
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the column's type in the database."""
        return dialect.type_descriptor(sa.Text() if dialect.name == "sqlite" else sa.Double())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Return what is written."""
        if value is None or value != value:
            return None
        return repr(float(value)) if dialect.name == "sqlite" else float(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> float | None:
        """Return what was written."""
        return None if value is None else float(value)


def _column(name: str) -> sa.Column[Any]:
    if name in _WHOLE:
        return sa.Column(name, sa.BigInteger)
    return sa.Column(name, Exact) if name in _FLOATS else sa.Column(name, sa.Text, nullable=False)


metadata = sa.MetaData()

facts = sa.Table(
    "facts",
    metadata,
    sa.Column("name", sa.String(100), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
"""The version of the schema, and the id of the store that its folder of blobs bears too."""

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", sa.String(200), primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("record", sa.Text, nullable=False),
    sa.Column("rounds", sa.String(64)),
)

submissions = sa.Table(
    "submissions",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("status", sa.String(20), nullable=False, index=True),
    sa.Column("reason", sa.Text, nullable=False, default=""),
    sa.Column("attempts", sa.Integer, nullable=False, default=0),
    sa.Column("deaths", sa.Integer, nullable=False, default=0),
    sa.Column("owner", sa.String(300), nullable=False, default=""),
    sa.Column("lease_until", sa.Double, nullable=False, default=0.0),
    sa.Column("posted", sa.Double, nullable=False),
    sa.Column("started", sa.Double),
    sa.Column("finished", sa.Double),
)

posts = sa.Table(
    "posts",
    metadata,
    sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("run", sa.ForeignKey("runs.id"), nullable=False),
    sa.Column("submission", sa.ForeignKey("submissions.id"), nullable=False, index=True),
    sa.UniqueConstraint("run", "submission"),
)
"""Which submission belongs to which run, in the order of posting."""

uses = sa.Table(
    "uses",
    metadata,
    sa.Column("submission", sa.ForeignKey("submissions.id"), primary_key=True),
    sa.Column("sha256", sa.String(64), primary_key=True),
)
"""Which blobs a submission names."""

rows = sa.Table(
    "rows",
    metadata,
    sa.Column("submission", sa.ForeignKey("submissions.id"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    *(_column(name) for name in RESULT_COLUMNS),
)
curves = sa.Table(
    "curves",
    metadata,
    sa.Column("submission", sa.ForeignKey("submissions.id"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    *(_column(name) for name in CURVE_COLUMNS),
)
