"""PostgreSQL: opens a PostgreSQL database that holds one run's books.

Room: ledger (edge). `synchronous_commit` is on whatever the server's default (a commit
is durable when it returns). A writing transaction first takes an advisory lock, so
writers are serialised as on SQLite; it stays READ COMMITTED, because under SERIALIZABLE the
snapshot would be older than the wait for the lock. A reader sees one snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import ArgumentError

from assay.protocol.errors import ConfigError

LOCK_SPACE = 0x61737361  # "assa"; the second half of the lock's key is the schema's, so each has its own
_LOCK = sa.text("SELECT pg_advisory_xact_lock(:space, hashtext(current_schema()))").bindparams(
    space=LOCK_SPACE
)
_LOCK_NOT_AVAILABLE = "55P03"


def engine_of(url: str, busy_s: float) -> Engine:
    """An engine on the database at `url`; a writer waits `busy_s` seconds for another.

    Raises:
        ConfigError: the URL is not of a PostgreSQL database, or psycopg is not installed.
    """
    try:
        parsed = sa.make_url(url)
    except ArgumentError:
        raise ConfigError(f"{url}: expected a path, or postgresql://user@host/database") from None
    if parsed.get_backend_name() != "postgresql":
        raise ConfigError(f"{parsed.render_as_string()}: books are kept on SQLite or on PostgreSQL")
    try:
        engine = sa.create_engine(parsed.set(drivername="postgresql+psycopg"))
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise ConfigError("books on PostgreSQL need psycopg: pip install 'assay[postgres]'") from None
    # Many rows are one INSERT, so one round trip.
    dialect: Any = engine.dialect
    dialect.use_insertmanyvalues_wo_returning = True

    def set_up(connection: Any, _record: Any) -> None:
        from psycopg.adapt import Loader

        class Whole(Loader):
            """Loads `numeric`, as sums of 64-bit amounts arrive, as int."""

            def load(self, data: Any) -> int:
                return int(bytes(data))

        connection.adapters.register_loader("numeric", Whole)
        connection.autocommit = True
        connection.execute(f"SET lock_timeout = {max(1, round(busy_s * 1000))}")
        connection.execute("SET synchronous_commit = on")
        connection.autocommit = False

    sa.event.listen(engine, "connect", set_up)
    sa.event.listen(engine, "begin", _begin)
    return engine


@lru_cache
def insert_columns(table: sa.Table) -> sa.Insert:
    """An INSERT that takes one array per column: its text is the same for any number of rows.

    A text that grows with the rows costs more to parse, on both sides, than the rows themselves.
    """
    columns = [column.name for column in table.columns]
    lists = [sa.bindparam(column.name, type_=ARRAY(column.type)) for column in table.columns]
    rows = sa.func.unnest(*lists).table_valued(*columns).render_derived()
    return sa.insert(table).from_select(columns, sa.select(*(rows.c[name] for name in columns)))


def is_one_of(column: sa.Column[Any], names: Sequence[Any]) -> sa.ColumnElement[bool]:
    """`column IN names` as one parameter, for the same reason."""
    return column == sa.any_(sa.bindparam(None, list(names), type_=ARRAY(column.type)))


def is_busy(error: object) -> bool:
    """Whether this error is PostgreSQL's timeout while waiting for another writer."""
    return getattr(error, "sqlstate", None) == _LOCK_NOT_AVAILABLE


def _begin(connection: Connection) -> None:
    if connection.get_execution_options().get("reads_only", False):
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    else:
        connection.execute(_LOCK)
