"""Journal database: how the books' SQLite file is opened.

Room: ledger (edge). WAL and `synchronous=FULL` (a commit is on disk when it
returns), foreign keys, `recursive_triggers` (else INSERT OR REPLACE deletes
unseen), and transactions that take the writer's lock at once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from ledger.journal_tables import SCHEMA_VERSION, Table, triggers
from protocol.errors import ConfigError, Unavailable

_PRAGMAS = ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "recursive_triggers = ON")
BUSY_S_MAX = 20
_OTHER_SCHEMA = (
    "{path}: books of schema {found}, {expected} expected; books are not converted, "
    "so use the release that wrote them"
)


def open_engine(path: Path) -> Engine:
    """The books at `path`, made if missing.

    Raises:
        ConfigError: the file holds books of another schema.
        Unavailable: it cannot be opened.
    """
    url = sa.URL.create("sqlite", database=str(path))
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_S_MAX})
    sa.event.listen(engine, "connect", _set_up)
    sa.event.listen(engine, "begin", _begin)
    with writing(engine) as db:
        version = db.exec_driver_sql("PRAGMA user_version").scalar_one()
        if version not in (0, SCHEMA_VERSION):
            raise ConfigError(_OTHER_SCHEMA.format(path=path, found=version, expected=SCHEMA_VERSION))
        if version == 0:
            Table.metadata.create_all(db)
            for statement in triggers():
                db.exec_driver_sql(statement)
            db.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")
    return engine


def open_engine_to_read(path: Path) -> Engine:
    """The books at `path` for queries alone: nothing is written, and no file appears beside it.

    Raises:
        ConfigError: there is no such file, or it holds no books of this schema.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: there are no books here")
    # Books that nobody has open are read as plain bytes. Where a write-ahead log lies beside them, the
    # newest entries are in it, and only a connection that takes part in its locks may read it.
    mode = "mode=ro" if path.with_name(path.name + "-wal").exists() else "mode=ro&immutable=1"
    location = f"file:{quote(str(path.resolve()))}?{mode}"

    def connect() -> sqlite3.Connection:
        db = sqlite3.connect(location, uri=True, timeout=BUSY_S_MAX, isolation_level=None)
        db.text_factory = lambda text: text.decode(errors="replace")  # damaged text is for the audit to name
        return db

    engine = sa.create_engine(
        "sqlite://",
        creator=connect,
        poolclass=sa.NullPool,
        execution_options={"reads_only": True},
    )
    sa.event.listen(engine, "begin", _begin)
    try:
        with engine.connect() as db:
            version = db.exec_driver_sql("PRAGMA user_version").scalar_one()
    except SQLAlchemyError:
        raise ConfigError(f"{path}: not a book of accounts") from None
    if version != SCHEMA_VERSION:
        raise ConfigError(_OTHER_SCHEMA.format(path=path, found=version, expected=SCHEMA_VERSION))
    return engine


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One transaction, and the writer's lock for as long; all of it or nothing.

    Raises:
        Unavailable: disk or database refused.
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


def _words(error: SQLAlchemyError) -> str:
    """What the database said, without the statement."""
    return str(getattr(error, "orig", None) or error)


def _set_up(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # sqlite3 would begin late and commit before some statements
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    # A deferred transaction that reads first can fail when it comes to write; IMMEDIATE waits instead.
    is_reader = connection.get_execution_options().get("reads_only", False)
    connection.exec_driver_sql("BEGIN" if is_reader else "BEGIN IMMEDIATE")
