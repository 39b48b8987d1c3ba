"""Journal database: how the books are opened, on SQLite by path or on PostgreSQL by URL.

Room: ledger (edge). On both a commit is on disk when it returns, a transaction that
writes takes the one writer's lock at once, and one that reads sees one moment.

    SQLite        ledger/journal/sqlite.py: WAL, synchronous=FULL, BEGIN IMMEDIATE
    PostgreSQL    ledger/journal/postgres.py: synchronous_commit, one advisory lock
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from assay.ledger.journal import postgres as journal_postgres
from assay.ledger.journal import sqlite as journal_sqlite
from assay.ledger.journal.tables import SCHEMA_VERSION, Table
from assay.ledger.journal.triggers import triggers
from assay.protocol.errors import ConfigError, Unavailable

BUSY_S_MAX = 20.0
VERSION = sa.Table(  # as Alembic has it
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
Place: TypeAlias = Path | str  # a file, or the URL of a PostgreSQL database


def revision(version: int) -> str:
    """A schema's name in its database and among the migrations."""
    return f"{version:04d}"


def engine_of(place: Place, busy_s: float = BUSY_S_MAX) -> Engine:
    """An engine as the books need it, whatever the database holds.

    Raises:
        ConfigError: the URL is none, or its driver is not installed.
    """
    if isinstance(place, Path):
        return journal_sqlite.engine_of(place, busy_s)
    return journal_postgres.engine_of(place, busy_s)


def open_engine(place: Place, busy_s: float = BUSY_S_MAX) -> Engine:
    """The books at `place`, made if missing.

    Args:
        place: A file, or a URL such as `postgresql://user@host/database`.
        busy_s: How long a transaction waits for another writer to end.

    Raises:
        ConfigError: there are books of another schema, or the URL is of no use.
        Unavailable: the database cannot be opened.
    """
    engine = engine_of(place, busy_s)
    with writing(engine) as db:
        found = version_of(db)
        if found not in (0, SCHEMA_VERSION):
            raise ConfigError(_other_schema(place, found))
        if found == 0:
            make_schema(db)
    return engine


def open_engine_to_read(place: Place) -> Engine:
    """The books at `place` for queries alone: nothing is written, and no file appears beside one.

    Raises:
        ConfigError: there are no books of this schema.
    """
    if isinstance(place, Path):
        engine = journal_sqlite.engine_to_read(place)
    else:
        engine = journal_postgres.engine_of(place, BUSY_S_MAX).execution_options(reads_only=True)
    try:
        with engine.connect() as db:
            found = version_of(db)
    except SQLAlchemyError:
        raise ConfigError(f"{told(place)}: not a book of accounts") from None
    if not isinstance(place, Path) and not found:
        raise ConfigError(f"{told(place)}: there are no books here")
    if found != SCHEMA_VERSION:
        raise ConfigError(_other_schema(place, found))
    return engine


def make_schema(db: Connection) -> None:
    """Tables, triggers and version of new books."""
    Table.metadata.create_all(db)
    for statement in triggers(db.dialect.name):
        db.exec_driver_sql(statement)
    VERSION.create(db, checkfirst=True)
    db.execute(sa.insert(VERSION), [{"version_num": revision(SCHEMA_VERSION)}])
    if db.dialect.name == "sqlite":
        db.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")


def version_of(db: Connection) -> int:
    """The schema of the books that are here; 0 if there are none."""
    if db.dialect.name == "sqlite":
        return int(db.exec_driver_sql("PRAGMA user_version").scalar_one())
    if not sa.inspect(db).has_table(VERSION.name):
        return 0
    return int(db.execute(sa.select(VERSION.c.version_num)).scalar() or 0)


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One transaction, and the writer's lock for as long; all of it or nothing.

    Raises:
        Unavailable: disk or database refused, or another writer did not end in time.
    """
    try:
        with engine.begin() as db:
            yield db
    except SQLAlchemyError as error:
        raise Unavailable(f"books: {_words(error)}") from error


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One consistent view.

    Raises:
        Unavailable: disk or database refused.
    """
    try:
        with engine.connect().execution_options(reads_only=True) as db:
            yield db
    except SQLAlchemyError as error:
        raise Unavailable(f"books: {_words(error)}") from error


def insert_rows(db: Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that name every column: the hot path, one statement on either database."""
    if not rows:
        return
    if db.dialect.name == "sqlite":
        db.execute(sa.insert(table), rows)
    else:
        db.execute(
            journal_postgres.insert_columns(table),
            {column.name: [row[column.name] for row in rows] for column in table.columns},
        )


def told(place: Place) -> str:
    """A place as it may be shown: without its password."""
    return str(place) if isinstance(place, Path) else sa.make_url(place).render_as_string()


def _other_schema(place: Place, found: int) -> str:
    return (
        f"{told(place)}: books of schema {found}, {SCHEMA_VERSION} expected; "
        "`python -m assay.ledger.journal.migrate` brings a copy of them there "
        "if a way leads from it; else use the release that wrote them"
    )


def _words(error: SQLAlchemyError) -> str:
    """What the database said, without the statement."""
    said = getattr(error, "orig", None) or error
    if journal_sqlite.is_busy(said) or journal_postgres.is_busy(said):
        return "another writer has them and did not end in time; one process at a time keeps a run's books"
    return str(said).strip()
