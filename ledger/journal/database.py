"""Database: opens the journal's database, SQLite by path or PostgreSQL by URL.

Room: ledger (edge). On both, a commit is durable when it returns, a writing transaction
takes the single writer's lock at its start, and a reading one sees one snapshot.

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
VERSION = sa.Table(
    "schema_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="schema_version_pkc"),
)
Place: TypeAlias = Path | str  # a file, or the URL of a PostgreSQL database
State: TypeAlias = tuple[int, ...]


def engine_of(place: Place, busy_s: float = BUSY_S_MAX) -> Engine:
    """An engine configured for the books, whatever the database holds.

    Raises:
        ConfigError: the URL is invalid, or its driver is not installed.
    """
    if isinstance(place, Path):
        return journal_sqlite.engine_of(place, busy_s)
    return journal_postgres.engine_of(place, busy_s)


def open_engine(place: Place, busy_s: float = BUSY_S_MAX) -> Engine:
    """An engine on the books at `place`, created if missing.

    Args:
        place: A file, or a URL such as `postgresql://user@host/database`.
        busy_s: Seconds that a transaction waits for another writer.

    Raises:
        ConfigError: there are books of another schema, or the URL is invalid.
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
    """A read-only engine on the books at `place`: creates no file.

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
            views = sa.inspect(db).get_view_names() if isinstance(place, Path) else []
    except SQLAlchemyError:
        mend = "if it was one, it is damaged: `assay ledger rebuild` makes the books again"
        raise ConfigError(f"{place_text(place)}: not a book of accounts; {mend}") from None
    if not isinstance(place, Path) and not found:
        raise ConfigError(f"{place_text(place)}: there are no books here")
    if found != SCHEMA_VERSION:
        raise ConfigError(_other_schema(place, found))
    if views:  # one in a table's place may have rows without end
        raise ConfigError(f"{place_text(place)}: has a view, {views[0]:.60}, which no books have")
    return engine


def closed_state(place: Place) -> State | None:
    """Differs for different books in a file that nobody has open to write; None of any other."""
    return journal_sqlite.closed_state(place) if isinstance(place, Path) else None


def make_schema(db: Connection) -> None:
    """Create tables, triggers and version of new books."""
    Table.metadata.create_all(db)
    for statement in triggers(db.dialect.name):
        db.exec_driver_sql(statement)
    VERSION.create(db, checkfirst=True)
    db.execute(sa.insert(VERSION), [{"version_num": f"{SCHEMA_VERSION:04d}"}])
    if db.dialect.name == "sqlite":
        db.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")


def version_of(db: Connection) -> int:
    """Schema version of the books in this database; 0 if there are none."""
    if db.dialect.name == "sqlite":
        return int(db.exec_driver_sql("PRAGMA user_version").scalar_one())
    for name in (VERSION.name, "alembic_version"):  # the second: PostgreSQL books of schemas 3 to 7
        if sa.inspect(db).has_table(name):
            return int(
                db.execute(sa.select(sa.column("version_num")).select_from(sa.table(name))).scalar() or 0
            )
    return 0


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One atomic write transaction, which holds the writer's lock.

    Raises:
        Unavailable: disk or database failed, or another writer did not end in time.
    """
    try:
        with engine.begin() as db:
            yield db
    except SQLAlchemyError as error:
        raise Unavailable(f"books: {_error_text(error)}") from error


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One read transaction on a consistent snapshot.

    Raises:
        Unavailable: disk or database failed.
    """
    try:
        with engine.connect().execution_options(reads_only=True) as db:
            yield db
    except SQLAlchemyError as error:
        raise Unavailable(f"books: {_error_text(error)}") from error


def ask(db: Connection, question: str, **given: Any) -> list[Any]:
    """The rows of a query in SQL; a value that is a tuple is a list in it."""
    lists: list[sa.BindParameter[Any]] = [
        sa.bindparam(name, expanding=True) for name, value in given.items() if isinstance(value, tuple)
    ]
    return list(db.execute(sa.text(question).bindparams(*lists), given))


def insert_rows(db: Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that name every column: the hot path, one statement on either database."""
    if not rows:
        return
    if db.dialect.name == "sqlite":  # the driver's own statement: SQLAlchemy's takes as long as SQLite
        names = [column.name for column in table.columns]
        places = ", ".join("?" * len(names))
        db.exec_driver_sql(
            f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({places})",
            [tuple(row[name] for name in names) for row in rows],
        )
    else:
        db.execute(
            journal_postgres.insert_columns(table),
            {column.name: [row[column.name] for row in rows] for column in table.columns},
        )


def place_text(place: Place) -> str:
    """A place for logs and errors: without its password."""
    return str(place) if isinstance(place, Path) else sa.make_url(place).render_as_string()


def _other_schema(place: Place, found: int) -> str:
    return (
        f"{place_text(place)}: books of schema {found}, {SCHEMA_VERSION} expected; "
        "books of another schema are read by the release that wrote them"
    )


def _error_text(error: SQLAlchemyError) -> str:
    """The database's error text, without the statement."""
    cause = getattr(error, "orig", None) or error
    if journal_sqlite.is_busy(cause) or journal_postgres.is_busy(cause):
        return "another writer held the lock for too long; only one process at a time may write a run's books"
    return str(cause).strip()
